"""A schedule of every second, while its clocks are killed and stopped: each second has one task, and no second has two.

The tasks are a job's, so that each says for which second it was put.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from eventually import eventually
from processes import Program
from psycopg.types.json import Jsonb
from statements import column, value

CLOCKS = 3
JOB = {"job": "tick", "args": {}}
SCHEDULED = "SELECT (data -> 'headers' ->> 'scheduled_at')::timestamptz FROM pgqueue.tasks ORDER BY id"


def seconds(db: psycopg.Connection) -> list[datetime]:
    """The second of each task, in the order of the puts. All seconds from the first one on are there, each once."""
    found: list[datetime] = column(db, SCHEDULED)
    assert found == [found[0] + timedelta(seconds=n) for n in range(len(found))]
    return found


def set_schedule(db: psycopg.Connection, missed: str) -> None:
    query = "SELECT pgqueue.set_schedule('s', 'q', %s, cron => '* * * * * *', missed => %s)"
    db.execute(query, [Jsonb(JOB), missed])


def up_to_date(db: psycopg.Connection) -> bool:
    return bool(value(db, f"SELECT max(at) > now() - interval '2 s' FROM ({SCHEDULED}) t(at)"))


#: No statement of a clock that was stopped is under way.
AT_REST = """SELECT bool_and(state = 'idle') FROM pg_stat_activity
              WHERE datname = current_database() AND starts_with(application_name, 'pgqueue')"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_and_stopped_clocks_lose_and_repeat_no_second(
    dsn: str,
    db: psycopg.Connection,
    size: dict[str, int],
    start: Callable[..., Program],
    record_property: Callable[[str, object], None],
) -> None:
    chance = random.Random(size["clock_kills"])

    def clock() -> Program:
        program = start("clock", dsn)
        assert program.hear() == "ready"
        return program

    clocks = [clock() for _ in range(CLOCKS)]
    set_schedule(db, "all")
    eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.tasks") > 0)
    for kill in range(size["clock_kills"]):
        stopped = clocks[chance.randrange(CLOCKS)] if kill % 3 == 0 else None
        if stopped is not None:
            stopped.stop()  # perhaps between its look and its call
        threading.Event().wait(chance.uniform(0, 1))  # a random moment is the point
        victim = chance.choice([each for each in clocks if each is not stopped])
        victim.kill()
        clocks.remove(victim)
        before = len(seconds(db))
        eventually(lambda before=before: len(column(db, SCHEDULED)) > before)  # by the one that is left
        if stopped is not None:
            stopped.resume()
        clocks.append(clock())
    for each in clocks:
        each.stop()
    eventually(lambda: value(db, AT_REST))
    before = len(seconds(db))
    at = value(db, "SELECT now()")
    eventually(lambda: value(db, "SELECT now() > %s + interval '2.5 s'", at))
    assert len(seconds(db)) == before  # not one clock goes
    for each in clocks:
        each.resume()
    eventually(lambda: up_to_date(db))
    assert [each.end() for each in clocks] == [0] * CLOCKS
    told = f"{size['clock_kills']} kills, {len(seconds(db))} seconds"
    record_property("clocks", told)
    print(told)


@pytest.mark.slow
def test_one_task_stands_for_all_that_were_missed(
    dsn: str, db: psycopg.Connection, start: Callable[..., Program]
) -> None:
    clocks = [start("clock", dsn) for _ in range(2)]
    assert [clock.hear() for clock in clocks] == ["ready"] * 2
    set_schedule(db, "one")
    eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.tasks") > 0)
    for clock in clocks:
        clock.stop()
    eventually(lambda: value(db, AT_REST))
    at: Any = value(db, "SELECT max(at) FROM (" + SCHEDULED + ") t(at)")
    eventually(lambda: value(db, "SELECT now() > %s + interval '3.5 s'", at))
    for clock in clocks:
        clock.resume()
    eventually(lambda: up_to_date(db))
    found = column(db, SCHEDULED)
    assert found == sorted(set(found))
    assert found[found.index(at) + 1] - at >= timedelta(seconds=3)
