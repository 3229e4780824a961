"""Locks, on both shells: what ends them against one's will, and arguments that cannot be."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from eventually import eventually, soon
from hurrying import hurry
from locks import LISTENERS, in_line, left, nothing_left, terminate_listeners
from psycopg.conninfo import make_conninfo
from servers import Server
from statements import column, value

import pgqueue
from pgqueue._calls.locks import Answer
from pgqueue._engine import locks as holding

# --- the connection breaks


async def test_a_lock_is_lost_with_its_connection(shell: Any, db: psycopg.Connection) -> None:
    client, other = shell.client(), shell.client()
    heard: list[Any] = []
    lock = client.lock("a", on_lost=heard.append)
    await lock.__aenter__()
    terminate_listeners(db)
    await soon(lambda: heard)
    assert not lock.held
    with pytest.raises(pgqueue.LockLost):
        await lock.check()
    async with other.lock("a", 10) as second:
        assert second.fence > lock.fence
    with pytest.raises(pgqueue.LockLost, match=r"the lock 'a' is not held: the connection that held it broke"):
        await lock.__aexit__(None, None, None)
    await lock.release()  # told once
    assert len(heard) == 1
    async with client.lock("a", 10):
        pass
    assert len(heard) == 1
    await nothing_left(db)


async def test_on_lost_runs_in_the_listeners_thread_or_in_the_loop(shell: Any, db: psycopg.Connection) -> None:
    threads: list[str] = []
    await shell.client().try_lock("a", on_lost=lambda lock: threads.append(threading.current_thread().name))
    terminate_listeners(db)
    await soon(lambda: threads)
    assert threads == ["MainThread" if shell.name == "async" else "pgqueue-listener"]


@pytest.mark.slow
async def test_a_grant_counts_only_if_the_connection_still_stands(shell: Any, db: psycopg.Connection) -> None:
    """Connections break while locks are asked for: whoever passed check() before and after excluded the other."""
    one, other = shell.client(), shell.client()
    await other.try_lock("warm up")
    own = value(db, LISTENERS)
    certain = 0
    for i in range(60):
        entering = asyncio.ensure_future(one.lock("a", 30).__aenter__())
        for _ in range(i):
            await asyncio.sleep(0)
        for pid in column(db, f"{LISTENERS} AND pid <> {own}"):
            db.execute("SELECT pg_terminate_backend(%s::int)", [pid])
        lock = await entering
        try:
            await lock.check()
            stolen = await other.try_lock("a")
            await lock.check()
            assert stolen is None
            certain += 1
            await lock.release()
        except pgqueue.LockLost:
            async with other.lock("a", 10):
                pass
            assert not lock.held
    assert certain > 0
    async with other.lock("a", 10):
        pass


async def test_the_connection_breaks_before_the_answer_is_read(
    shell: Any, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock that was granted is free again by then: it is asked for anew."""
    granted = holding.Request._granted
    answers: list[bool] = []

    def late(request: holding.Request, answer: Answer) -> bool:
        if not answers:
            terminate_listeners(db)
            eventually(lambda: request._broke)
        answers.append(granted(request, answer))
        return answers[-1]

    monkeypatch.setattr(holding.Request, "_granted", late)
    lock = await shell.client().lock("a", 30).__aenter__()
    assert answers == [False, True]
    await lock.check()
    assert value(db, "SELECT fence FROM pgqueue.locks") == lock.fence
    await lock.release()
    await nothing_left(db)


@pytest.mark.slow
async def test_a_server_that_is_away(shell: Any, db: psycopg.Connection, pg_server: Server) -> None:
    """Is waited for, as long as the longer of both timeouts."""

    def let_in(yes: bool) -> None:
        with pg_server.connect() as admin:
            admin.execute(f'ALTER DATABASE "{db.info.dbname}" ALLOW_CONNECTIONS {yes}')

    client = shell.client()
    lock = await client.try_lock("a")
    hurry(client, connect_timeout=0.5)
    let_in(False)
    terminate_listeners(db)
    await soon(lambda: not lock.held)
    with pytest.raises(pgqueue.ServerError, match="cannot be requested without a session"):
        await client.lock("a", 0.1).__aenter__()
    waiting = asyncio.ensure_future(client.lock("a").__aenter__())
    with pytest.raises(pgqueue.LockLost):
        await lock.release()
    let_in(True)
    await (await waiting).release()
    await nothing_left(db)


@pytest.mark.slow
async def test_check_asks_the_server(shell: Any, db: psycopg.Connection) -> None:
    """Whether or not the listener's thread has noticed."""
    client = shell.client()
    for _ in range(10):
        lock = await client.try_lock("a")
        terminate_listeners(db)
        with pytest.raises(pgqueue.LockLost):
            await lock.check()
        with pytest.raises(pgqueue.LockLost):
            await lock.release()


