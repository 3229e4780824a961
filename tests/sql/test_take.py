"""pgqueue.take, take_many and pop, in SQL."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from eventually import eventually
from statements import column, pass_time, put, row, rows, state, take, value
from stepping import die

Connect = Any
TAKE_MANY = "SELECT queue, id FROM pgqueue.take_many(%s::text[], %s)"


def test_a_take_gives_the_task_and_its_token(db: psycopg.Connection) -> None:
    id = put(db, "q", "hello", priority=5)
    (taken,) = rows(db, "SELECT id, priority, attempts, deadline, data FROM pgqueue.take('q')")
    assert taken == (id, 5, 0, None, "hello")
    assert state(db, id) == "taken"
    assert rows(db, "SELECT * FROM pgqueue.take('q')") == []


def test_the_deadline_is_ttr_from_now(db: psycopg.Connection) -> None:
    put(db, "q", ttr="1 min")
    query = "SELECT deadline BETWEEN now() + '1 min' AND clock_timestamp() + '1 min' FROM pgqueue.take('q')"
    assert value(db, query) is True


def test_lowest_priority_first_then_the_oldest(db: psycopg.Connection) -> None:
    ids = [put(db, "q", priority=priority) for priority in (1, 0, -5, 1, 2147483647, 0, -2147483648)]
    order = [ids[i] for i in (6, 2, 1, 5, 0, 3, 4)]
    assert [take(db, "q")[0] for _ in order] == order


def test_one_queue_does_not_give_anothers_tasks(db: psycopg.Connection) -> None:
    put(db, "a")
    put(db, "b")
    assert rows(db, "SELECT * FROM pgqueue.take('c')") == []
    assert column(db, "SELECT name FROM pgqueue.queue ORDER BY 1") == ["a", "b"]


def test_tokens_differ_unless_given(db: psycopg.Connection) -> None:
    for _ in range(4):
        put(db, "q")
    assert take(db, "q")[1] != take(db, "q")[1]
    assert value(db, "SELECT token FROM pgqueue.take('q', new_token => 42)") == 42
    assert value(db, "SELECT token FROM pgqueue.take_many('{q}', 1, new_token => 43)") == 43


def test_a_delayed_task_is_taken_when_it_is_due_with_no_maintenance(db: psycopg.Connection) -> None:
    id = put(db, "q", delay="1 h")
    assert rows(db, "SELECT id FROM pgqueue.take('q')") == []
    pass_time(db, "59 min 59.8 s")
    due = value(db, "SELECT run_at FROM pgqueue.tasks")
    assert eventually(lambda: rows(db, "SELECT id FROM pgqueue.take('q')")) == [(id,)]
    assert value(db, "SELECT taken_at >= %s FROM pgqueue.tasks", due) is True


def test_a_task_that_was_delayed_has_its_place_by_priority_and_id(db: psycopg.Connection) -> None:
    first = put(db, "q", delay="0.05 s")
    second = put(db, "q")
    eventually(lambda: state(db, first) == "ready")
    assert [take(db, "q")[0], take(db, "q")[0]] == [first, second]


def test_a_take_after_a_position(db: psycopg.Connection) -> None:
    ids = [put(db, "q") for _ in range(3)]
    after = "SELECT id FROM pgqueue.take('q', after_priority => 0, after_id => %s)"
    assert column(db, after, ids[0]) == [ids[1]]
    assert column(db, after, ids[2]) == []
    assert column(
        db, "SELECT id FROM pgqueue.take_many('{q}', 9, after_priority => '{0}', after_id => %s)", [ids[0]]
    ) == [ids[2]]
    assert take(db, "q")[0] == ids[0]


def test_an_uncommitted_take_is_skipped_and_comes_back_on_rollback(db: psycopg.Connection, connect: Connect) -> None:
    first, second = put(db, "q"), put(db, "q")
    other = connect(autocommit=False)
    assert take(other, "q")[0] == first
    assert take(db, "q")[0] == second
    assert rows(db, "SELECT * FROM pgqueue.take('q')") == []
    other.rollback()
    assert take(db, "q")[0] == first


def test_an_old_snapshot_cannot_take_twice(db: psycopg.Connection, connect: Connect) -> None:
    """At REPEATABLE READ the other's take is invisible; the primary key of `take` is the last guard."""
    id = put(db, "q")
    other = connect(autocommit=False)
    other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    other.execute("SELECT FROM pgqueue.task")
    assert take(db, "q")[0] == id
    with pytest.raises(psycopg.errors.SerializationFailure):
        take(other, "q")
    other.rollback()
    assert rows(db, "SELECT task_id FROM pgqueue.take") == [(id,)]


