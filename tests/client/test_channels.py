"""wait, post and subscribe, and the faults around them, on both shells."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, eventually, soon, soon_enough
from processes import FORKS_WITH_THREADS
from statements import rows, value

import pgqueue
from pgqueue._engine import plans

pytestmark = pytest.mark.once

OURS = "FROM pg_stat_activity WHERE application_name = 'pgqueue listener' AND datname = current_database()"
LISTENERS = f"SELECT count(*) {OURS}"
CUT = f"SELECT pg_terminate_backend(pid), pid {OURS}"
NAMES = ["Case", 'a"b; drop', "ü" * 31, "x" * 63, " ", "pgqueue"]


def ears(client: Any, channel: str) -> int:
    """How many waiters of the client are active on a channel."""
    line = client.shell.core.listener().switchboard._lines.get(channel)
    return len(line.ears) if line and line.listening else 0


async def waiting(client: Any, channel: str, n: int = 1, timeout: float | None = 10) -> list[asyncio.Future[str]]:
    """So many more that wait, and are active."""
    before = ears(client, channel)
    futures = [asyncio.ensure_future(client.wait(channel, timeout)) for _ in range(n)]
    await soon(lambda: ears(client, channel) == before + n)
    return futures


async def cut(client: Any, db: psycopg.Connection, channel: str) -> None:
    """Cut the listener's connection, and wait until there is another that listens to the channel."""
    ((_, pid),) = rows(db, CUT)
    await soon(lambda: value(db, f"{LISTENERS} AND pid <> %s", pid) and ears(client, channel) == 1)


# --- posts, waits and their time


async def test_every_waiter_gets_a_post_and_a_later_wait_does_not(client):
    both = await waiting(client, "foo", 2)
    await client.post("foo", "bar")
    assert await asyncio.gather(*both) == ["bar", "bar"]
    with pytest.raises(TimeoutError, match=r"nothing was posted to 'foo' within 0\.2 s"):
        await client.wait("foo", 0.2)


async def test_a_wait_ends_in_its_time(client):
    watch = Stopwatch()
    with pytest.raises(TimeoutError):
        await client.wait("foo", 0.2)
    assert watch() >= 0.2


async def test_a_wait_ignores_posts_from_before_it_began(client, db):
    db.execute("SELECT pgqueue.post('foo', 'early')")
    (one,) = await waiting(client, "foo")
    db.execute("SELECT pgqueue.post('foo', 'late')")
    assert await one == "late"


async def test_an_idle_channel_is_not_listened_to_for_ever(shell, db):
    client = shell.client(idle_timeout=0.5)
    core = client.shell.core
    channels: list[set[str]] = []

    async def listened() -> set[str]:
        """What the listener's connection listens to, asked on it."""
        from pgqueue._calls.call import Call

        asked = core.listener().ask(Call("SELECT pg_listening_channels()", (), lambda rows: rows), threading.Event())
        await soon(asked.done.is_set)
        return {name for (name,) in asked.outcome()}

    (one,) = await waiting(client, "foo")
    channels.append(await listened())
    assert "foo" in channels[0]
    await client.post("foo", "x")
    assert await one == "x"
    await soon(lambda: "foo" not in core.listener().switchboard._lines)
    assert "foo" not in await listened()
    (again,) = await waiting(client, "foo")
    await client.post("foo", "x")
    assert await again == "x"


async def test_a_wait_that_returns_in_time_sends_no_listen(shell, monkeypatch):
    client = shell.client(idle_timeout=600)
    (one,) = await waiting(client, "foo")
    await client.post("foo", "x")
    assert await one == "x"
    sent: list[object] = []
    monkeypatch.setattr(plans, "_listen", lambda conn, off, on: sent.append((off, on)))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await client.wait("foo", 0.02)
    assert sent == []


async def test_a_lost_connection_is_survived(client, db, caplog):
    caplog.set_level(logging.CRITICAL)

    async def cut_to_post() -> float:
        (one,) = await waiting(client, "foo")
        watch = Stopwatch()
        await cut(client, db, "foo")
        await client.post("foo", "bar")
        assert await one == "bar"
        return watch()

    await soon_enough(cut_to_post, within=2.0)


@pytest.mark.parametrize("channel", NAMES)
async def test_channels_of_any_name(client, db, channel):
    (one,) = await waiting(client, channel)
    await client.post(channel.lower() + "'", "not you") if len(channel) < 60 else None
    await client.post(channel, "you")
    assert await one == "you"


