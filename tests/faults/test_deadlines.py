"""Every call on pgqueue's own connections ends within its call_timeout, and works again when the network does."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, eventually, soon
from hurrying import hurry
from outages import away
from proxies import Proxy, proxy
from steady import steady

import pgqueue
from pgqueue import ConnectionLost, migrate
from pgqueue._engine.bounded import ARRIVING
from pgqueue.embedded import EmbeddedServer
from pgqueue.errors import CallTimeout, LockLost, ServerError

TIMEOUT = 1.0  # call_timeout of the tests
SLACK = 0.5  # seconds for a busy machine
BACK = 2.0  # seconds after a black hole within which all calls work
ENDS = (ConnectionLost, ServerError)  # CallTimeout is a ConnectionLost

pytestmark = [pytest.mark.slow, pytest.mark.once]


@pytest.fixture
def network(dsn: str) -> Iterator[Proxy]:
    with proxy(dsn) as made:
        yield made


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "put": lambda client, task: client.queue("q").put(1),
    "put_many": lambda client, task: client.queue("q").put_many([1, 2]),
    "take": lambda client, task: client.queue("q").take(0),
    "take_many": lambda client, task: client.queue("q").take_many(3, 0),
    "ack": lambda client, task: task.ack(),
    "stats": lambda client, task: client.queue("q").stats(),
    "pop": lambda client, task: client.queue("q").pop(),
    "post": lambda client, task: client.post("c", "p"),
    "subscribe": lambda client, task: client.subscribe("c"),
    "status": lambda client, task: client.statuses.get("k"),
    "try_lock": lambda client, task: client.try_lock("l"),
    "identify": lambda client, task: client.identify(),
    "create_node": lambda client, task: client.nodes.create("/n", ephemeral=True),
}


@pytest.mark.parametrize("name", list(CALLS))
async def test_in_a_black_hole_each_call_ends_in_time_and_works_after_it(shell, dsn, network, name):
    client = shell.client(network.dsn, call_timeout=TIMEOUT)
    queue = client.queue("q")
    await queue.put("before")
    task = await queue.take(2)
    with network.black_hole(), steady(dsn) as took:
        with pytest.raises(ENDS):
            await CALLS[name](client, task)
        assert took() < TIMEOUT + SLACK
    with steady(dsn) as took:
        while True:
            try:
                await queue.put("after")
                if await queue.take(0.5) is not None:  # None: the pop of before has reached the server now
                    break
            except ENDS:
                assert took() < BACK
        assert took() < BACK


async def test_an_answer_that_keeps_arriving_and_does_not_end_ends_a_call_in_time(shell, dsn, network):
    """Before, each byte of it put the deadline off."""
    client = shell.client(network.dsn, call_timeout=TIMEOUT)
    queue = client.queue("q")
    await queue.put("before")
    task = await queue.take(2)
    network.drip()
    with steady(dsn) as took:
        with pytest.raises(ENDS):
            await task.ack()
        assert TIMEOUT < took() < ARRIVING * TIMEOUT + SLACK
    with steady(dsn) as took:
        await queue.put("after")
        assert await queue.take(5) is not None
        assert took() < ARRIVING * TIMEOUT + BACK  # the listener's connection too was found out


async def test_a_wait_ends_within_call_timeout_beyond_its_own_time(shell, dsn, network):
    client = shell.client(network.dsn, call_timeout=TIMEOUT)
    assert await client.queue("q").take(0) is None
    with network.black_hole(), steady(dsn) as took:
        with pytest.raises(ENDS):
            await client.queue("q").take(1.0)
        assert took() < 1.0 + TIMEOUT + SLACK


async def test_after_a_call_without_an_answer_both_pools_connect_anew(shell, dsn, network):
    """The connections on which packets were swallowed may stay silent for ever. One call finds that out, for all."""
    client = shell.client(network.dsn, call_timeout=TIMEOUT)
    queue = client.queue("q")
    await queue.put(1)
    task = await queue.take(1)
    network.swallow()
    network.mute()
    network.go_on()
    with pytest.raises(ConnectionLost):
        await queue.put(2)
    with steady(dsn) as took:
        await task.release()
        assert took() < TIMEOUT / 2


@pytest.mark.parametrize("after", [0.0, 0.3])
async def test_a_cancelled_call_ends_soon_in_a_black_hole(dsn, network, after):
    async with pgqueue.AsyncClient(network.dsn) as client:
        await client.queue("q").put(1)
        with network.black_hole():
            call = asyncio.create_task(client.queue("q").put(2))
            await asyncio.sleep(after)
            with steady(dsn) as took:
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                assert took() < 1.0 + SLACK
        await client.queue("q").put(3)


async def test_a_statement_that_waits_on_the_server_is_cancelled_there(shell, dsn, db, connect):
    client = shell.client(call_timeout=1.5)
    queue = client.queue("q")
    await queue.put(1)
    with connect(autocommit=False) as other:
        other.execute("LOCK TABLE pgqueue.task IN ACCESS EXCLUSIVE MODE")
        with steady(dsn) as took:
            with pytest.raises(CallTimeout, match="nothing was changed"):
                await queue.put(2)
            assert took() < 1.5 + SLACK
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%put(%'"
        assert db.execute(waiting).fetchone() == (0,)
        other.rollback()
    await queue.put(3)
    assert [task.data for task in await queue.take_many(5, 0)] == [1, 3]


async def test_a_slow_answer_is_waited_for(shell, connect):
    client = shell.client(call_timeout=10)
    queue = client.queue("q")
    await queue.put(1)
    other = connect(autocommit=False)
    other.execute("LOCK TABLE pgqueue.task IN ACCESS EXCLUSIVE MODE")
    timer = threading.Timer(0.7, other.rollback)
    timer.start()
    await queue.put(2)
    timer.join()
    assert [task.data for task in await queue.take_many(5, 0)] == [1, 2]


async def test_a_lock_is_lost_by_then_too(shell, dsn, network):
    client = shell.client(network.dsn, call_timeout=TIMEOUT)
    lock = await client.try_lock("l")
    with network.black_hole(), steady(dsn) as took:
        with pytest.raises(LockLost):
            await lock.check()
        assert took() < TIMEOUT + SLACK


async def test_no_deadline_if_so_asked(shell, connect):
    client = shell.client(call_timeout=None)
    queue = client.queue("q")
    await queue.put(1)
    other = connect(autocommit=False)
    other.execute("LOCK TABLE pgqueue.task IN ACCESS EXCLUSIVE MODE")
    call = asyncio.ensure_future(queue.put(2))
    await asyncio.sleep(0.5)
    assert not call.done()
    other.rollback()
    await call


async def test_close_does_not_hang_in_a_black_hole(shell, dsn, network):
    client = shell.client(network.dsn, call_timeout=TIMEOUT)
    await client.queue("q").put(1)
    await client.queue("q").take(1)
    with network.black_hole(), steady(dsn) as took:
        await client.close()
        assert took() < TIMEOUT + SLACK


def test_a_worker_goes_on_within_two_seconds_after_a_black_hole(network, connect, dsn):
    done: list[int] = []
    with pgqueue.Client(dsn) as producer, pgqueue.Client(network.dsn, call_timeout=TIMEOUT, poll=None) as client:
        worker = pgqueue.Worker(client, {"q": done.append})
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            producer.queue("q").put(1)
            eventually(lambda: done == [1])
            with network.black_hole():
                producer.queue("q").put(2)
                eventually(lambda: client.shell.core.running_listener.session is None)
                producer.queue("q").put(3)
            with steady(dsn) as took:
                eventually(lambda: {2, 3} <= set(done))
                assert took() < BACK + 0.75  # and the session's grace and a sweep, for what was taken before
        finally:
            worker.stop()
            thread.join(30)


async def test_what_needs_a_session_says_why_there_is_none(shell, pg_server, dsn):
    client = shell.client()
    await client.queue("q").take(0)
    hurry(client, connect_timeout=1)
    with away(pg_server, dsn):
        await soon(lambda: client.shell.core.running_listener.session is None)
        for call in (client.subscribe("c"), client.queue("q").take(0), client.try_lock("l")):
            with steady(pg_server.dsn("postgres")) as took:
                with pytest.raises(ServerError, match="not currently accepting connections"):
                    await call
                assert took() < 1.0 + SLACK


@pytest.fixture
def primary(own_bindir: Path | None) -> Iterator[str]:
    """The DSN of a server of the test's own, which may have standbys."""
    root = Path(tempfile.mkdtemp(prefix="pgqueue-primary-"))
    root.chmod(0o711)  # for the account that the server runs as
    settings = {"synchronous_commit": "on", "wal_level": "replica", "max_wal_senders": "1"}
    server = EmbeddedServer(root, durable=False, ephemeral=True, settings=settings, bindir=own_bindir).start()
    try:
        migrate.up(server.dsn())
        yield server.dsn()
    finally:
        server.stop()


