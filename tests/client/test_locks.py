"""Locks, on both shells: who is granted what and when, and what a timeout or a cancellation leaves."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, soon
from locks import in_line, left
from statements import value

import pgqueue
from pgqueue._engine import locks as holding

# --- held and released


async def test_held_for_the_block(shell: Any, db: psycopg.Connection) -> None:
    one, other = shell.client(), shell.client()
    lock = one.lock("a")
    assert (lock.name, lock.held, lock.fence) == ("a", False, 0)
    async with lock:
        assert lock.held
        assert lock.fence > 0
        assert await lock.check() is None
        assert await other.try_lock("a") is None
        assert value(db, "SELECT holder FROM pgqueue.locks") == one.shell.core.label
    assert not lock.held
    assert left(db) == (0, 0, 0)
    async with other.lock("a", timeout=0) as again:
        assert again.fence > lock.fence


async def test_released_before_the_end_of_the_block(client: Any, db: psycopg.Connection) -> None:
    async with client.lock("a") as lock:
        await lock.release()
        assert not lock.held
        assert left(db) == (0, 0, 0)
        await lock.release()
        with pytest.raises(pgqueue.LockLost, match=r"the lock 'a' is not held: it was released"):
            await lock.check()


async def test_an_exception_releases_it(client: Any, db: psycopg.Connection) -> None:
    with pytest.raises(ZeroDivisionError):
        async with client.lock("a"):
            raise ZeroDivisionError
    assert left(db) == (0, 0, 0)


async def test_try_lock(shell: Any, db: psycopg.Connection) -> None:
    one, other = shell.client(), shell.client()
    lock = await one.try_lock("a")
    assert lock.held
    assert await one.try_lock("a") is None  # not re-entrant
    assert await other.try_lock("a") is None
    async with lock:
        assert lock.held
    assert not lock.held
    lock = await other.try_lock("a")
    await lock.release()
    assert left(db) == (0, 0, 0)


async def test_an_object_is_one_hold_at_a_time(client: Any) -> None:
    lock = client.lock("a")
    async with lock:
        with pytest.raises(RuntimeError, match="make one for each"):
            await lock.__aenter__()
        assert lock.held
    first = lock.fence
    async with lock:
        assert lock.fence > first
    with pytest.raises(RuntimeError, match="never held"):
        await client.lock("b").check()


async def test_sharing(shell: Any) -> None:
    one, other = shell.client(), shell.client()
    async with one.lock("a", shared=True), one.lock("a", shared=True), other.lock("a", 5, shared=True):
        assert await one.try_lock("a") is None
        assert await other.try_lock("a", shared=True) is not None


# --- time


async def test_timeouts(shell: Any, db: psycopg.Connection) -> None:
    one, other = shell.client(), shell.client()
    async with one.lock("a"):
        for client in (one, other):
            watch = Stopwatch()
            with pytest.raises(pgqueue.LockTimeout, match=r"the lock 'a' was not granted within 0.3 s") as error:
                await client.lock("a", 0.3).__aenter__()
            assert 0.3 <= watch() < 5
            assert isinstance(error.value, TimeoutError)
            with pytest.raises(pgqueue.LockTimeout):
                await client.lock("a", timeout=0).__aenter__()
        assert left(db)[:2] == (1, 0)  # no ticket
    async with other.lock("a", 0):
        pass


async def test_cancelled_while_waiting(awaiting: Any, db: psycopg.Connection) -> None:
    client = awaiting()
    async with client.lock("a"):
        waiting = asyncio.ensure_future(client.lock("a").__aenter__())
        await in_line(db, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await in_line(db, 0)
    async with client.lock("a", 10):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("contended", [False, True])
async def test_cancelled_anywhere(awaiting: Any, db: psycopg.Connection, contended: bool) -> None:
    """At each step of the loop in turn, until the lock is granted before it: nothing is ever left."""
    client, other = awaiting(), awaiting()
    await client.try_lock("warm up")
    await other.try_lock("warm up as well")
    held = left(db)
    outcomes = set()
    for steps in range(400):
        rival = await other.try_lock("a") if contended else None
        entering = asyncio.ensure_future(client.lock("a").__aenter__())
        for _ in range(steps):
            await asyncio.sleep(0)
        if rival:
            await rival.release()
        entering.cancel()
        try:
            lock = await entering
        except asyncio.CancelledError:
            outcomes.add("cancelled")
        else:
            outcomes.add("granted")
            await lock.release()
        async with other.lock("a", 10):  # nobody is in front for ever
            pass
    await soon(lambda: left(db) == held)
    assert "cancelled" in outcomes
    print(outcomes)


async def test_the_order_is_that_of_arrival(shell: Any, db: psycopg.Connection) -> None:
    clients = [shell.client() for _ in range(3)]
    order: list[int] = []

    async def enter(i: int) -> None:
        async with clients[i % 3].lock("a", 30):
            order.append(i)

    async with clients[0].lock("a"):
        tasks = []
        for i in range(9):
            tasks.append(asyncio.ensure_future(enter(i)))
            await in_line(db, i + 1)
    await asyncio.gather(*tasks)
    assert order == list(range(9))
    assert left(db)[:2] == (0, 0)


async def test_shared_ones_do_not_pass_an_exclusive_one(shell: Any, db: psycopg.Connection) -> None:
    one, other = shell.client(), shell.client()
    events: list[str] = []
    both = asyncio.Event()

    async def enter(client: Any, name: str, shared: bool) -> None:
        async with client.lock("a", 30, shared=shared):
            events.append(name)
            if shared:
                if events[-2:] in (["s1", "s2"], ["s2", "s1"]):
                    both.set()
                await asyncio.wait_for(both.wait(), 30)  # they are in it together

    async with one.lock("a", shared=True):
        tasks = []
        for i, (client, name) in enumerate([(one, "x"), (one, "s1"), (other, "s2"), (other, "y")], 1):
            tasks.append(asyncio.ensure_future(enter(client, name, name.startswith("s"))))
            await in_line(db, i)
        assert await other.try_lock("a", shared=True) is None
        assert events == []
    await asyncio.gather(*tasks)
    assert events[0] == "x"
    assert events[-1] == "y"


@pytest.mark.slow
async def test_try_lock_does_not_overtake(shell: Any, db: psycopg.Connection) -> None:
    """Between a release and the next one's grant, too: the ticket stays until the lock is granted."""
    one, other = shell.client(), shell.client()
    for _ in range(30):
        lock = await one.try_lock("a")
        waiting = asyncio.ensure_future(other.lock("a", 30).__aenter__())
        await in_line(db, 1)
        _, stolen = await asyncio.gather(lock.release(), one.try_lock("a"))
        await lock.release()
        assert stolen is None or not waiting.done()
        assert await one.try_lock("a") is None
        await (await waiting).release()
    assert left(db)[:2] == (0, 0)


