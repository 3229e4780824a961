"""What strangers set is written to each sink so that it stands for itself: through the commands, logs and monitors.

Every string that a stranger can set is hostile here: the queue's name, lane, key, error and data, the label of a
session, an exchange, a binding, a channel's payload.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
import pytest
from commands import Commands, started
from eventually import eventually
from hostile import BREAKS, STRINGS, obeyed

import pgqueue
from pgqueue._values import printable
from pgqueue.contrib.sse import event
from pgqueue.monitors.graphite import lines as graphite_lines

pytestmark = pytest.mark.once

everything = pytest.mark.parametrize("text", STRINGS.values(), ids=STRINGS)


class Stranger:
    """A queue with one task in each state, whose strings are all the same text."""

    def __init__(self, client: pgqueue.Client, text: str) -> None:
        self.text = text
        self.queue = client.queue(text)
        self.ready = self.queue.put({text: [text]}, key=text)
        self.queue.put(text, delay=3600)
        self.queue.put(text, lane=text, priority=-2)
        self.taken = self.queue.take(0)
        self.queue.put(text, priority=-1)
        self.buried = self.queue.take(0)
        self.buried.bury(error=text)
        client.exchanges.declare(text, "topic")
        client.exchanges.bind(text, text, text)
        client.schedules.set(text, None, text, text, every=3600, key=text)


@pytest.fixture
def stranger(text: str, blocking: Any, db: psycopg.Connection[Any]) -> Stranger:
    found = Stranger(blocking(), text)
    db.execute("UPDATE pgqueue.session SET label = %s", [text])
    db.execute("SELECT pgqueue.grant(%s, current_user::regrole)", [text])
    db.execute("SELECT pgqueue.grant_to(current_user::regrole, pattern => %s)", [text])
    return found


# --- the terminal


def commands(of: Stranger) -> Iterator[tuple[str, ...]]:
    for name in ("queues", "health", "exchanges", "bindings", "stats", "privileges"):
        yield (name,)
    yield "schedule", "list"
    yield "stats", of.text
    yield "list", of.text
    for state in ("ready", "delayed", "taken", "buried"):
        yield "list", of.text, "--state", state
        if state != "taken":
            yield "peek-next", of.text, "--state", state
    yield from (("peek", str(task.id)) for task in (of.ready, of.taken, of.buried))


@pytest.mark.slow
@everything
def test_no_command_prints_what_a_terminal_obeys(command: Commands, stranger: Stranger) -> None:
    for arguments in commands(stranger):
        done = command(*arguments)
        assert obeyed(done.stdout + done.stderr) == [], arguments
        assert "forged: line\n" not in done.stdout.replace("\r", "\n"), arguments
        rows = [json.loads(line) for line in command(*arguments, "--json").stdout.splitlines()]
        assert obeyed(command(*arguments, "--json").stdout) == [], arguments
        if arguments[0] in ("list", "peek", "peek-next"):
            assert {row["queue"] for row in rows} == {stranger.text}  # the same value, in escapes


@pytest.mark.slow
@everything
def test_taking_commands(command: Commands, stranger: Stranger) -> None:
    claimed = command("take", stranger.text, "--timeout", "0")
    assert obeyed(claimed.stdout) == []
    id, claim, data = claimed.stdout.rstrip("\n").split(" ", 2)
    assert json.loads(data) == {stranger.text: [stranger.text]}
    assert len(claimed.stdout.splitlines()) == 1
    assert obeyed(command("release", id, "--claim", claim, "--error", stranger.text).stderr) == []
    acked = command("take", stranger.text, "--timeout", "0", "--ack")
    assert obeyed(acked.stdout) == []
    stranger.queue.put(stranger.text)
    (popped,) = command.lines("pop", stranger.text)
    assert obeyed(popped) == []
    assert json.loads(popped) == stranger.text


@everything
def test_errors_of_commands(command: Commands, stranger: Stranger, db: psycopg.Connection[Any]) -> None:
    """The label of the holder, the name of a queue, and what click quotes of the command line."""
    held = command("ack", str(stranger.taken.id), "--claim", "1")
    assert held.returncode == 4
    others = [
        command("delete-queue", stranger.text, "--yes"),
        command("list", f"no such{stranger.text}"),
        command("stats", "q", f"--{stranger.text}"),
        command("peek", stranger.text, stranger.text),
        command("queues", stranger.text),
        command(f"c{stranger.text}"),
    ]
    for done in (held, *others):
        assert done.returncode != 0
        assert obeyed(done.stdout + done.stderr) == []
    for done in (held, *others[:2]):
        (line,) = done.stderr.splitlines()
        assert line.startswith("Error: ")


@everything
@pytest.mark.parametrize("verb", ["wait", "subscribe"])
def test_payloads(command: Commands, blocking: Any, text: str, verb: str) -> None:
    poster, over = blocking(), []

    def post() -> None:
        while not over:
            poster.post("news", text)

    thread = Thread(target=post)
    thread.start()
    try:
        shown = command(verb, "news", *(["-n", "1"] if verb == "subscribe" else []), "--timeout", "30").stdout
        (exact,) = command.json(verb, "news", *(["-n", "1"] if verb == "subscribe" else []), "--timeout", "30")
    finally:
        over.append(True)
        thread.join()
    assert obeyed(shown) == []
    assert exact["payload"] == text
    if verb == "subscribe":
        assert shown.count("\n") == 1


# --- logs


@everything
@pytest.mark.parametrize("name", ["pgqueue", "pgqueue.alerts"])
def test_a_log_record_is_one_line(text: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger(name)
    log.warning("task %s of %s failed: %s", 5, text, ValueError(text))
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("it failed: %s", text)
    first, second = caplog.records
    assert obeyed(caplog.text) == []
    assert "\n" not in first.getMessage() + second.getMessage()
    trace = logging.Formatter().format(second).split("\n")[1:]
    assert trace[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in trace)


def test_a_harmless_record_keeps_its_template(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("pgqueue").warning("task %s of %r", 5, "почта 👩‍💻")
    (record,) = caplog.records
    assert (record.msg, record.args) == ("task %s of %r", (5, "почта 👩‍💻"))


def test_every_logger_of_the_library_has_the_filter() -> None:
    home = Path(pgqueue.__path__[0])
    names = {
        name for path in home.rglob("*.py") for name in re.findall(r'getLogger\("(pgqueue[^"]*)"\)', path.read_text())
    }
    assert names == {"pgqueue", "pgqueue.alerts"}
    assert all(printable.one_line in logging.getLogger(name).filters for name in names)


@pytest.mark.slow
@everything
def test_a_worker_logs_the_error_of_a_task_on_one_line(text: str, dsn: str, blocking: Any, tmp_path: Path) -> None:
    """A handler that raises what its task says, under `pgqueue worker`."""
    (tmp_path / "app.py").write_text(
        "import pgqueue\nclient = pgqueue.Client()\n\n"
        "@client.handler('q')\ndef fail(data, task):\n    raise ValueError(data)\n"
    )
    blocking().queue("q").put(text)
    with started(
        "worker",
        "app:client",
        "--max-attempts",
        "1",
        settings={"PGQUEUE_DSN": dsn},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
    ) as process:
        eventually(lambda: blocking().queue("q").stats()["buried"])
        process.terminate()
        said = process.communicate(timeout=30)[1].decode()
    assert obeyed(said) == []
    assert [line for line in said.splitlines() if "is buried after 1 attempts" in line]
    assert not [line for line in said.splitlines() if line.startswith(("forged", "data: forged", "2030-"))]


# --- monitors


@everything
def test_prometheus(text: str, blocking: Any, command: Commands) -> None:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    from pgqueue.monitors.prometheus import PgqueueCollector

    client = blocking()
    client.queue(text).put(1)
    client.queue(printable.line(text) + " ").put(1)
    registry = CollectorRegistry()
    registry.register(PgqueueCollector(client))
    scraped = generate_latest(registry).decode()
    assert obeyed(scraped) == []
    found = {
        sample.labels["queue"]
        for family in text_string_to_metric_families(scraped)
        for sample in family.samples
        if family.name == "pgqueue_kept_tasks"
    }
    assert len(found) == 2
    assert printable.label(text) in found
    assert obeyed(command("metrics", "--once").stdout) == []


def test_two_names_never_have_the_same_label() -> None:
    pieces = ["\\", "\x1b", "x1b", "\r", "r", "\n", "n", "\u202e", "u202e", "\U000e0041", "U000e0041"]
    names = {a + b + c + d for a in pieces for b in pieces for c in pieces for d in ["", *pieces]}
    assert len({printable.label(name) for name in names}) == len(names)


@everything
def test_graphite(text: str, blocking: Any) -> None:
    client = blocking()
    client.queue(text).put(1)
    (line,) = graphite_lines(client.stats(), "pgqueue", ("total",), 1)
    assert re.fullmatch(r"pgqueue\.[A-Za-z0-9_-]{1,250}\.total 1 1\n", line)


@everything
def test_alerts(text: str) -> None:
    from pgqueue._calls import stats as counting
    from pgqueue._calls.health import Check, Conditions
    from pgqueue.monitors.thresholds import Thresholds
    from pgqueue.monitors.watcher import Watcher

    checks = [Check("old sessions", "bad", 3.0, "sessions", text)]
    watcher = Watcher(Thresholds(age=1.0))
    stats = {text: counting.summed([]) | {"oldest_ready_age": 5.0}}
    alerts = watcher.look(stats, checks, Conditions(), 0.0)
    assert len(alerts) == 2
    for alert in alerts:
        assert obeyed(alert.text) == []
        assert "\n" not in alert.text
        body = printable.json_text(json.dumps(alert.as_dict(), ensure_ascii=False))
        assert obeyed(body) == []
        assert json.loads(body) == alert.as_dict()


# --- event streams


def received(stream: str) -> list[tuple[str, str]]:
    """The events that a browser takes from a stream: HTML's algorithm."""
    events, data, kind = [], list[str](), "message"
    for line in re.split("\r\n|\r|\n", stream):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "" and data:
            events.append((kind, "\n".join(data)))
        if line == "":
            data, kind = [], "message"
        elif name == "data":
            data.append(value)
        elif name == "event":
            kind = value
    return events


@everything
def test_a_payload_is_one_event(text: str) -> None:
    (found,) = received(event(text))
    assert found == ("message", re.sub("\r\n|\r", "\n", text))
    ((kind, data),) = received(event("x", text))
    assert (kind, data) == (printable.line(text), "x")


def test_the_strings_do_what_the_tests_are_about() -> None:
    """Without the functions each of them would be obeyed, or break a line."""
    assert obeyed(STRINGS["escapes"])
    assert obeyed(STRINGS["c1"])
    assert obeyed(STRINGS["bidi"])
    assert len(received(f"data: {BREAKS}\n\n")) > 1


def test_a_message_of_megabytes_is_cut_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("pgqueue").warning("no job %s", "j" * 1_000_000)
    (record,) = caplog.records
    assert len(record.getMessage()) < 8100
    assert record.getMessage().endswith("... (1000007 characters)")
