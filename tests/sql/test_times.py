"""Moments of a task in SQL: run_at in place of a delay, since when it is ready, and since when it is buried."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from statements import column, put, row, rows, take, value

Connect = Any
SOON = datetime.now(UTC) + timedelta(hours=1)
PAST = datetime.now(UTC) - timedelta(hours=1)
PUTS = {
    "put": "SELECT id FROM pgqueue.put('q', '1', run_at => %s)",
    "in a lane": "SELECT id FROM pgqueue.put('q', '1', lane => 'l', run_at => %s)",
    "with a key": "SELECT id FROM pgqueue.put('q', '1', key => 'k', run_at => %s)",
    "many": "SELECT unnest(pgqueue.put_many('q', '[1, 2]', run_at => %s))",
    "many in lanes": "SELECT unnest(pgqueue.put_many('q', '[1, 2]', lanes => '{a,b}', run_at => %s))",
    "many with keys": "SELECT unnest(pgqueue.put_many('q', '[1, 2]', keys => '{a,b}', run_at => %s))",
    "publish": "SELECT pgqueue.publish('', 'q', '1', run_at => %s)",
}


@pytest.mark.parametrize("how", PUTS)
def test_run_at_is_when_the_task_is_ready(db: psycopg.Connection, how: str) -> None:
    value(db, "SELECT pgqueue.queue_id('q')")
    rows(db, PUTS[how], SOON)
    assert set(rows(db, "SELECT state, run_at, ready_since FROM pgqueue.tasks")) == {("delayed", SOON, None)}


@pytest.mark.parametrize("how", PUTS)
def test_a_run_at_that_has_passed_is_now(db: psycopg.Connection, how: str) -> None:
    value(db, "SELECT pgqueue.create_queue('q', delay => '1 h')")
    rows(db, PUTS[how], PAST)
    assert set(rows(db, "SELECT state, run_at FROM pgqueue.tasks")) == {("ready", None)}


def test_run_at_of_a_task_that_an_ack_hands_on(db: psycopg.Connection) -> None:
    put(db, "q")
    id, token = take(db, "q")
    handed = Jsonb([{"queue": "next", "data": 1, "run_at": SOON.isoformat()}])
    assert value(db, "SELECT problem FROM pgqueue.ack(%s, %s, puts => %s)", id, token, handed) is None
    assert rows(db, "SELECT queue, run_at FROM pgqueue.tasks") == [("next", SOON)]


@pytest.mark.parametrize(
    "more",
    [
        "run_at => now(), delay => '1 s'",
        "run_at => now(), delay => '0'",
        "run_at => 'infinity'",
        "run_at => '-infinity'",
    ],
)
def test_pq002_for_a_run_at_with_a_delay_or_without_end(db: psycopg.Connection, more: str) -> None:
    for call in ("put('q', '1', {})", "put_many('q', '[1]', {})", "publish('', 'q', '1', {})"):
        with pytest.raises(psycopg.DatabaseError) as raised:
            db.execute(f"SELECT pgqueue.{call.format(more)}")
        assert raised.value.sqlstate == "PQ002"


def test_a_type_without_delays_has_no_run_at(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('q', type => 'fifo')")
    with pytest.raises(psycopg.DatabaseError, match="has no delay"):
        db.execute("SELECT pgqueue.put('q', '1', run_at => now() + interval '1 h')")


def test_a_task_is_as_old_as_it_is_ready(db: psycopg.Connection) -> None:
    """Each was put two hours ago. One has been ready since, one for a moment by its delay, one by a kick."""
    at_once, delayed, kicked = put(db, "q"), put(db, "q", delay="1 h"), put(db, "q")
    db.execute("SELECT pgqueue.bury(%s)", [kicked])
    db.execute("UPDATE pgqueue.task SET created_at = created_at - interval '2 h', run_at = run_at - interval '1 h'")
    db.execute("SELECT pgqueue.promote_all(), pgqueue.kick('q')")
    hours = "(extract(epoch FROM clock_timestamp() - ready_since) / 3600)::int"
    assert rows(db, f"SELECT id, {hours} FROM pgqueue.tasks ORDER BY id") == [(at_once, 2), (delayed, 0), (kicked, 0)]
    db.execute("DELETE FROM pgqueue.oldest")  # what a slow tick remembers for some seconds
    assert value(db, "SELECT oldest_ready_age > '119 min' FROM pgqueue.stats")
    db.execute("SELECT pgqueue.delete(%s)", [at_once])
    db.execute("DELETE FROM pgqueue.oldest")  # what a slow tick remembers for some seconds
    assert value(db, "SELECT oldest_ready_age < '1 min' FROM pgqueue.stats")


def test_the_oldest_is_found_behind_tasks_that_are_ready_since_a_moment(db: psycopg.Connection) -> None:
    """The first ids are young: their delays were long. The third was put after them, and is ready for longer."""
    young = [put(db, "q", delay="5 h"), put(db, "q", delay="5 h")]
    put(db, "q")
    db.execute("UPDATE pgqueue.task SET created_at = created_at - interval '2 h'")
    db.execute("UPDATE pgqueue.task SET run_at = now() WHERE id = ANY (%s)", [young])
    db.execute("SELECT pgqueue.promote_all()")
    db.execute("DELETE FROM pgqueue.oldest")  # what a slow tick remembers for some seconds
    assert value(db, "SELECT oldest_ready_age > '119 min' FROM pgqueue.stats")


def test_a_plain_put_writes_none_of_the_moments(db: psycopg.Connection) -> None:
    put(db, "q")
    assert row(db, "SELECT ready_at, run_at, buried_at FROM pgqueue.task") == (None, None, None)


@pytest.mark.parametrize(
    "end", ["kick('q')", "kick_task(%(id)s)", "take_id(%(id)s)", "put('q', '2', key => 'k', if_exists => 'replace')"]
)
def test_a_task_knows_since_when_it_is_buried(db: psycopg.Connection, end: str) -> None:
    id = put(db, "q", key="k")
    assert column(db, "SELECT buried_at FROM pgqueue.tasks") == [None]
    db.execute("SELECT pgqueue.bury(%s)", [id])
    since = value(db, "SELECT buried_at FROM pgqueue.find_tasks('q', 'buried')")
    assert value(db, "SELECT clock_timestamp() - %s < '1 min'", since)
    db.execute("SELECT pgqueue.bury(%s, error => 'again')", [id])
    assert value(db, "SELECT buried_at FROM pgqueue.tasks") == since
    db.execute(f"SELECT pgqueue.{end}", {"id": id})
    assert value(db, "SELECT buried_at FROM pgqueue.tasks") is None


def test_the_last_attempt_buries_too(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('q', max_takes => 1)")
    put(db, "q")
    id, token = take(db, "q")
    db.execute("SELECT pgqueue.release(%s, %s, error => 'x')", [id, token])
    assert row(db, "SELECT state, buried_at IS NOT NULL FROM pgqueue.tasks") == ("buried", True)
