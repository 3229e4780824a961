"""What the shells wait by: signals, turns, and calls that go on although their caller is interrupted."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest
from eventually import PATIENCE, eventually
from hurrying import hurry

from pgqueue._calls.call import Call
from pgqueue._engine import awaiting, blocking
from pgqueue.errors import CallTimeout

pytestmark = pytest.mark.once


def test_a_signal_wakes_all_threads_that_wait_for_it() -> None:
    signal = blocking.Signal()
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(signal.wait(PATIENCE))) for _ in range(3)]
    for thread in threads:
        thread.start()
    signal.set()
    eventually(lambda: woken == [True] * 3)
    for thread in threads:
        thread.join()


async def test_a_turn_leaves_no_timer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end a later wait for the turn early."""
    loop, timers = asyncio.get_running_loop(), []
    turn = awaiting.Turn()

    def call_later(*args: Any) -> asyncio.TimerHandle:
        timers.append(later(*args))
        return timers[-1]

    later = loop.call_later
    monkeypatch.setattr(loop, "call_later", call_later)
    waiting = asyncio.ensure_future(turn.wait(PATIENCE))
    while not timers:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    monkeypatch.undo()
    assert [timer.cancelled() for timer in timers] == [True]


async def test_an_uninterrupted_call_goes_on_when_its_caller_is_cancelled() -> None:
    began, let, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def call() -> None:
        began.set()
        await let.wait()
        ended.set()

    caller = asyncio.ensure_future(awaiting.uninterrupted(call))
    await began.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    let.set()
    await asyncio.wait_for(ended.wait(), PATIENCE)


async def test_no_call_has_longer_than_the_clients_call_timeout(shell: Any) -> None:
    client = shell.client()
    await client.queue("q").put(1)
    hurry(client, call_timeout=0.5)
    slow = Call("SELECT pg_catalog.pg_sleep(20)", (), lambda rows: rows)
    with pytest.raises(CallTimeout):
        await client.shell.run(slow, within=30.0)


async def test_a_pool_whose_connections_gave_way_makes_others(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count no more against pool_size."""
    client = shell.client(pool_size=2, connect_timeout=30)
    await client.queue("q").put(1)
    for _ in range(3):
        pool = client.shell.connections._pools[False]
        with monkeypatch.context() as patch:
            patch.setattr(pool._attempts, "has_surplus", lambda: True)
            given = pool.give_way()
            if inspect.isawaitable(given):
                await given
        await client.queue("q").put(1)
    assert pool.get_stats()["pool_size"] <= 2