def test_four_takers_of_batches_take_each_task_once(db: psycopg.Connection, connect: Connect) -> None:
    db.execute("SELECT pgqueue.put_many('q', (SELECT jsonb_agg(i) FROM generate_series(1, 60) i))")
    takers = [connect(autocommit=False) for _ in range(4)]
    seen = [id for conn in takers for id in column(conn, "SELECT id FROM pgqueue.take_many('{q}', 10)")]
    for conn in takers:
        conn.commit()
    assert len(seen) == len(set(seen)) == 40
    assert len(rows(db, "SELECT FROM pgqueue.take_many('{q}', 100)")) == 20


# --- several at once


def test_take_many_takes_up_to_n_under_one_token(db: psycopg.Connection) -> None:
    ids = [put(db, "q", priority=-i) for i in range(5)]
    taken = rows(db, "SELECT id, priority, queue FROM pgqueue.take_many('{q}', 3)")
    assert taken == [(ids[4], -4, "q"), (ids[3], -3, "q"), (ids[2], -2, "q")]
    assert len(column(db, "SELECT DISTINCT token FROM pgqueue.take")) == 1
    assert len(rows(db, "SELECT FROM pgqueue.take_many('{q}', 3)")) == 2


def test_of_several_queues_the_one_with_the_lowest_next_task_serves_first(db: psycopg.Connection) -> None:
    put(db, "a", priority=2)
    put(db, "b", priority=1)
    put(db, "b", priority=3)
    put(db, "c", priority=0)
    assert [queue for queue, _ in rows(db, TAKE_MANY, ["a", "b", "empty"], 1)] == ["b"]
    assert [queue for queue, _ in rows(db, TAKE_MANY, ["a", "b", "c", "none"], 9)] == ["c", "a", "b"]


def test_of_several_queues_with_one_priority_the_oldest_task_serves_first(db: psycopg.Connection) -> None:
    put(db, "b")
    put(db, "a")
    assert [rows(db, TAKE_MANY, ["a", "b"], 1)[0][0] for _ in range(2)] == ["b", "a"]


def test_a_position_for_each_queue(db: psycopg.Connection) -> None:
    a, b = [put(db, "a") for _ in range(2)], [put(db, "b") for _ in range(2)]
    query = "SELECT id FROM pgqueue.take_many('{a,b}', 9, after_priority => '{0,null}', after_id => %s)"
    assert sorted(column(db, query, [a[0], None])) == [a[1], *b]


def test_take_many_makes_ready_what_is_due_in_all_of_them(db: psycopg.Connection) -> None:
    due = {put(db, name, delay="0.02 s") for name in ("a", "b")}
    eventually(lambda: all(state(db, id) == "ready" for id in due))
    assert {id for _, id in rows(db, TAKE_MANY, ["a", "b"], 9)} == due


@pytest.mark.parametrize("n", [0, -1, None])
def test_pq002_for_taking_fewer_than_one(db: psycopg.Connection, n: int | None) -> None:
    with pytest.raises(psycopg.DatabaseError, match="n must be a whole number from 1, not") as raised:
        db.execute("SELECT * FROM pgqueue.take_many('{q}', %s::int)", [n])
    assert raised.value.sqlstate == "PQ002"


