"""put, ack and pop with conn=: one statement in the caller's transaction, whatever the connection is like.

Not commit, not rollback, not a transaction block: one around the caller's first statement would be the outermost, and
commit the task though the caller rolls back.
"""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row, namedtuple_row
from statements import column, rows, state
from steady import steady

import pgqueue

TASKS = "SELECT data FROM pgqueue.tasks ORDER BY id"


def kinds(client_cursor: type, server_cursor: type) -> dict[str, dict[str, object]]:
    return {
        "plain": {},
        "dict rows": {"row_factory": dict_row},
        "named tuples": {"row_factory": namedtuple_row},
        "client cursor": {"cursor_factory": client_cursor},
        "raw cursor": {"cursor_factory": server_cursor},
        "never prepares": {"prepare_threshold": None},
        "prepares at once": {"prepare_threshold": 0},
    }


BLOCKING = kinds(psycopg.ClientCursor, psycopg.RawCursor)
AWAITING = kinds(psycopg.AsyncClientCursor, psycopg.AsyncRawCursor)


@pytest.fixture(params=BLOCKING)
async def conn(request, shell):
    return await shell.connection(**(AWAITING if shell.name == "async" else BLOCKING)[request.param])


async def test_the_life_of_a_task_in_transactions(queue, conn, db):
    """Each verb as the very first statement; nothing of it before the commit, and nothing left after a rollback."""
    for end in (conn.rollback, conn.commit):
        put = await queue.put({"n": 1}, priority=3, delay=0, ttr=60, conn=conn)
        assert conn.info.transaction_status == TransactionStatus.INTRANS
        assert put.state == "ready"
        assert rows(db, TASKS) == []
        await end()
    task = await queue.take(0)
    assert (task.data, task.priority) == ({"n": 1}, 3)
    for verb in (task.touch, task.release, task.bury, task.ack):
        settled = await verb(conn=conn)
        assert settled.state in ("taken", "ready", "buried", "done")
        assert state(db, task.id) == "taken"
        await conn.rollback()
        assert state(db, task.id) == "taken"
    await task.ack(conn=conn)
    await conn.commit()
    assert rows(db, TASKS) == []


async def test_many_in_one_transaction(queue, conn, db):
    ids = await queue.put_many(range(2500), conn=conn)
    assert rows(db, TASKS) == []
    await conn.commit()
    assert column(db, "SELECT id FROM pgqueue.tasks ORDER BY data::int") == ids
    tasks = await queue.take_many(3)
    await queue.ack_many(tasks[:2], conn=conn)
    await queue.release_many(tasks[2:], conn=conn)
    assert column(db, "SELECT count(*) FROM pgqueue.take") == [3]
    await conn.commit()
    assert column(db, "SELECT count(*) FROM pgqueue.take") == [0]
    assert [task.id for task in await queue.pop(2, conn=conn)] == ids[2:4]
    await queue.delete(ids[4], conn=conn)
    await conn.rollback()
    assert column(db, "SELECT count(*) FROM pgqueue.tasks") == [2498]


async def test_in_autocommit_each_call_counts_at_once(shell, queue, db):
    conn = await shell.connection(autocommit=True)
    await queue.put("x", conn=conn)
    assert rows(db, TASKS) == [("x",)]
    assert conn.info.transaction_status == TransactionStatus.IDLE
    assert [task.data for task in await queue.pop(conn=conn)] == ["x"]
    assert rows(db, TASKS) == []


def test_in_blocks_and_savepoints_of_the_callers(blocking, dsn, db):
    queue = blocking().queue("q")
    with psycopg.connect(dsn) as conn:
        with conn.transaction():
            queue.put("kept", conn=conn)
            with conn.transaction(force_rollback=True):
                queue.put("gone", conn=conn)
            with pytest.raises(pgqueue.TaskNotFound):
                queue.ack(4711, conn=conn)
            queue.put("kept too", conn=conn)
        with conn.transaction(force_rollback=True):
            queue.put("gone", conn=conn)
    assert rows(db, TASKS) == [("kept",), ("kept too",)]


