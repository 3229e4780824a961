"""`pgqueue wait`, `post` and `subscribe`."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from commands import failed, invoke

pytestmark = pytest.mark.once


@pytest.fixture
def posting(blocking):
    """Posts 0, 1, 2 ... to a channel during a block: whoever begins to listen hears from then on."""

    @contextmanager
    def during(channel):
        client, over = blocking(), threading.Event()

        def post():
            n = 0
            while not over.wait(0.01):  # a reader that stands still for ten seconds would miss some
                client.post(channel, f"number {n}")
                n += 1

        thread = threading.Thread(target=post)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    return during


def test_wait_prints_what_is_posted(command, posting):
    with posting("news"):
        (line,) = command.lines("wait", "news", "--timeout", "30")
        (found,) = command.json("wait", "news", "--timeout", "30")
    assert line.startswith("number ")
    assert found["channel"] == "news"
    assert found["payload"].startswith("number ")


def test_subscribe_misses_nothing(command, posting):
    with posting("news"):
        lines = command.lines("subscribe", "news", "-n", "20", "--timeout", "30")
    numbers = [int(line.removeprefix("number ")) for line in lines]
    assert numbers == list(range(numbers[0], numbers[0] + 20))


def test_nothing_comes(command):
    assert command.finds_nothing("wait", "news", "--timeout", "0.05")
    assert command.finds_nothing("subscribe", "news", "--timeout", "0.05")


@pytest.mark.parametrize(
    ("arguments", "input", "payload"),
    [
        (["hello there"], None, "hello there"),
        ([], None, ""),
        (["-"], "two\nlines \N{SNOWMAN}\n", "two\nlines \N{SNOWMAN}\n"),
        (["-"], "x" * 20_000, "x" * 20_000),
    ],
    ids=["argument", "nothing", "standard input", "large"],
)
def test_post(command, blocking, arguments, input, payload):
    with blocking().subscribe("news") as news:
        assert command.lines("post", "news", *arguments, input=input) == []
        assert news.get(30) == payload


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["wait", ""], "a channel's name has 1 to 63 bytes"),
        (["wait", "pgqueue:1"], "a channel's name must not begin with pgqueue:"),
        (["wait", "c", "--timeout", "x"], "'x' is not a number"),
        (["post", "x" * 64], "a channel's name has 1 to 63 bytes"),
        (["subscribe", "c", "-n", "0"], "0 is not in the range"),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, list) else "",
)
def test_a_wrong_command_line_asks_nothing_of_a_server(arguments, said):
    assert said in failed(invoke(*arguments, PGQUEUE_DSN="postgresql://127.0.0.1:1/none"), 2)


def test_a_payload_that_is_no_text(command):
    assert command.fails(2, "post", "c", "-", input=b"ab\xff") == "standard input is not UTF-8: byte 3"
    assert "NUL" in command.fails(2, "post", "c", "-", input=b"\0")