# --- attempts


def test_attempts_count_what_came_back_and_not_takes(db: psycopg.Connection) -> None:
    id = put(db, "q", ttr="1 h")
    attempts = "SELECT attempts FROM pgqueue.tasks WHERE id = %s"
    _, token = take(db, "q")
    db.execute("SELECT pgqueue.release(%s, %s)", [id, token])
    assert value(db, attempts, id) == 0
    _, token = take(db, "q")
    db.execute("SELECT pgqueue.release(%s, %s, error => 'failed')", [id, token])
    assert row(db, "SELECT attempts, error FROM pgqueue.tasks WHERE id = %s", id) == (1, "failed")
    assert value(db, "SELECT attempts FROM pgqueue.take('q')") == 1
    pass_time(db, "1 h")
    assert state(db, id) == "ready"
    assert value(db, "SELECT attempts FROM pgqueue.take('q')") == 2
    assert value(db, "SELECT error FROM pgqueue.tasks WHERE id = %s", id) == "the time to run was over"


# --- pop


def test_a_pop_is_exactly_once_in_the_callers_transaction(db: psycopg.Connection, connect: Connect) -> None:
    id = put(db, "q", "work")
    caller = connect(autocommit=False)
    assert rows(caller, "SELECT id, priority, attempts, data FROM pgqueue.pop('q')") == [(id, 0, 0, "work")]
    assert rows(db, "SELECT * FROM pgqueue.take('q')") == rows(db, "SELECT * FROM pgqueue.pop('q')") == []
    caller.rollback()
    assert rows(caller, "SELECT id FROM pgqueue.pop('q')") == [(id,)]
    caller.commit()
    assert state(db, id) is None


def test_a_pop_takes_n_in_order_and_nobody_elses(db: psycopg.Connection) -> None:
    ids = [put(db, "q", priority=-i) for i in range(5)]
    assert take(db, "q")[0] == ids[4]
    assert column(db, "SELECT id FROM pgqueue.pop('q', 2)") == [ids[3], ids[2]]
    assert column(db, "SELECT id FROM pgqueue.pop('q', 9)") == [ids[1], ids[0]]
    assert (
        column(db, "SELECT id FROM pgqueue.pop('q', 9)") == column(db, "SELECT id FROM pgqueue.pop('nobody''s')") == []
    )


def test_a_pop_takes_what_is_due(db: psycopg.Connection) -> None:
    overdue = put(db, "q", ttr="0.02 s")
    take(db, "q")
    delayed = put(db, "q", delay="0.02 s")
    eventually(lambda: state(db, delayed) == state(db, overdue) == "ready")
    assert column(db, "SELECT id FROM pgqueue.pop('q', 2)") == [overdue, delayed]


def test_a_popped_task_opens_no_session(db: psycopg.Connection) -> None:
    put(db, "q")
    assert len(rows(db, "SELECT * FROM pgqueue.pop('q')")) == 1
    assert rows(db, "SELECT * FROM pgqueue.sessions") == []


def test_claims_at_both_isolation_levels_share_the_tasks(db: psycopg.Connection, connect: Connect) -> None:
    """No task is claimed twice, and the only error is the one that a transaction at REPEATABLE READ has to expect."""
    ids = set(value(db, "SELECT pgqueue.put_many('q', (SELECT jsonb_agg(i) FROM generate_series(1, 600) i))"))
    claimed: list[int] = []
    deadline = time.monotonic() + 60

    def work(number: int) -> None:
        conn, listener = connect(), connect()
        session = value(listener, "SELECT pgqueue.open_session()")
        level = "READ COMMITTED" if number % 2 else "REPEATABLE READ"
        call = ("take('q'" if number < 2 else "take_many('{q}', 5") + ", session => %s, new_token => %s)"
        while len(claimed) < len(ids) and time.monotonic() < deadline:
            try:
                with conn.transaction():
                    conn.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
                    found = rows(conn, f"SELECT id, token FROM pgqueue.{call}", session, random.getrandbits(62))
            except psycopg.errors.SerializationFailure:
                continue
            claimed.extend(id for id, _ in found)
            for id, token in found[::2]:
                assert value(conn, "SELECT state FROM pgqueue.ack(%s, %s)", id, token) == "done"

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert len(claimed) == len(ids)
    assert set(claimed) == ids