@pytest.mark.parametrize("size", [0, 7999, 8000, 300_000])
async def test_payloads_of_any_size(client, size):
    (one,) = await waiting(client, "foo")
    await client.post("foo", "ü" * (size // 2))
    assert await one == "ü" * (size // 2)


async def test_nothing_is_there_before_the_first_wait(client, db):
    await client.post("foo", "bar")
    assert client.shell.core.running_listener is None
    assert value(db, LISTENERS) == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "pgqueue-listener"]
    with pytest.raises(TimeoutError):
        await client.wait("foo", 0)
    await soon(lambda: value(db, LISTENERS) == 1)


# --- post


async def test_a_post_in_the_callers_transaction_arrives_with_it(shell, client):
    conn = await shell.connection()
    (one,) = await waiting(client, "foo")
    await client.post("foo", "undone", conn=conn)
    await conn.rollback()
    await client.post("foo", "done", conn=conn)
    await conn.commit()
    assert await one == "done"


async def test_psql_is_heard_and_hears(client, db, dsn):
    (one,) = await waiting(client, "foo")
    db.execute("NOTIFY foo, 'from psql'")
    assert await one == "from psql"
    db.execute("LISTEN foo")
    await client.post("foo", "to psql")
    assert [note.payload for note in db.notifies(timeout=10, stop_after=1)] == ["to psql"]


@pytest.mark.parametrize("channel", [None, 1, b"foo", "", "x" * 64, "ü" * 32, "a\0b", "\ud800", "pgqueue:1"])
async def test_channels_that_cannot_be(client, channel):
    for call in (client.post(channel, "x"), client.wait(channel, 0), client.subscribe(channel)):
        with pytest.raises(ValueError, match="channel"):
            await call


@pytest.mark.parametrize("payload", [None, 1, b"x", {"a": 1}, "a\0b", "\ud800"])
async def test_payloads_that_cannot_be(client, payload):
    with pytest.raises(ValueError, match="a payload"):
        await client.post("foo", payload)


@pytest.mark.parametrize("timeout", ["1", float("nan"), True, [1]])
async def test_timeouts_that_cannot_be(client, timeout):
    with pytest.raises(ValueError, match="timeout"):
        await client.wait("foo", timeout)


# --- subscribe


async def test_a_subscription_hears_all_in_order(client):
    async with await client.subscribe("foo") as subscription:
        for i in range(100):
            await client.post("foo", str(i))
        assert [await subscription.get(30) for _ in range(100)] == [str(i) for i in range(100)]
        with pytest.raises(TimeoutError):
            await subscription.get(0)


async def test_large_and_small_payloads_keep_their_order(client):
    subscription = await client.subscribe("foo")
    sent = [str(i) * (1 if i % 3 else 9000) for i in range(12)]
    for payload in sent:
        await client.post("foo", payload)
    assert [await subscription.get(30) for _ in sent] == sent


async def test_the_iteration_ends_when_it_is_closed(client):
    subscription = await client.subscribe("foo")
    heard = []

    async def read() -> None:
        async for payload in subscription:
            heard.append(payload)

    reading = asyncio.ensure_future(read())
    await client.post("foo", "a")
    await soon(lambda: heard == ["a"])
    await subscription.close()
    await asyncio.wait_for(reading, 30)
    await subscription.close()
    with pytest.raises(pgqueue.ClosedError):
        await subscription.get(0)


async def test_a_slow_reader_is_told_that_it_missed_some(client):
    gaps: list[str] = []
    subscription = await client.subscribe("foo", buffer=3, on_gap=gaps.append)
    other = await client.subscribe("foo")
    for i in range(10):
        await client.post("foo", str(i))
    assert [await other.get(30) for _ in range(10)] == [str(i) for i in range(10)]
    assert await subscription.get(30) == "7"
    assert gaps == ["the buffer was full"]
    assert subscription.gaps == 1


async def test_a_gap_that_nobody_asked_about_is_logged(client, caplog):
    subscription = await client.subscribe("foo", buffer=1)
    for i in range(3):
        await client.post("foo", str(i))
    await soon(lambda: subscription._ear.payloads and subscription._ear.payloads[-1] == "2")
    assert await subscription.get(30) == "2"
    assert "payloads of 'foo' may have been missed: the buffer was full" in caplog.text


async def test_a_lost_connection_is_a_gap(client, db, caplog):
    caplog.set_level(logging.CRITICAL)
    gaps: list[str] = []
    subscription = await client.subscribe("foo", on_gap=gaps.append)
    await client.post("foo", "before")
    assert await subscription.get(30) == "before"
    await cut(client, db, "foo")
    await client.post("foo", "after")
    assert await subscription.get(30) == "after"
    assert gaps == ["the connection was lost"]


@pytest.mark.parametrize("buffer", [0, -1, 1.5, "1", True, None])
async def test_buffers_that_cannot_be(client, buffer):
    with pytest.raises(ValueError, match="buffer"):
        await client.subscribe("foo", buffer=buffer)


# --- the end


async def test_a_client_that_closes_ends_its_waits(shell):
    client = shell.client()
    (one,) = await waiting(client, "foo", timeout=None)
    subscription = await client.subscribe("bar")
    await client.close()
    with pytest.raises(pgqueue.ClosedError):
        await one
    with pytest.raises(pgqueue.ClosedError):
        await subscription.get(1)
    with pytest.raises(pgqueue.ClosedError):
        await client.wait("foo", 0)


async def test_a_cancelled_wait_leaves(awaiting):
    client = awaiting()
    (one,) = await waiting(client, "foo")
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    assert ears(client, "foo") == 0


FORKING = """
import os, sys, pgqueue
client = pgqueue.Client(sys.argv[1])
subscription = client.subscribe("foo")
if os.fork() == 0:
    try:
        subscription.get(30)
    except pgqueue.ClosedError:
        pass
    own = client.subscribe("foo")
    client.post("foo", "from the child")
    assert own.get(30) == "from the child"
    client.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert subscription.get(30) == "from the child"
client.post("foo", "from the parent")
assert subscription.get(30) == "from the parent"
assert subscription.gaps == 0
client.close()
"""


@pytest.mark.slow
def test_a_forked_child_waits_by_itself_and_leaves_its_parent_alone(dsn):
    program = [sys.executable, "-W", FORKS_WITH_THREADS, "-c", FORKING, dsn]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


INTERRUPTED = """
import sys, pgqueue
with pgqueue.Client(sys.argv[1]) as client:
    print("ready", flush=True)
    try:
        client.wait("foo")
    except KeyboardInterrupt:
        print(client.wait("foo", 30), flush=True)
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_wait_and_the_next_one_works(dsn, db):
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED, dsn], stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout.readline() == "ready\n"
            eventually(lambda: value(db, LISTENERS))
            os.kill(program.pid, signal.SIGINT)
            while program.poll() is None:
                db.execute("SELECT pgqueue.post('foo', 'again')")
                threading.Event().wait(0.05)  # it may not wait yet
            assert program.stdout.read() == "again\n"
            assert program.returncode == 0
        finally:
            program.kill()


# --- many


@pytest.mark.slow
def test_a_thousand_channels_and_two_thousand_waiters_on_one_connection(dsn, db):
    """Half of them threads, half coroutines of the same client: each channel has one of both."""
    n = 1000
    with ExitStack() as stack:
        client = stack.enter_context(pgqueue.Client(dsn, poll=None))
        threads = stack.enter_context(ThreadPoolExecutor(n))
        blocked = [threads.submit(client.wait, f"channel {i}", 120) for i in range(n)]

        async def rest() -> list[str]:
            waits = [asyncio.ensure_future(client.aio.wait(f"channel {i}", 120)) for i in range(n)]
            await soon(lambda: all(ears(client, f"channel {i}") == 2 for i in range(n)), within=60)
            assert value(db, LISTENERS) == 1
            post = "SELECT pgqueue.post('channel ' || i, repeat('x', CASE WHEN i % 100 = 0 THEN 9000 ELSE 1 END) || i)"
            db.execute(f"{post} FROM generate_series(0, {n - 1}) i ORDER BY random()")
            return await asyncio.gather(*waits)

        awaited = asyncio.run(rest())
        expected = ["x" * (9000 if i % 100 == 0 else 1) + str(i) for i in range(n)]
        assert awaited == expected
        assert [future.result(60) for future in blocked] == expected


def test_subscribers_miss_nothing_while_channels_come_and_go(dsn, blocking: Callable[..., pgqueue.Client]):
    """Waits on the same channels, with hardly any idle time, so that LISTEN and UNLISTEN chase each other."""
    client, posting = blocking(idle_timeout=0.001), blocking()
    rounds = 300

    def one(k: int) -> int:
        missed = 0
        for i in range(rounds):
            with client.subscribe(f"c{k % 3}") as subscription:
                posting.post(f"c{k % 3}", f"{k}.{i}")
                while (payload := subscription.get(30)) != f"{k}.{i}":
                    assert payload
                missed += subscription.gaps
        return missed

    with ThreadPoolExecutor(6) as threads:
        assert sum(threads.map(one, range(6))) == 0


def test_the_listener_refuses_what_it_is_asked_after_its_end(blocking):
    client = blocking()
    running = client.shell.core.listener()
    client.close()
    from pgqueue._calls.session import promote_all

    asked = running.ask(promote_all(), threading.Event())
    assert asked.done.is_set()
    with pytest.raises(pgqueue.ClosedError):
        asked.outcome()


def test_what_the_listener_is_asked_fails_with_its_connection(blocking, db):
    from pgqueue._calls.call import Call

    client = blocking()
    running = client.shell.core.listener()
    eventually(lambda: running.session)
    bad = running.ask(Call("SELECT 1 / 0", (), lambda rows: rows), threading.Event())
    assert bad.done.wait(30)
    with pytest.raises(psycopg.errors.DivisionByZero):
        bad.outcome()
    lost = running.ask(Call("SELECT pg_terminate_backend(pg_backend_pid())", (), lambda rows: rows), threading.Event())
    assert lost.done.wait(30)
    with pytest.raises(pgqueue.ConnectionLost):
        lost.outcome()
