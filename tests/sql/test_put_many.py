"""put_many in a queue with options puts all in one statement. What comes of it is what puts one by one would make."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb
from statements import column, put, row, rows, value

LANES = ["a", None, "b", "a", "c", None, "b", "d", "d"]  # of the tasks that are put; see `busy`
OPTIONS = {
    "lanes only": "",
    "kept when done": "keep_done => '1 h'",
    "a capacity": "capacity => 100",
    "a largest size": "max_size => 100",
    "at most so many": "maxlen => 7",
    "listed": "listed => true",
    "delayed": "delay => '1 h', ttl => '1 h'",
    "urgent": "priority => -1",
    "a type": "type => 'utubettl'",
}
TASKS = """
    SELECT t.data, t.state, t.lane, t.priority, t.run_at IS NULL, t.expires_at - t.run_at, t.xid IS NULL, t.ttr
      FROM pgqueue.task t JOIN pgqueue.queue q ON q.id = t.queue_id WHERE q.name = %s ORDER BY t.id"""


def busy(db: psycopg.Connection, queue: str, options: str) -> None:
    """A queue in whose lane b somebody is; in c a task waits, and in a an urgent one, before all that follow."""
    db.execute(f"SELECT pgqueue.create_queue('{queue}'{', ' if options else ''}{options})")
    db.execute("SELECT pgqueue.allow_lanes(%s)", [queue])
    put(db, queue, "b", lane="b", priority=-9, delay="0")
    assert rows(db, "SELECT id FROM pgqueue.take(%s)", queue)
    put(db, queue, "c", lane="c", priority=5, delay="0")
    put(db, queue, "a", lane="a", priority=-8, delay="0")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_as_one_by_one(db: psycopg.Connection, options: str) -> None:
    for queue in ("one", "all"):
        busy(db, queue, options)
    for n, lane in enumerate(LANES):
        db.execute("SELECT pgqueue.put('one', to_jsonb(%s::int), lane => %s)", [n, lane])
    ids = value(db, "SELECT pgqueue.put_many('all', to_jsonb(%s::int[]), lanes => %s)", list(range(len(LANES))), LANES)
    assert ids == sorted(ids)
    assert len(ids) == len(LANES)
    assert rows(db, TASKS, "all") == rows(db, TASKS, "one")
    counted = "SELECT ready, delayed, taken, blocked, total, calls FROM pgqueue.queue_stats(%s)"
    assert row(db, counted, "all") == row(db, counted, "one")
    checked = """SELECT DISTINCT c.lane FROM pgqueue.lane_check c JOIN pgqueue.queue q ON q.id = c.queue_id
                  WHERE q.name = %s ORDER BY 1"""
    assert column(db, checked, "all") == column(db, checked, "one")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_and_they_are_taken_in_the_same_order(db: psycopg.Connection, options: str) -> None:
    """Each one is acked before the next is taken, so that lanes hold nothing back for ever."""
    for queue in ("one", "all"):
        busy(db, queue, options)
    db.execute(
        "SELECT pgqueue.put('one', to_jsonb(u.n), lane => u.lane) FROM unnest(%s::text[]) WITH ORDINALITY u(lane, n)",
        [LANES],
    )
    db.execute(
        "SELECT pgqueue.put_many('all', to_jsonb(%s::int[]), lanes => %s)", [list(range(1, 1 + len(LANES))), LANES]
    )
    order: dict[str, list[object]] = {}
    for queue in ("one", "all"):
        db.execute("UPDATE pgqueue.task SET run_at = now() - interval '1 s' WHERE state = 'D'")
        order[queue] = []
        while found := rows(db, "SELECT id, data FROM pgqueue.take(%s)", queue):
            order[queue].append(found[0][1])
            assert row(db, "SELECT problem FROM pgqueue.ack(%s)", found[0][0]) == (None,)
    assert order["all"] == order["one"]
    assert len(order["one"]) >= 5


def test_all_or_none(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('q', capacity => 5, max_size => 10)")
    for data, state in [([1] * 6, "PQ037"), ([1, "x" * 20], "PQ036")]:
        with pytest.raises(psycopg.Error) as refused:
            db.execute("SELECT pgqueue.put_many('q', %s)", [Jsonb(data)])
        assert refused.value.sqlstate == state
    assert rows(db, "SELECT FROM pgqueue.task") == []
    assert len(value(db, "SELECT pgqueue.put_many('q', '[1, 2, 3, 4, 5]')")) == 5


def test_nothing_at_all(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('q', capacity => 5)")
    assert value(db, "SELECT pgqueue.put_many('q', '[]')") == []


def test_a_lane_that_was_put_at_repeatable_read_is_served(db: psycopg.Connection) -> None:
    """There nobody can tell whether its first task is the next: all may be blocked, until the lane is checked."""
    with db.transaction():
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ids = value(db, "SELECT pgqueue.put_many('q', '[1, 2]', lanes => '{a}')")
    db.execute("SELECT pgqueue.promote_all()")
    assert column(db, "SELECT id FROM pgqueue.take_many('{q}', 5)") == ids[:1]