async def test_in_blocks_of_the_callers_awaiting(awaiting, dsn, db):
    queue = awaiting().queue("q")
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        async with conn.transaction():
            await queue.put("kept", conn=conn)
            async with conn.transaction(force_rollback=True):
                await queue.put("gone", conn=conn)
        async with conn.transaction(force_rollback=True):
            await queue.put("gone", conn=conn)
    assert rows(db, TASKS) == [("kept",)]


async def test_a_bad_argument_leaves_the_transaction_usable(shell, queue, db):
    conn = await shell.connection()
    await queue.put("kept", conn=conn)
    for wrong in ({"data": {1}}, {"data": 1, "delay": -1}, {"data": 1, "ttr": 0}, {"data": 1, "priority": 2**31}):
        with pytest.raises(ValueError, match=next(key for key in reversed(wrong)).replace("data", "set")):
            await queue.put(**wrong, conn=conn)
    await conn.commit()
    assert rows(db, TASKS) == [("kept",)]


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_with_an_old_snapshot(shell, client, queue, db, isolation):
    """A put and an ack count; a pop, which has to see what others took meanwhile, is refused."""
    await queue.put("taken")
    task = await queue.take(0)
    conn = await shell.connection()
    await conn.execute(f"BEGIN ISOLATION LEVEL {isolation}")
    await conn.execute("SELECT FROM pgqueue.tasks")
    waiting = asyncio.ensure_future(queue.take(10))
    await queue.put("put", conn=conn)
    await task.ack(conn=conn)
    await conn.commit()
    assert (await waiting).data == "put"
    assert rows(db, TASKS) == [("put",)]
    await conn.execute(f"BEGIN ISOLATION LEVEL {isolation}")
    with pytest.raises(ValueError, match="READ COMMITTED"):
        await queue.pop(conn=conn)
    await conn.rollback()


async def test_a_first_put_keeps_no_other_producer_waiting(shell, queue, dsn, db):
    """The queue is made in a transaction of ours, not in the caller's, which may be long."""
    conn = await shell.connection()
    await queue.put("mine", conn=conn)
    with steady(dsn) as watch:
        await shell.client().queue("q").put("another's")
        assert watch() < 1
    await conn.rollback()
    assert rows(db, TASKS) == [("another's",)]


async def test_a_callers_transaction_that_failed_says_so(shell, queue):
    conn = await shell.connection()
    with pytest.raises(psycopg.errors.DivisionByZero):
        await conn.execute("SELECT 1/0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        await queue.put("x", conn=conn)
    await conn.rollback()


async def test_a_callers_connection_that_broke_is_a_lost_connection(shell, queue, db):
    conn = await shell.connection()
    await queue.put("x", conn=conn)
    db.execute("SELECT pg_terminate_backend(%s::int)", [conn.info.backend_pid])
    with pytest.raises(pgqueue.ConnectionLost):
        await queue.put("x", conn=conn)
    assert rows(db, TASKS) == []


@pytest.mark.parametrize("kind", ["other shell", "dsn", "cursor", "client"])
async def test_what_is_no_connection_is_a_type_error(shell, client, queue, db, dsn, kind):
    if kind == "other shell":
        wrong = db if shell.name == "async" else await psycopg.AsyncConnection.connect(dsn)
    else:
        wrong = {"dsn": dsn, "cursor": db.cursor(), "client": client}[kind]
    calls = [
        lambda: queue.put(1, conn=wrong),
        lambda: queue.put(1, lane="a", conn=wrong),
        lambda: queue.put(1, after=1, conn=wrong),
        lambda: queue.put_many([1], conn=wrong),
        lambda: client.put_graph([pgqueue.Put("q", 1)], conn=wrong),
        lambda: queue.ack(1, put=[pgqueue.Put("q", 1)], conn=wrong),
        lambda: queue.ack(1, conn=wrong),
        lambda: queue.pop(conn=wrong),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="conn must be a psycopg"):
            await call()
    if isinstance(wrong, psycopg.AsyncConnection):
        await wrong.close()
    assert rows(db, "SELECT name FROM pgqueue.queues") == []  # nothing was sent