# --- redelivered

TAKES = {
    "take": "SELECT redelivered FROM pgqueue.take('q')",
    "take_many": "SELECT redelivered FROM pgqueue.take_many('{q}', 5)",
    "take_or_listen": "SELECT redelivered FROM pgqueue.take_or_listen('{q}')",
    "take_id": "SELECT redelivered FROM pgqueue.take_id((SELECT min(id) FROM pgqueue.task))",
}


@pytest.mark.parametrize("lane", [None, "a"])
@pytest.mark.parametrize("how", TAKES)
def test_a_take_tells_of_a_take_before(db: psycopg.Connection, how: str, lane: str | None) -> None:
    put(db, "q", lane=lane)
    assert rows(db, TAKES[how]) == [(False,)]
    db.execute("SELECT pgqueue.release(task_id) FROM pgqueue.take")
    assert rows(db, TAKES[how]) == [(True,)]


ENDS = {
    "release": "SELECT pgqueue.release(%(id)s, %(token)s)",
    "a failure": "SELECT pgqueue.release(%(id)s, %(token)s, error => 'x')",
    "bury": "SELECT pgqueue.bury(%(id)s, %(token)s), pgqueue.kick('q')",
    "fail": "SELECT pgqueue.fail(%(id)s, %(token)s, error => 'x', delay => '0')",
    "requeue": "SELECT pgqueue.requeue(%(id)s, %(token)s)",
}


@pytest.mark.parametrize("end", ENDS)
def test_ends_of_a_take_after_which_its_task_is_redelivered(db: psycopg.Connection, end: str) -> None:
    put(db, "q")
    id, token = take(db, "q")
    db.execute(ENDS[end], {"id": id, "token": token})
    assert rows(db, TAKES["take"]) == [(True,)]


def test_a_task_whose_deadline_passed_is_redelivered(db: psycopg.Connection) -> None:
    put(db, "q", ttr="1 min")
    take(db, "q")
    pass_time(db, "2 min")
    assert rows(db, TAKES["take"]) == [(True,)]


@pytest.mark.parametrize("limit", [None, 5])
def test_the_tasks_of_a_dead_taker_are_redelivered(db: psycopg.Connection, connect: Connect, limit: int | None) -> None:
    """Also where their death charges no attempt and cannot bury them."""
    db.execute("SELECT pgqueue.create_queue('q', max_takes => %s)", [limit])
    for _ in range(3):
        put(db, "q")
    dying = connect()
    dying.execute("SELECT pgqueue.open_session(grace => '0')")
    assert len(rows(dying, "SELECT FROM pgqueue.take_many('{q}', 2)")) == 2
    die(dying, db)
    db.execute("SELECT pgqueue.sweep()")
    found = rows(db, "SELECT redelivered, attempts FROM pgqueue.take_many('{q}', 5)")
    assert found == [(True, 0), (True, 0), (False, 0)]


@pytest.mark.parametrize("call", ["release_many(ARRAY [{0}], ARRAY [{1}])", "release_all('q')", "close_session()"])
def test_ends_of_a_take_that_leave_no_trace(db: psycopg.Connection, call: str) -> None:
    put(db, "q")
    id, token = take(db, "q")
    db.execute(f"SELECT pgqueue.{call.format(id, token)}")
    assert rows(db, TAKES["take"]) == [(False,)]
