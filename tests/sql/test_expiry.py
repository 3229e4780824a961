"""Queues with `expires`: deleted by the clean-up when they were not used for so long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from statements import column, put, rows, take, value

Connect = Any

QUEUES = "SELECT name FROM pgqueue.queue ORDER BY name"
UNUSED = "SELECT count(*) FROM pgqueue.unused"


def create(conn: psycopg.Connection, name: str, expires: str = "10 min") -> None:
    conn.execute("SELECT pgqueue.create_queue(%s, expires => %s::interval)", [name, expires])


def clean_up(conn: psycopg.Connection, later: str = "0") -> None:
    """As if it were later."""
    conn.execute("UPDATE pgqueue.unused SET since = since - %s::interval", [later])
    conn.execute("SELECT pgqueue.clean_up()")


def test_an_unused_queue_goes_after_its_time(db: psycopg.Connection) -> None:
    create(db, "q"), create(db, "longer", "1 h"), put(db, "plain")
    db.execute("SELECT pgqueue.declare_exchange('e'), pgqueue.bind('q', 'e', 'k')")
    put(db, "q"), put(db, "q", delay="1 h")
    clean_up(db)
    assert value(db, UNUSED) == 2
    clean_up(db, "9 min 50 s")
    assert column(db, QUEUES) == ["longer", "plain", "q"]
    clean_up(db, "20 s")
    assert column(db, QUEUES) == ["longer", "plain"]
    assert value(db, "SELECT count(*) FROM pgqueue.task") == 1
    assert rows(db, "SELECT FROM pgqueue.binding") == []
    assert value(db, UNUSED) == 1


USES = {
    "a take that finds a task": "SELECT t.* FROM pgqueue.take('q') t, pgqueue.ack(t.id, t.token)",
    "a take of many": "SELECT FROM pgqueue.take_many('{other,q}', 2)",
    "a take that finds nothing": "SELECT FROM pgqueue.truncate_queue('q'), pgqueue.take('q')",
    "a take while it is paused": "SELECT FROM pgqueue.pause_queue('q', '1 h'), pgqueue.take('q')",
    "a pop": "SELECT FROM pgqueue.pop('q')",
    "a claim": "SELECT FROM pgqueue.truncate_queue('q'), pgqueue.claim_messages('q')",
    "a taker that waits": "SELECT FROM pgqueue.next_due('{other,q}')",
    "a declaration": "SELECT pgqueue.create_queue('q', if_not_exists => true)",
    "an alteration": "SELECT pgqueue.alter_queue('q', '{\"expires\": \"11 min\"}')",
}


@pytest.mark.parametrize("use", USES)
def test_a_use_begins_the_time_anew(db: psycopg.Connection, use: str) -> None:
    create(db, "q"), put(db, "q"), put(db, "other")
    clean_up(db)
    assert value(db, UNUSED) == 1
    db.execute(USES[use])
    assert value(db, UNUSED) == 0
    db.execute("SELECT pgqueue.release_all('q')")
    clean_up(db, "1 h")
    assert column(db, QUEUES) == ["other", "q"]
    clean_up(db, "1 h")
    assert column(db, QUEUES) == ["other"]


@pytest.mark.parametrize(
    "call", ["put('q', '1')", "publish('', 'q', '1')", "queue_stats()", "find_tasks('q', 'ready')", "kick('q')"]
)
def test_what_is_no_use(db: psycopg.Connection, call: str) -> None:
    create(db, "q"), put(db, "q")
    clean_up(db)
    rows(db, f"SELECT * FROM pgqueue.{call}")
    clean_up(db, "1 h")
    assert column(db, QUEUES) == []


def test_a_task_that_is_taken_keeps_its_queue(db: psycopg.Connection, connect: Connect) -> None:
    create(db, "q"), put(db, "q")
    clean_up(db)
    id, token = take(connect(), "q")
    clean_up(db, "1 h"), clean_up(db, "1 h")
    assert column(db, QUEUES) == ["q"]
    db.execute("SELECT pgqueue.ack(%s, %s)", [id, token])
    clean_up(db), clean_up(db, "1 h")
    assert column(db, QUEUES) == []


def test_a_worker_keeps_the_queues_that_it_serves(db: psycopg.Connection, connect: Connect) -> None:
    create(db, "q"), create(db, "other")
    worker = connect()
    worker.execute("SELECT pgqueue.open_session(grace => '0')")
    worker.execute("SELECT pgqueue.register_worker(1, '{q}')")
    clean_up(db), clean_up(db, "1 h")
    assert column(db, QUEUES) == ["q"]
    worker.execute("SELECT pgqueue.close_session()")
    clean_up(db), clean_up(db, "1 h")
    assert column(db, QUEUES) == []


def test_thirty_seconds_are_the_least(db: psycopg.Connection) -> None:
    create(db, "q", "1 ms")
    clean_up(db), clean_up(db, "29 s")
    assert column(db, QUEUES) == ["q"]
    clean_up(db, "2 s")
    assert column(db, QUEUES) == []


def test_the_option_is_set_and_removed(db: psycopg.Connection) -> None:
    put(db, "q")
    clean_up(db)
    assert value(db, UNUSED) == 0
    db.execute("SELECT pgqueue.alter_queue('q', '{\"expires\": 600}')")
    assert value(db, "SELECT expires FROM pgqueue.queues") == timedelta(minutes=10)
    clean_up(db)
    assert value(db, UNUSED) == 1
    db.execute("SELECT pgqueue.alter_queue('q', '{\"expires\": null}')")
    clean_up(db, "1 h")
    assert (column(db, QUEUES), value(db, UNUSED)) == (["q"], 0)


def test_a_transaction_that_uses_the_queue_holds_up_nothing(db: psycopg.Connection, connect: Connect) -> None:
    create(db, "q")
    clean_up(db, "1 h")
    db.execute("UPDATE pgqueue.unused SET since = since - interval '1 h'")
    open_one, other = connect(autocommit=False), connect()
    assert rows(open_one, "SELECT FROM pgqueue.take('q')") == []
    db.execute("SET lock_timeout = '5s'")
    other.execute("SET lock_timeout = '5s'")
    assert rows(other, "SELECT FROM pgqueue.take('q')") == []
    db.execute("SELECT pgqueue.clean_up()")
    assert column(db, QUEUES) == ["q"]
    open_one.commit()
    db.execute("SELECT pgqueue.clean_up()")
    assert column(db, QUEUES) == ["q"]


def test_a_clock_that_was_set_back_delays_the_end_only(db: psycopg.Connection) -> None:
    create(db, "q")
    clean_up(db, "-1 day"), clean_up(db, "-1 day")
    clean_up(db), clean_up(db, "1 h")
    assert column(db, QUEUES) == []


def test_a_claim_writes_only_where_a_note_is(db: psycopg.Connection) -> None:
    create(db, "q")
    written = "SELECT n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_xact_user_tables WHERE relname = 'unused'"
    for expected in (0, 1):
        with db.transaction():
            before = value(db, written)
            for use in ("take('q')", "take_many('{q}', 5)", "next_due('{q}')"):
                rows(db, f"SELECT * FROM pgqueue.{use}")
            assert value(db, written) - before == expected
        clean_up(db)


@pytest.mark.parametrize(("end", "found"), [("ack", "done"), ("release", "ready")])
def test_a_claim_that_is_open_while_the_queue_goes_keeps_its_task(
    db: psycopg.Connection, connect: Connect, end: str, found: str
) -> None:
    """T1 takes before the note is made, and its transaction stays open until the queue has gone."""
    create(db, "q"), put(db, "q"), put(db, "q")
    t1 = connect(autocommit=False)
    id, token = take(t1, "q")
    clean_up(db)
    db.execute("SET lock_timeout = '5s'")
    clean_up(db, "1 h")
    assert column(db, QUEUES) == []
    t1.commit()
    assert column(db, "SELECT id FROM pgqueue.task") == [id]
    assert column(t1, f"SELECT state FROM pgqueue.{end}(%s, %s)", id, token) == [found]
    t1.commit()
    db.execute("SELECT pgqueue.clean_up()")
    assert rows(db, "SELECT FROM pgqueue.task") == rows(db, "SELECT FROM pgqueue.take") == []


@pytest.mark.parametrize("queues", [2, 60])
def test_a_round_reads_the_takes_twice_however_many_queues_expire(db: psycopg.Connection, queues: int) -> None:
    """Takes have no index by queue, so to look for each queue by itself reads all of them each time."""
    create(db, "used")
    db.execute("SELECT pgqueue.create_queue('q' || n, expires => '10 min') FROM generate_series(1, %s) n", [queues])
    db.execute("SELECT pgqueue.put('used', '1'), pgqueue.put('used', '2'), pgqueue.put('used', '3')")
    assert len(column(db, "SELECT id FROM pgqueue.take_many('{used}', 3)")) == 3
    clean_up(db)
    db.execute("UPDATE pgqueue.unused SET since = since - interval '1 h'")
    read = "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables"
    with db.transaction():
        before = value(db, f"{read} WHERE relname = 'take'")
        db.execute("SELECT pgqueue._clean_unused()")
        assert value(db, f"{read} WHERE relname = 'take'") - before <= 2 * 3
    assert column(db, QUEUES) == ["used"]
