"""A cancellation at each await of a call. Afterwards the client works, and nothing is left behind: no connection that
no call has, and no task that no caller has."""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

import psycopg
import pytest
from eventually import soon
from psycopg.conninfo import make_conninfo
from statements import value

import pgqueue
from pgqueue._engine.bounded import BoundedAsyncConnection

SIZE = 2  # connections of each pool
LEFT = "SELECT count(*) FROM pgqueue.take"
HELD = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'interrupted'"

pytestmark = pytest.mark.once


async def put_take_ack(queue: Any) -> None:
    await queue.put("after")
    while (task := await queue.take(30)).data != "after":
        await task.ack()
    await task.ack()


ASYNC: dict[str, Callable[[Any], Awaitable[object]]] = {
    "put": lambda queue: queue.put(0),
    "take": lambda queue: queue.take(0),
    "put_many": lambda queue: queue.put_many(range(10)),
    "put_take_ack": put_take_ack,
}


@types.coroutine
def cancelled_at(work: Awaitable[object], n: int, late: bool) -> Generator[Any, Any, bool]:
    """Await `work`, cancelled at its n-th wait. late: when what it waits for has come. Returns whether it ended before.

    As Task.cancel() does it: through the future, or in place of its result.
    """
    steps, task = work.__await__(), asyncio.current_task()
    assert task is not None
    answer, error = None, None
    for at in itertools.count():
        try:
            awaited = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            return at <= n
        if at == n and late and awaited is not None:
            awaited.add_done_callback(lambda done: task.cancel())
        elif at == n:
            task.cancel()
        answer, error = None, None
        try:
            answer = yield awaited
        except BaseException as raised:
            error = raised
    return False


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["known", "fresh"])
@pytest.mark.parametrize("call", [*list(ASYNC)[:-1], pytest.param(list(ASYNC)[-1], marks=pytest.mark.slow)])
async def test_a_cancellation_at_each_await(awaiting, dsn, db, call, fresh, late):
    """fresh: the client has not connected before."""

    def made() -> pgqueue.AsyncClient:
        return pgqueue.AsyncClient(make_conninfo(dsn, application_name="interrupted"), pool_size=SIZE, poll=None)

    client = made()
    await put_take_ack(client.queue("q"))
    for n in itertools.count():
        if fresh:
            await client.close()
            client = made()
        queue = client.queue("q")
        work = asyncio.create_task(_awaited(cancelled_at(ASYNC[call](queue), n, late)))
        await asyncio.wait([work])
        ended = not work.cancelled() and work.result()
        async with asyncio.timeout(30):
            await asyncio.gather(*(put_take_ack(client.queue(f"q{i}")) for i in range(SIZE + 1)))
            await soon(lambda: value(db, LEFT) == 0)
        assert value(db, HELD) <= 2 * SIZE
        await client.queue("q").truncate()
        if ended:
            break
    print(f"cancelled at {n} awaits of {call}")
    assert n > 0
    await client.close()
    await soon(lambda: value(db, HELD) == 0)


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


def cancel(tasks: list[asyncio.Task[Any]], done: object) -> None:
    for task in tasks:
        task.cancel()


async def test_a_connection_that_comes_as_its_caller_is_cancelled_is_not_lost(awaiting):
    client = awaiting(pool_size=1, connect_timeout=2)
    queue = client.queue("q")
    await queue.put(0)
    pool = client.shell.connections._pools[False]
    for _ in range(3):
        conn = await pool.lend(5)
        waiting = [asyncio.create_task(pool.lend(5)) for _ in range(2)]
        await soon(lambda: pool.get_stats().get("requests_waiting") == 2)
        returned = asyncio.create_task(pool.putconn(conn))
        returned.add_done_callback(partial(cancel, waiting))  # one has the connection, and has not gone on
        await asyncio.wait([returned, *waiting])
        assert all(one.cancelled() for one in waiting)
    assert (await queue.put(1)).state == "ready"


@pytest.mark.slow
async def test_an_interrupt_at_the_end_of_a_pipeline_writes_nothing(dsn):
    """The connection is closed, since a cancel of the statement would not end the pipeline. psycopg's generator, which
    has not sent the end of it, tries to do so as it is closed. An error that is written to stderr fails a test."""
    conn = await BoundedAsyncConnection.connect(dsn)

    async def interrupted():
        async with conn.pipeline() as pipeline:
            await conn.execute("SELECT pg_sleep(60)")
            ending = pipeline._exit_gen()
            next(ending)  # the first wait of the end; a cancellation seldom comes as early
            await conn.interrupted(ending)

    with pytest.raises(psycopg.OperationalError):  # by psycopg, which finds the connection closed
        await interrupted()
    assert conn.closed
