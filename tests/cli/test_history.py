"""`pgqueue history`."""

from __future__ import annotations

from datetime import datetime

import psycopg
import pytest
from commands import Commands, failed
from minutes import write_minute
from statements import put, take

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def minute(db: psycopg.Connection) -> None:
    """A minute of two queues."""
    for _ in range(3):
        put(db, "mail")
    put(db, "bills")
    db.execute("SELECT pgqueue.ack(%s, %s)", take(db, "mail"))
    write_minute(db)


def test_periods_are_shown(command: Commands) -> None:
    heading, *lines = command.lines("history")
    assert " ".join(heading.split()) == (
        "QUEUE AT PUTS TAKES ACKS DONE RELEASES BURIES TIMEOUTS READY MOST_READY TAKEN DELAYED BURIED BLOCKED OLDEST"
    )
    assert {line.split()[0] for line in lines} == {"bills", "mail"}
    (mail,) = [line for line in command.lines("history", "mail")[1:] if " 3 " in line]
    assert mail.split()[0] == "mail"


def test_periods_as_json(command: Commands) -> None:
    found = command.json("history", "mail", "--since", "6h", "--every", "1h")
    assert sum(one["puts"] for one in found) == 3
    assert {one["queue"] for one in found} == {"mail"}
    assert all(datetime.fromisoformat(one["at"]).minute == 0 for one in found)


def test_what_there_is_not_is_refused(command: Commands) -> None:
    assert "nowhere" in failed(command("history", "nowhere"), 1)
    assert "every must be a multiple of 00:01:00" in failed(command("history", "--every", "90s"), 2)
