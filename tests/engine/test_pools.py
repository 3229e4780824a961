"""The pools: idle connections that broke, a server that is away, and how many connections a process has."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading

import pytest
from eventually import Stopwatch, eventually, soon, soon_enough
from hurrying import hurry
from outages import away
from proxies import proxy
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from statements import value
from steady import steady

import pgqueue
from pgqueue import ServerError

pytestmark = pytest.mark.once

IN_POOLS = "pg_stat_activity WHERE datname = current_database() AND application_name = 'pgqueue'"
OF_PGQUEUE = "pg_stat_activity WHERE datname = current_database() AND starts_with(application_name, 'pgqueue')"
SIZE = 5


async def fill(client, db, connect):
    """Make SIZE idle connections in each of the two pools: so many calls wait for a lock at the same time."""
    queue = client.queue("q")
    await queue.put(0)
    assert await queue.take(0) is not None
    with connect(autocommit=False) as other:
        other.execute("LOCK TABLE pgqueue.task IN EXCLUSIVE MODE")
        calls = [asyncio.ensure_future(call) for _ in range(SIZE) for call in (queue.put(1), queue.take(0))]
        await soon(lambda: value(db, f"SELECT count(*) FROM {IN_POOLS} AND wait_event_type = 'Lock'") == 2 * SIZE)
        other.rollback()
    await asyncio.gather(*calls)


@contextlib.contextmanager
def gone(pg_server, dsn):
    """The database is away, and the connections to it have ended."""
    name = conninfo_to_dict(dsn)["dbname"]
    with away(pg_server, dsn), pg_server.connect() as admin:
        eventually(lambda: value(admin, "SELECT count(*) FROM pg_stat_activity WHERE datname = %s", name) == 0)
        yield


@pytest.mark.parametrize("whose", [IN_POOLS, OF_PGQUEUE], ids=["pools", "pools and listener"])
async def test_ten_idle_connections_that_broke_cost_the_next_calls_less_than_a_second(shell, dsn, db, connect, whose):
    client = shell.client(pool_size=SIZE, share_commits=False)  # so that as many puts need as many connections
    queue = client.queue("q")

    async def attempt() -> float:
        await fill(client, db, connect)
        assert value(db, f"SELECT count(pg_terminate_backend(pid)) FROM {whose}") >= 2 * SIZE
        await soon(lambda: value(db, f"SELECT count(*) FROM {IN_POOLS}") == 0)
        took = Stopwatch()
        await queue.put(2)
        put = took()
        assert await queue.take(0) is not None
        return max(put, took() - put)

    await soon_enough(attempt, within=1.0)


@pytest.mark.slow
async def test_a_call_that_begins_after_the_server_is_back_succeeds_within_a_second(shell, pg_server, dsn):
    client = shell.client()
    queue = client.queue("q")
    await queue.put(0)
    await queue.take(0)

    async def attempt() -> float:
        with gone(pg_server, dsn):
            calls = [asyncio.ensure_future(queue.put(1)) for _ in range(20)]  # they wait for the server
            await asyncio.sleep(2)
        with steady(dsn) as took:
            await queue.put(2)
            put = took()
            assert await queue.take(0) is not None
            back = max(put, took() - put)
            await asyncio.gather(*calls)
            assert took() < 5
        return back

    await soon_enough(attempt, within=1.0)


@pytest.mark.slow
async def test_the_servers_own_words_are_in_the_error(shell, pg_server, dsn):
    client = shell.client()
    queue = client.queue("q")
    await queue.put(0)
    hurry(client, connect_timeout=0.5)
    with gone(pg_server, dsn):
        with pytest.raises(ServerError, match="is not currently accepting connections"):
            await queue.put(1)
        with pytest.raises(ServerError, match="is not currently accepting connections"):
            await queue.take(0)


async def test_a_pool_that_is_used_up_says_so(shell, db, connect):
    client = shell.client(pool_size=1)
    queue = client.queue("q")
    await queue.put(0)
    hurry(client, connect_timeout=0.5)
    other = connect(autocommit=False)
    other.execute("LOCK TABLE pgqueue.task IN EXCLUSIVE MODE")
    first = asyncio.ensure_future(queue.put(1))
    await soon(lambda: value(db, f"SELECT count(*) FROM {IN_POOLS} AND wait_event_type = 'Lock'") == 1)
    with pytest.raises(ServerError, match=r"none of the 1 connections.*pool_size"):
        await queue.put(2)
    other.rollback()
    await first


@pytest.mark.slow
async def test_a_server_that_is_slow_to_connect_is_not_taken_for_a_pool_that_is_used_up(shell, dsn):
    with proxy(dsn) as network:
        client = shell.client(network.dsn)
        queue = client.queue("q")
        await queue.put(0)
        hurry(client, connect_timeout=0.5)
        with network.black_hole():
            network.forget()  # and not the server: its news might not pass the proxy in time
            with pytest.raises(ServerError, match=r"cannot connect .*: no connection was made"):
                await queue.put(1)


@pytest.mark.slow
def test_fifty_threads_use_no_more_than_twelve_connections(blocking, db):
    client = blocking()
    queue = client.queue("q")
    most, over = [0], threading.Event()

    def watch():
        while not over.wait(0.01):
            most[0] = max(most[0], value(db, f"SELECT count(*) FROM {OF_PGQUEUE}"))

    def work():
        for number in range(20):
            queue.put(number)
            if task := queue.take(0):  # None: every task was locked by another taker
                task.ack()

    watching = threading.Thread(target=watch)
    watching.start()
    threads = [threading.Thread(target=work) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    watching.join()
    assert 2 <= most[0] <= 12


@pytest.mark.slow
def test_threads_that_meet_an_absent_server_wait_once(dsn):
    """Otherwise the check of the first connection would run for one thread after another."""
    absent = make_conninfo(dsn, dbname="pgqueue_test_absent")
    with proxy(absent) as network, pgqueue.Client(network.dsn, connect_timeout=2) as client, network.black_hole():
        errors: list[BaseException] = []

        def call():
            try:
                client.queue("q").put(1)
            except ServerError as error:
                errors.append(error)

        threads = [threading.Thread(target=call) for _ in range(20)]
        with steady(dsn) as took:
            for thread in threads:
                thread.start()
            eventually(lambda: len(errors) == 20)
            assert took() < 5
        for thread in threads:
            thread.join()


NEVER_CLOSED = """
import sys
from pgqueue import Client
client = Client(sys.argv[1])
client.queue("q").put(1)
assert client.queue("q").take(30).data == 1
"""


@pytest.mark.slow
def test_a_program_that_does_not_close_its_client_ends_without_a_word(dsn):
    """Else, from Python 3.13 on, the pool's end waits for five seconds for each of its threads, and says so."""
    done = subprocess.run([sys.executable, "-c", NEVER_CLOSED, dsn], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