async def test_an_exception_of_the_block_goes_before_the_loss(client: Any, db: psycopg.Connection) -> None:
    lock = await client.lock("a").__aenter__()
    terminate_listeners(db)
    await soon(lambda: not lock.held)
    assert not await lock.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)


async def test_an_on_lost_that_fails_does_no_harm(shell: Any, db: psycopg.Connection, caplog: Any) -> None:
    client = shell.client()
    heard: list[Any] = []
    await client.try_lock("a", on_lost=lambda lock: 1 / 0)
    await client.try_lock("b", on_lost=heard.append)
    terminate_listeners(db)
    await soon(lambda: heard)
    await soon(lambda: "on_lost of the lock 'a' failed" in caplog.text)
    async with client.lock("a", 10):
        pass


@pytest.mark.parametrize("grace", [60, 0], ids=["the session survives", "a new session"])
async def test_waiters_go_on_after_their_connection_broke(shell: Any, db: psycopg.Connection, grace: float) -> None:
    client = shell.client(session_grace=grace)
    db.execute("SELECT pg_advisory_lock(hashtextextended('a', 0))")
    waiting = [asyncio.ensure_future(client.lock("a", 60).__aenter__()) for _ in range(3)]
    await in_line(db, 3)
    old = value(db, LISTENERS)
    for _ in range(2):
        terminate_listeners(db)
        if grace == 0:
            db.execute("SELECT pgqueue.sweep()")
    await soon(lambda: column(db, LISTENERS) not in ([], [old]))
    await in_line(db, 3)
    db.execute("SELECT pg_advisory_unlock(hashtextextended('a', 0))")
    done, rest = await asyncio.wait(waiting, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    for _ in range(3):
        assert len(done) == 1
        await done.pop().result().release()
        if rest:
            done, rest = await asyncio.wait(rest, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    await nothing_left(db)


async def test_cancelled_while_the_connection_is_away(awaiting: Any, db: psycopg.Connection) -> None:
    """The ticket of a session that comes back goes when it does."""
    client = awaiting(session_grace=60)
    db.execute("SELECT pg_advisory_lock(hashtextextended('a', 0))")
    for _ in range(5):
        waiting = asyncio.ensure_future(client.lock("a", 60).__aenter__())
        await in_line(db, 1)
        terminate_listeners(db)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await in_line(db, 0)


# --- the client's end, forks, bad arguments


async def test_close_releases_and_wakes(shell: Any, db: psycopg.Connection) -> None:
    one, other = shell.client(), shell.client()
    lock = await one.try_lock("a")
    waiting = asyncio.ensure_future(one.lock("a").__aenter__())
    await in_line(db, 1)
    heir = asyncio.ensure_future(other.lock("a", 30).__aenter__())
    await in_line(db, 2)
    await one.close()
    with pytest.raises(pgqueue.ClosedError):
        await waiting
    assert (await heir).held
    assert not lock.held
    for verb in (lock.check, lock.release):
        with pytest.raises(pgqueue.LockLost, match="the client was closed"):
            await verb()
    await lock.release()
    with pytest.raises(pgqueue.ClosedError):
        await one.lock("b").__aenter__()


def test_a_forked_child_has_none_of_it(blocking: Callable[..., pgqueue.Client], db: psycopg.Connection) -> None:
    client = blocking()
    with client.lock("a") as lock:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert not lock.held
                try:
                    lock.release()
                except pgqueue.LockLost:
                    code = 2
                assert client.try_lock("a") is None
                with client.lock("b", 10):
                    code += 5
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        lock.check()
        assert value(db, "SELECT holder FROM pgqueue.locks WHERE name = 'a'") == client.shell.core.label
    eventually(lambda: left(db)[:2] == (0, 0))


@pytest.mark.parametrize("name", [None, 1, b"a", "", "x" * 201, "a\0b", "\ud800"])
async def test_names_that_cannot_be(client: Any, name: Any) -> None:
    for verb in (client.lock, client.elect):
        with pytest.raises(ValueError, match="a lock's name"):
            verb(name)
    with pytest.raises(ValueError, match="a lock's name"):
        await client.try_lock(name)


@pytest.mark.parametrize("timeout", [math.nan, "1", True, b""])
def test_timeouts_that_cannot_be(blocking: Callable[..., pgqueue.Client], timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be"):
        blocking().lock("a", timeout)


async def test_other_arguments_that_cannot_be(client: Any) -> None:
    with pytest.raises(ValueError, match="shared must be"):
        client.lock("a", shared=1)
    with pytest.raises(ValueError, match="on_lost must be"):
        await client.try_lock("a", on_lost="x")
    with pytest.raises(ValueError, match="gained must be"):
        client.elect("a", "x")
    with pytest.raises(ValueError, match="lost must be"):
        client.elect("a", None, 1)


async def test_no_server(shell: Any, dsn: str) -> None:
    client = shell.client(make_conninfo(dsn, dbname="pgqueue_test_absent"), connect_timeout=0.5)
    with pytest.raises(pgqueue.ServerError):
        await client.try_lock("a")