def wait_for_a_standby(admin: psycopg.Connection) -> None:
    """From now on commits wait for a standby that does not exist."""
    admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    admin.execute("SELECT pg_reload_conf()")
    eventually(lambda: admin.execute("SHOW synchronous_standby_names").fetchone() == ("nobody",))


def test_a_commit_that_no_standby_has_is_not_reported_as_done(primary: str) -> None:
    """PostgreSQL answers the cancelling of such a commit with success and a warning."""
    with psycopg.connect(primary, autocommit=True) as admin, pgqueue.Client(primary, call_timeout=TIMEOUT) as client:
        wait_for_a_standby(admin)
        took = Stopwatch()
        with pytest.raises(CallTimeout, match="may have taken effect"):
            client.queue("q").put(1)
        assert took() < TIMEOUT + SLACK
        assert client.queue("q").stats()["ready"] == 1


def test_a_lock_is_released_although_its_notification_waits_for_another_commit(primary: str) -> None:
    """T1 commits with a notification and waits for a standby. H's release calls W, so its commit waits for T1's."""
    waiting = """SELECT wait_event FROM pg_stat_activity WHERE application_name = %s AND state = 'active'
                 AND clock_timestamp() - query_start > '0.1 s'"""  # longer than the listener waits for any other lock
    with (
        psycopg.connect(primary, autocommit=True) as admin,
        psycopg.connect(primary, autocommit=True, application_name="T1") as t1,
        pgqueue.Client(primary) as holder,
        pgqueue.Client(primary) as waiter,
        ThreadPoolExecutor(3) as threads,
    ):
        held = holder.try_lock("l")
        assert held is not None
        next_one = threads.submit(waiter.lock("l", timeout=30).__enter__)
        eventually(lambda: admin.execute("SELECT waiters FROM pgqueue.locks").fetchone() == (1,))
        wait_for_a_standby(admin)
        commit = threads.submit(t1.execute, "SELECT pgqueue.put('q', '1'), pg_notify('c', '')")
        eventually(lambda: admin.execute(waiting, ["T1"]).fetchone() == ("SyncRep",))
        release = threads.submit(held.release)
        eventually(lambda: admin.execute(waiting, ["pgqueue listener"]).fetchone() == ("object",))
        t1.cancel()
        commit.result(30)
        release.result(30)  # raises LockLost, if a second attempt found the lock free
        admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
        admin.execute("SELECT pg_reload_conf()")
        assert next_one.result(30).held


async def test_a_session_goes_on_although_the_server_still_has_its_old_connection(shell, dsn, network):
    """The backend of the old connection holds the session's lock, so it has to go first."""
    client = shell.client(network.dsn, session_grace=5)
    queue = client.queue("q")
    await queue.put(1)
    task = await queue.take(1)
    session = client.shell.core.running_listener.session
    with network.black_hole():
        network.forget()
        await soon(lambda: client.shell.core.running_listener.session is None)
    with steady(dsn) as took:
        await soon(lambda: client.shell.core.running_listener.session == session)
        assert took() < BACK
    await task.ack()


def test_ctrl_c_ends_a_call_soon_in_a_black_hole(dsn, network):
    with pgqueue.Client(network.dsn) as client:
        client.queue("q").put(1)
        with network.black_hole(), steady(dsn) as took:
            timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                client.queue("q").put(2)
            assert took() < 0.3 + 1.0 + SLACK
        client.queue("q").put(3)
