"""`pgqueue schedule`."""

from __future__ import annotations

import signal
from typing import Any

import psycopg
import pytest
from commands import Commands, started
from eventually import eventually
from statements import rows, value

pytestmark = pytest.mark.once


def test_a_schedule_from_its_setting_to_its_end(command: Commands) -> None:
    daily = ("schedule", "set", "daily", "mail", '{"to": "all"}', "--cron", "30 2 * * *", "--tz", "Europe/Berlin")
    assert command.lines(*daily) == ["created"]
    assert command.lines(*daily) == ["kept"]
    assert command.lines(*daily, "--priority", "3", "--key", "k") == ["changed"]
    assert command.lines("schedule", "pause", "daily") == []
    assert command.lines("schedule", "run", "daily") == ["1"]
    (found,) = command.json("schedule", "list")
    assert (found["name"], found["data"], found["paused"], found["last_task"]) == ("daily", {"to": "all"}, True, 1)
    assert found["options"] == {"priority": 3, "key": "k"}
    heading, line = command.lines("schedule", "list")
    assert heading.split() == ["NAME", "TIMES", "ZONE", "QUEUE", "NEXT", "LAST", "TASK", "STATE", "DECLARED", "ERROR"]
    assert "30 2 * * *  Europe/Berlin  mail   paused" in line
    assert command.lines("schedule", "resume", "daily") == []
    times = command.lines("schedule", "next", "daily", "-n", "3")
    assert len(times) == 3
    assert {time[11:19] for time in times} <= {"02:30:00", "03:00:00"}
    assert [set(one) for one in command.json("schedule", "next", "daily")] == [{"at"}] * 5
    assert command.lines("schedule", "delete", "daily", "--yes") == []
    assert command.json("schedule", "list") == []


def test_an_interval_and_a_schedule_that_the_code_declares_no_more(command: Commands, db: psycopg.Connection) -> None:
    assert command.lines("schedule", "set", "tick", "q", "--every", "90", "--missed", "none") == ["created"]
    db.execute("UPDATE pgqueue.schedule SET declared = 'shop', removed_at = now()")
    assert "every 90 s" in command.lines("schedule", "list")[1]
    assert "shop (removed)" in command.lines("schedule", "list")[1]


@pytest.mark.parametrize(
    ("code", "arguments", "message"),
    [
        (2, ["set", "s", "q"], "give --cron or --every"),
        (2, ["set", "s", "q", "--cron", "@daily", "--every", "5"], "give --cron or --every"),
        (2, ["set", "s", "q", "{", "--cron", "@daily"], "not JSON"),
        (2, ["set", "s", "q", "--cron", "* 25 * * *"], "the hour '25'"),
        (2, ["set", "s", "q", "--cron", "@daily", "--tz", "Mars"], "no time zone 'Mars'"),
        (1, ["pause", "s"], "no schedule"),
        (1, ["run", "s"], "no schedule"),
        (1, ["next", "s"], "no schedule"),
        (1, ["delete", "s", "--yes"], "no schedule"),
    ],
)
def test_what_cannot_be(command: Commands, code: int, arguments: list[str], message: str) -> None:
    assert message in command.fails(code, "schedule", *arguments)


def test_a_delete_asks_first(command: Commands) -> None:
    command.lines("schedule", "set", "s", "q", "--cron", "@daily")
    assert "--yes" in command.fails(2, "schedule", "delete", "s")
    assert len(command.json("schedule", "list")) == 1


@pytest.mark.slow
def test_a_clock_fires_until_a_signal(dsn: str, command: Commands, db: psycopg.Connection) -> None:
    command.lines("schedule", "set", "s", "q", "1", "--every", "1")
    process: Any
    with started("schedule", "clock", settings={"PGQUEUE_DSN": dsn}) as process:
        eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.tasks") > 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert rows(db, "SELECT FROM pgqueue.schedules WHERE last_at IS NOT NULL") == [()]
