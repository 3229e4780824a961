"""Puts that wait for each other: for a key, for a task's row, for the room of a queue."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from statements import put, rows, take, value
from stepping import waiting

REPLACE = "SELECT pgqueue.put_many('q', %s::jsonb, keys => %s, if_exists => 'replace')"


@pytest.fixture
def others(dsn: str) -> Iterator[list[psycopg.Connection]]:
    connections = [psycopg.connect(dsn, autocommit=True) for _ in range(3)]
    yield connections
    for connection in connections:
        connection.close()


def test_puts_with_keys_do_not_deadlock_over_the_room(db: psycopg.Connection, others: list[psycopg.Connection]) -> None:
    """One has a key's row locked and needs room, the other the room and needs that row: so room comes first."""
    holder, first, second = others
    db.execute("SELECT pgqueue.create_queue('q', capacity => 10)")
    id = value(db, "SELECT id FROM pgqueue.put('q', '1', key => 'b')")
    holder.autocommit = False
    holder.execute("SELECT FROM pgqueue.task WHERE id = %s FOR UPDATE", [id])
    with (
        waiting(second, db, REPLACE, "[2, 3]", ["b", "c"]) as two,
        waiting(first, db, REPLACE, "[4, 5]", ["a", "b"]) as one,
    ):
        holder.rollback()
    assert [len(done.result()[0][0]) for done in (two, one)] == [2, 2]
    assert value(db, "SELECT count(*) FROM pgqueue.tasks") == 3


def test_a_row_that_loses_its_key_while_a_put_waits_for_it_stays_locked(
    db: psycopg.Connection, others: list[psycopg.Connection]
) -> None:
    """The put gets the row and finds no key on it; it needs room then, and has to have had that before the row."""
    mover, first, second = others
    db.execute("SELECT pgqueue.create_queue('q', capacity => 10)")
    id = put(db, "q", key="k")
    mover.autocommit = False
    mover.execute("UPDATE pgqueue.task SET key = NULL WHERE id = %s", [id])  # as one that dies
    replace = "SELECT id FROM pgqueue.put('q', '2', key => 'k', if_exists => 'replace')"
    with (
        waiting(first, db, replace) as one,
        waiting(second, db, REPLACE, "[3]", ["k"]) as two,
    ):
        mover.commit()
    assert two.result()[0][0] == [one.result()[0][0]] != [id]
    assert value(db, "SELECT count(*) FROM pgqueue.tasks") == 2


def test_the_first_put_into_a_lane_has_its_room_before_the_queues_row(
    db: psycopg.Connection, others: list[psycopg.Connection]
) -> None:
    """It marks the queue as one with lanes; who has the room may be about to do the same."""
    holder, first, _ = others
    db.execute("SELECT pgqueue.create_queue('q', capacity => 10)")
    holder.autocommit = False
    put(holder, "q")
    with waiting(first, db, "SELECT state FROM pgqueue.put('q', '1', lane => 'a')") as placed:
        put(holder, "q", lane="b")
        holder.commit()
    assert placed.result() == [("ready",)]


def test_a_replacing_put_does_not_wait_for_an_ack_that_waits_for_room(
    db: psycopg.Connection, others: list[psycopg.Connection]
) -> None:
    """The ack has the row of the task and needs room for what it hands on; the put has the room and needs the row."""
    producer, acking, replacing = others
    db.execute("SELECT pgqueue.create_queue('q', capacity => 10)")
    db.execute("SELECT pgqueue.put('q', '1', key => 'b')")
    id, token = take(db, "q")
    producer.autocommit = False
    producer.execute("SELECT pgqueue.put('q', '2')")
    hand_on = """SELECT state FROM pgqueue.ack(%s, %s, puts => '[{"queue": "q", "data": 4}]')"""
    with (
        waiting(replacing, db, REPLACE, "[3]", ["b"]) as replaced,
        waiting(acking, db, hand_on, id, token) as acked,
    ):
        producer.commit()
    assert getattr(replaced.exception(), "sqlstate", None) == "PQ039"
    assert acked.result() == [("done",)]


def test_a_task_whose_take_is_over_is_replaced(db: psycopg.Connection) -> None:
    id = put(db, "q", ttr="1 h", key="k")
    _, token = take(db, "q")
    db.execute("UPDATE pgqueue.take SET deadline = now() - interval '1 s'")
    assert put(db, "q", "new", key="k", if_exists="replace") == id
    assert rows(db, "SELECT state, attempts, data FROM pgqueue.tasks") == [("ready", 0, "new")]
    assert value(db, "SELECT problem FROM pgqueue.ack(%s, %s)", id, token) == "not taken"
    assert take(db, "q")[0] == id


def test_the_room_for_many_is_counted_once(db: psycopg.Connection) -> None:
    """At each put anew it took 9 s for 3,000 tasks, and four times as long for twice as many."""
    db.execute("SELECT pgqueue.create_queue('q', capacity => 3000)")
    many = "SELECT cardinality(pgqueue.put_many('q', (SELECT jsonb_agg(n) FROM generate_series(1, %s) n)))"
    db.execute("SET statement_timeout = '5 s'")
    assert value(db, many, 3000) == 3000
    with pytest.raises(psycopg.Error) as caught:
        db.execute(many, [1])
    assert caught.value.sqlstate == "PQ037"
