"""Results and progress are announced to clients that wait, and to no others: 3_moves/announce.sql, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from statements import notifications, put, row, rows, take, value

Connect = Callable[..., psycopg.Connection]
FINISH = "SELECT state FROM pgqueue.finish(%s, %s, result => '1')"
LOOK = "SELECT state, drained FROM pgqueue.await_outcome(%s)"


@pytest.fixture
def task(db: psycopg.Connection) -> tuple[int, int]:
    put(db, "q")
    return take(db, "q")


def listen(conn: psycopg.Connection, *ids: int) -> None:
    """As a listener does: LISTEN and await_ends in one message."""
    listens = "; ".join(f'LISTEN "pgqueue:task:{id}"' for id in ids)
    conn.execute(f"{listens}; SELECT pgqueue.await_ends('{{{','.join(map(str, ids))}}}')")


def heard(ear: psycopg.Connection, db: psycopg.Connection) -> list[int]:
    return [int(channel.rpartition(":")[2]) for channel in notifications(ear, db)]


def test_nothing_is_announced_where_no_client_waits(
    db: psycopg.Connection, connect: Connect, task: tuple[int, int]
) -> None:
    ear = connect()
    ear.execute(f'LISTEN "pgqueue:task:{task[0]}"')
    db.execute("SELECT pgqueue.progress(%s, %s, value => '1')", task)
    db.execute(FINISH, task)
    assert heard(ear, db) == []


def test_a_waiter_that_comes_while_a_silent_call_is_under_way_looks_again(
    db: psycopg.Connection, connect: Connect, task: tuple[int, int]
) -> None:
    """S3 before W1: the drain fails until the settler has committed, and the look after it sees the result."""
    settler, ear, other = connect(), connect(), connect()
    with settler.transaction():
        settler.execute(FINISH, task)
        listen(ear, task[0])
        assert row(other, LOOK, task[0]) == ("taken", False)
        assert row(other, LOOK, task[0]) == ("taken", False)
    assert row(other, LOOK, task[0]) == ("done", True)
    assert heard(ear, db) == []


def test_a_waiter_that_came_before_is_told(db: psycopg.Connection, connect: Connect, task: tuple[int, int]) -> None:
    """W1 before S1: the settler notifies, whatever the waiter saw."""
    settler, ear, other = connect(), connect(), connect()
    listen(ear, task[0])
    with settler.transaction():
        settler.execute(FINISH, task)
        assert row(other, LOOK, task[0]) == ("taken", True)
    assert heard(ear, db) == [task[0]]


def test_a_settler_with_an_old_snapshot_tells_as_well(
    db: psycopg.Connection, connect: Connect, task: tuple[int, int]
) -> None:
    settler, ear = connect(), connect()
    with settler.transaction():
        settler.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        settler.execute("SELECT")
        listen(ear, task[0])
        settler.execute(FINISH, task)
    assert heard(ear, db) == [task[0]]


def test_a_silent_call_that_is_rolled_back_leaves_nothing_to_wait_for(
    db: psycopg.Connection, connect: Connect, task: tuple[int, int]
) -> None:
    ear = connect()
    with db.transaction(force_rollback=True):
        db.execute(FINISH, task)
        listen(ear, task[0])
    assert row(db, LOOK, task[0]) == ("taken", True)
    db.execute(FINISH, task)
    assert heard(ear, db) == [task[0]]


def test_a_connection_counts_each_task_of_a_bucket(db: psycopg.Connection, connect: Connect) -> None:
    put(db, "q")
    put(db, "q")
    first, second = take(db, "q"), take(db, "q")
    assert len({value(db, "SELECT pgqueue._task_bucket(%s)", id) for id, _ in (first, second)}) == 1
    ear = connect()
    listen(ear, first[0], second[0])
    ear.execute("SELECT pgqueue.leave_ends(%s)", [[first[0]]])
    db.execute(FINISH, second)
    assert heard(ear, db) == [second[0]]
    ear.execute("SELECT pgqueue.leave_ends(%s)", [[second[0]]])
    db.execute(FINISH, first)
    assert heard(ear, db) == []


def test_a_batch_tells_only_in_the_buckets_that_are_awaited(db: psycopg.Connection, connect: Connect) -> None:
    db.execute("SELECT pgqueue.put_many('q', (SELECT jsonb_agg(i) FROM generate_series(1, 200) i))")
    claimed = rows(db, "SELECT id, token FROM pgqueue.take_many('{q}', 200)")
    ids, ear = [id for id, _ in claimed], connect()
    for id in ids:
        ear.execute(f'LISTEN "pgqueue:task:{id}"')
    ear.execute("SELECT pgqueue.await_ends(%s)", [[ids[100]]])
    db.execute(
        "SELECT pgqueue.finish_many(%s, %s, results => (SELECT jsonb_agg(i) FROM generate_series(1, 200) i))",
        [ids, [token for _, token in claimed]],
    )
    told = heard(ear, db)
    assert ids[100] in told
    assert sorted(told) == [id for id in ids if id >> 6 == ids[100] >> 6]


def test_a_connection_that_waits_tells_itself(db: psycopg.Connection, task: tuple[int, int]) -> None:
    """Its own lock is invisible to its probe."""
    listen(db, task[0])
    db.execute(FINISH, task)
    assert heard(db, db) == [task[0]]


@pytest.fixture
def held(db: psycopg.Connection, connect: Connect, task: tuple[int, int]) -> int:
    """A task whose bucket a stranger's probe holds."""
    stranger = connect()
    bucket = value(db, "SELECT pgqueue._task_bucket(%s)", task[0])
    stranger.execute("SELECT pg_advisory_lock(pgqueue._awaiting_lock(), %s)", [bucket])
    return task[0]


@pytest.mark.slow
def test_awaiting_waits_a_second_at_most_and_leaves_no_lock(db: psycopg.Connection, held: int) -> None:
    before: Any = held - 64 if held > 64 else held + 64  # of another bucket
    with pytest.raises(psycopg.Error) as caught:
        db.execute("SELECT pgqueue.await_ends(%s)", [[before, held]])
    assert caught.value.sqlstate == "PQ007"
    mine = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND classid = %s"
    assert value(db, mine, value(db, "SELECT pgqueue._awaiting_lock()")) == 0