@pytest.mark.slow
async def test_fifty_waiters_of_one_client(shell: Any, db: psycopg.Connection) -> None:
    client = shell.client()
    inside, most, fences = [0], [0], []

    async def enter() -> None:
        async with client.lock("a", 60) as lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            fences.append(lock.fence)
            await asyncio.sleep(0)
            inside[0] -= 1

    await asyncio.gather(*(enter() for _ in range(50)))
    assert most == [1]
    assert len(fences) == 50
    assert fences == sorted(fences)
    assert left(db)[:2] == (0, 0)


@pytest.mark.slow
def test_threads_and_coroutines_of_one_client(blocking: Callable[..., pgqueue.Client], db: psycopg.Connection) -> None:
    client = blocking()
    inside, most, entries = [0], [0], [0]
    pause = threading.Event()

    def entered() -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        entries[0] += 1

    def by_thread() -> None:
        with client.lock("a", 60):
            entered()
            pause.wait(0.001)
            inside[0] -= 1

    async def by_coroutine() -> None:
        async with client.aio.lock("a", 60):
            entered()
            await asyncio.sleep(0.001)
            inside[0] -= 1

    async def coroutines() -> None:
        await asyncio.gather(*(by_coroutine() for _ in range(25)))

    threads = [threading.Thread(target=by_thread) for _ in range(25)]
    for thread in threads:
        thread.start()
    asyncio.run(coroutines())
    for thread in threads:
        thread.join()
    assert (most, entries) == ([1], [50])
    assert left(db)[:2] == (0, 0)


@pytest.mark.slow
async def test_no_call_is_lost(shell: Any, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the looks in between, which are for the dead: by releases, timeouts and cancellations alone."""
    monkeypatch.setattr(holding, "POLL", (60.0, 60.0))
    clients = [shell.client() for _ in range(3)]
    chance = random.Random(3)
    slowest = [0.0]

    async def enter(client: Any) -> None:
        for _ in range(40):
            patience, shared = chance.choice((0.002, 0.01, 60)), chance.random() < 0.3
            began = time.monotonic()
            try:
                async with client.lock("a", patience, shared=shared):
                    await asyncio.sleep(chance.choice((0, 0, 0.002)))
            except pgqueue.LockTimeout:
                pass
            slowest[0] = max(slowest[0], time.monotonic() - began)

    await asyncio.gather(*(enter(client) for client in clients for _ in range(4)))
    assert slowest[0] < 20
    assert left(db)[:2] == (0, 0)


@pytest.mark.slow
async def test_a_release_while_the_next_one_lies_down(
    shell: Any, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any moment between its question, its ticket, its LISTEN and its second look: it never sleeps on."""
    monkeypatch.setattr(holding, "POLL", (60.0, 60.0))
    one, other = shell.client(), shell.client(idle_timeout=0.0)  # LISTEN anew for each wait
    chance = random.Random(4)
    for _ in range(200):
        lock = await one.try_lock("a")
        waiting = asyncio.ensure_future(other.lock("a", 60).__aenter__())
        await asyncio.sleep(chance.uniform(0, 0.003))
        await lock.release()
        async with asyncio.timeout(20):
            await (await waiting).release()
    assert left(db)[:2] == (0, 0)
