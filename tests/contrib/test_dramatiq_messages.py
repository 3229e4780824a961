"""Messages of Dramatiq as data of tasks, and back."""

from __future__ import annotations

import json
from typing import Any

import dramatiq
import pytest
from dramatiq.errors import DecodeError

from pgqueue._values import data as json_data
from pgqueue._values.marked import bytes_of, text_of
from pgqueue.contrib.dramatiq import messages


def stored(value: Any) -> Any:
    return json_data.decode(json_data.encode(value))


def message(*args: Any, queue: str = "default", **options: Any) -> dramatiq.Message[Any]:
    return dramatiq.Message(queue, "shop.send", args, {}, options)


@pytest.mark.parametrize("content", [b"", b"text", "Ünïcode ✓".encode(), b"a\0b", b"\x80\0\xff"])
def test_bytes_come_back_as_they_were(content: bytes) -> None:
    held = stored(text_of(content))
    assert bytes_of(held) == content


def test_the_data_of_a_task_names_the_actor_and_the_message() -> None:
    sent = message("ada")
    data = messages.data_of(sent)
    assert (data["job"], data["id"]) == ("shop.send", sent.message_id)
    assert json.loads(data["text"])["args"] == ["ada"]


@pytest.mark.parametrize("argument", [1e16, {"b": 1, "a": 2}, "ü", "a\0b", None, float("inf")])
def test_a_message_comes_back_as_its_encoder_made_it(argument: Any) -> None:
    sent = message(argument)
    read = messages.message_of(stored(messages.data_of(sent)), 7, "default")
    assert read == sent
    assert repr(read.args) == repr(sent.args)  # 1e16 == 10**16, and dicts with another order are equal


def test_messages_of_another_encoder_survive() -> None:
    before = dramatiq.get_encoder()
    dramatiq.set_encoder(dramatiq.PickleEncoder())
    try:
        sent = message({1, 2}, b"\0\xff")
        data = messages.data_of(sent)
        assert isinstance(data["text"], bytes)
        assert messages.message_of(stored(data), 7, "default") == sent
    finally:
        dramatiq.set_encoder(before)


@pytest.mark.parametrize(
    ("data", "args", "kwargs"),
    [
        ({"job": "shop.send", "args": ["ada"]}, ("ada",), {}),
        ({"job": "shop.send", "args": {"to": "ada"}}, (), {"to": "ada"}),
        ({"job": "shop.send", "args": ["ada"], "kwargs": {"copies": 2}}, ("ada",), {"copies": 2}),
        ({"job": "shop.send"}, (), {}),
    ],
)
def test_a_job_is_a_call(data: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    read = messages.message_of(data, 7, "mail")
    assert (read.queue_name, read.actor_name, read.args, read.kwargs) == ("mail", "shop.send", args, kwargs)
    assert read.message_id == "7"
    assert messages.message_of({**data, "id": "mine"}, 7, "mail").message_id == "mine"


def test_a_message_is_of_the_queue_that_it_was_taken_from() -> None:
    data = messages.data_of(message("ada", queue="default.DQ", eta=5, pipe_ignore=True))
    for queue in ("mail", "mail.XQ"):
        read = messages.message_of(data, 7, queue)
        assert (read.queue_name, read.options) == ("mail", {"pipe_ignore": True})


@pytest.mark.parametrize(
    "data",
    [
        None,
        "text",
        {"to": "ada"},
        {"job": 7},
        {"job": "shop.send", "args": "ada"},
        {"job": "shop.send", "options": [1]},
        {"job": "shop.send", "text": "no JSON"},
        {"job": "shop.send", "text": "{}"},
        {"job": "shop.send", "text": b"\xff"},
    ],
)
def test_what_is_no_message_is_refused(data: Any) -> None:
    with pytest.raises(DecodeError):
        messages.message_of(data, 7, "default")
