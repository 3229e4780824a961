"""A queue that becomes listed: every task is listed, also those of puts that are under way meanwhile."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from statements import column, put, value

from pgqueue import migrate

Connect = Any
ON = """SELECT pgqueue.alter_queue('q', '{"listed": true}')"""
OFF = """SELECT pgqueue.alter_queue('q', '{"listed": false}')"""


def listing(conn: psycopg.Connection, after: str | None = None) -> list[int]:
    return column(conn, "SELECT id FROM pgqueue.list_messages('q', %s, 100)", after)


def marker(conn: psycopg.Connection) -> str:
    return column(conn, "SELECT marker FROM pgqueue.list_messages('q', n => 100)")[-1]


def ticks(conn: psycopg.Connection, n: int = 5) -> None:
    for _ in range(n):
        conn.execute("SELECT pgqueue.promote_all()")


def pending(conn: psycopg.Connection) -> int:
    return int(value(conn, "SELECT count(*) FROM pgqueue.listing"))


def test_tasks_that_are_there_are_listed(db: psycopg.Connection) -> None:
    ids = [put(db, "q"), put(db, "q", lane="l"), put(db, "q", lane="l"), put(db, "q")]
    db.execute("SELECT pgqueue.bury(%s)", [ids[3]])
    db.execute(ON)
    assert sorted(listing(db)) == ids
    assert listing(db, marker(db)) == []
    ticks(db)
    assert pending(db) == 0
    assert len(listing(db)) == 4


def test_a_put_under_way_is_listed_behind_the_markers_of_earlier_pages(
    db: psycopg.Connection, connect: Connect
) -> None:
    first = put(db, "q")
    producer = connect(autocommit=False)
    late = put(producer, "q")  # it has read that the queue is not listed
    db.execute(ON)
    later = put(db, "q")
    ticks(db)
    assert pending(db) == 1  # the producer may yet commit
    producer.commit()
    assert first in listing(db)
    at = marker(db)
    assert late not in listing(db)  # without a transaction in its row
    ticks(db)
    assert listing(db, at) == [late]
    assert sorted(listing(db)) == sorted([first, late, later])
    ticks(db)
    assert pending(db) == 0


def test_an_old_snapshot_that_puts_after_the_change_is_waited_for(db: psycopg.Connection, connect: Connect) -> None:
    value(db, "SELECT pgqueue.queue_id('q')")
    producer = connect(autocommit=False)
    producer.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    producer.execute("SELECT count(*) FROM pgqueue.tasks")  # its snapshot, and no xid
    db.execute(ON)
    ticks(db)
    assert pending(db) == 1
    late = put(producer, "q")
    ticks(db)
    producer.commit()
    ticks(db)
    assert listing(db) == [late]
    assert pending(db) == 0


def test_a_tick_in_a_longer_transaction_concludes_nothing(db: psycopg.Connection) -> None:
    value(db, "SELECT pgqueue.queue_id('q')")
    with db.transaction():
        db.execute(ON)
        ticks(db)
    assert value(db, "SELECT altered IS NOT NULL FROM pgqueue.listing")


def test_listed_can_be_switched_off_and_on_again(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('q', listed => true)")
    first = put(db, "q")
    at = marker(db)
    db.execute(OFF)
    second = put(db, "q")
    db.execute(ON)
    assert listing(db, at) == [second]
    assert listing(db) == [first, second]


# --- a dump that was restored on a server with fewer transactions


@pytest.mark.slow
def test_migrate_up_lists_tasks_of_a_server_that_was_ahead(dsn: str, db: psycopg.Connection) -> None:
    ids = [put(db, "q"), put(db, "q", delay="1 h"), put(db, "q")]
    other = put(db, "not listed")
    db.execute(ON)
    ticks(db)
    own = value(db, "SELECT xid FROM pgqueue.task WHERE id = %s", ids[2])
    ahead = "(pg_current_xact_id()::text::bigint + 1000000)::text::xid8"
    db.execute(f"UPDATE pgqueue.task SET xid = {ahead} WHERE id IN (%s, %s)", ids[:2])
    db.execute(f"INSERT INTO pgqueue.listing SELECT pgqueue.queue_id('q'), {ahead}, {ahead}")
    assert listing(db) == ids[2:]
    before = column(db, "SELECT ctid FROM pgqueue.task WHERE id IN (%s, %s)", ids[2], other)
    migrate.up(dsn)
    assert sorted(column(db, "SELECT id FROM pgqueue.list_messages('q', NULL, 100, include_delayed => true)")) == ids
    assert value(db, "SELECT xid FROM pgqueue.task WHERE id = %s", ids[2]) == own
    assert column(db, "SELECT ctid FROM pgqueue.task WHERE id IN (%s, %s)", ids[2], other) == before
    ticks(db)
    assert pending(db) == 0


def test_migrate_up_leaves_tasks_of_this_server_alone(dsn: str, db: psycopg.Connection, connect: Connect) -> None:
    """Also those of transactions that are open, or that begin after the migration."""
    db.execute("SELECT pgqueue.create_queue('q', listed => true)")
    migration = psycopg.connect(dsn)
    migration.execute("SELECT pg_current_xact_id()")
    late = connect(autocommit=False)
    put(late, "q")
    put(db, "q")
    before = "SELECT id, xid, ctid FROM pgqueue.task ORDER BY id"
    seen = db.execute(before).fetchall()
    assert value(migration, "SELECT pgqueue._restamp_tasks()") == 0
    migration.commit()
    migration.close()
    assert db.execute(before).fetchall() == seen
