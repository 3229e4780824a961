"""The connections in front of a pool: what the pool promises holds for them too."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import psycopg
import pytest
from eventually import eventually, soon

import pgqueue
from pgqueue._engine.lending import Lending
from pgqueue._engine.own import OwnConn
from pgqueue._engine.pools import Pool

pytestmark = pytest.mark.once


async def answer(result: Any) -> Any:
    """What a method of the client's engine returns, in either shell."""
    return await result if inspect.isawaitable(result) else result


def lending(client: pgqueue.Client, pool: Pool) -> Lending:
    return Lending(client.shell.connections, pool)


def give_back(lending: Lending, *conns: OwnConn) -> None:
    """As the end of a call."""
    lending.lent += conns
    lending.keep()


def test_two_threads_share_one_connection_fairly(blocking):
    """A thread that returns a connection and comes again at once does not keep it from one that waits."""
    client = blocking(pool_size=1, connect_timeout=20)
    client.queue("q").put(0)
    done, over = [0] * 8, threading.Event()

    def work(me: int) -> None:
        while not over.is_set():
            client.queue("q").put(me)
            done[me] += 1

    threads = [threading.Thread(target=work, args=[me]) for me in range(8)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: min(done) >= 50)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert max(done) < 4 * min(done)


def pids(db: psycopg.Connection) -> set[int]:
    found = db.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgqueue'"
    )
    return {pid for (pid,) in found}


async def test_a_drained_pool_connects_anew(shell, db):
    client = shell.client(pool_size=1)
    queue = client.queue("q")
    await queue.put(1)
    before = pids(db)
    await answer(client.shell.connections._pools[False].drain())
    await queue.put(2)
    await soon(lambda: pids(db) and not pids(db) & before)


async def test_a_connection_that_is_out_while_the_pool_is_drained_is_not_used_again(awaiting, db):
    client = awaiting(pool_size=2)
    await client.queue("q").put(1)
    pool = client.shell.connections._pools[False]
    out = await pool.lend(None)
    pid = out.info.backend_pid
    await pool.drain()
    lent = [out]
    pool.front.keep(lent)
    assert lent == [out]
    await pool.putconn(out)
    await client.queue("q").put(2)
    await soon(lambda: pid not in pids(db))


def test_the_connection_of_a_call_is_in_front_after_it(blocking):
    """The pool is asked only the first time: in the main thread that costs a start of another thread."""
    queue = (client := blocking()).queue("q")
    queue.put(0)
    pool = client.shell.connections._pools[False]
    asked = pool.get_stats()["requests_num"]
    for _ in range(3):
        queue.put(1)
        queue.put_many([2, 3])
        assert len(pool.front._free) == 1
    assert pool.get_stats()["requests_num"] == asked


async def test_what_idles_in_front_is_closed_when_the_pool_shrinks(shell, db):
    client = shell.client(pool_size=1)
    await client.queue("q").put(1)
    pool = client.shell.connections._pools[False]
    await soon(lambda: len(pids(db)) == 1)  # the connection of the check has ended
    for _ in range(2):  # as the pool does every max_idle seconds: what was used since the last time stays
        assert len(pids(db)) == 1
        await answer(pool._shrink_pool())
    await soon(lambda: not pids(db))
    await client.queue("q").put(2)


async def test_close_closes_what_is_in_front(shell, db):
    client = shell.client()
    await client.queue("q").put(1)
    await client.queue("q").take(0)
    await soon(lambda: len(pids(db)) == 2)
    pools = list(client.shell.connections._pools.values())
    await client.close()
    await soon(lambda: not pids(db))
    assert not any(pool.front._free for pool in pools)


def test_a_connection_that_comes_back_after_the_close_is_closed(blocking, db):
    client = blocking()
    client.queue("q").put(1)
    pool = client.shell.connections._pools[False]
    mine = lending(client, pool)
    conn = pool.lend(mine, None)
    client.close()
    give_back(mine)
    eventually(lambda: not pids(db))
    assert conn.closed


def test_a_caller_that_begins_to_wait_gets_the_connection_that_becomes_free(blocking):
    """The two orders in which a caller that waits and one that returns a connection can see each other."""
    client = blocking(pool_size=1)
    client.queue("q").put(1)
    pool = client.shell.connections._pools[False]
    mine = lending(client, pool)
    conn = pool.lend(mine, None)
    with pool.front.waiting():  # announced, not yet in the pool's queue
        give_back(mine)
        assert pool.front.take() is None
        assert pool.getconn(5) is conn
    give_back(mine, conn)
    with pool.front.waiting():  # returned before it was announced
        assert pool.front.take() is conn
    give_back(mine, conn)
