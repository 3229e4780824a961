"""Takers of one process that wait: who is woken, who wakes the next, and that nobody looks without a reason.

What processes do to each other is in test_handoffs; here are the ways in which one taker's end could leave another
asleep. There is no poll to fall back on.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, eventually, in_time, soon
from statements import put, rows, state, value
from steady import steady

import pgqueue
from pgqueue._calls.call import Call
from pgqueue._engine import listener
from pgqueue._engine.cursor import ClaimCursor

Blocking = Callable[..., pgqueue.Client]
Awaiting = Callable[..., pgqueue.AsyncClient]


def waiters(client: pgqueue.Client | pgqueue.AsyncClient, *queues: str) -> int:
    """How many takers are asleep on these queues."""
    core = client.shell.core
    hub = core.listener().hub
    channels = [hub._channels.get(core.queue_ids.get(queue, 0)) for queue in queues]
    return sum(len(channel.waiters) for channel in channels if channel and channel.drained)


def threads_that_looked(client: pgqueue.Client, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads that have had the answer to a last look: a waiter is counted before it looks."""
    run, looked = client.shell.connections.run, set()

    def run_and_note(call: Call[Any], **options: Any) -> Any:
        answer = run(call, **options)
        if "next_due" in call.sql:
            looked.add(threading.get_ident())
        return answer

    monkeypatch.setattr(client.shell.connections, "run", run_and_note)
    return looked


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the listener's ticks, which would make up for a lost wake-up within a quarter of a second."""
    monkeypatch.setattr(listener, "TICK", 60.0)


def two_waiting(client: pgqueue.Client, threads: ThreadPoolExecutor, n: int, timeout: float) -> list[Future[list]]:
    futures = [threads.submit(client.queue("q").take_many, n, timeout) for _ in range(2)]
    eventually(lambda: waiters(client, "q") == 2 or any(future.done() for future in futures))
    return futures


@pytest.mark.slow
@pytest.mark.usefixtures("no_ticks")
def test_who_is_served_when_a_delay_ends_tells_the_next_of_the_next(
    blocking: Blocking, threads: ThreadPoolExecutor
) -> None:
    """Takes for ten are satisfied with one task, and still pass on that another is due."""
    client = blocking()

    def attempt() -> float:
        watch = Stopwatch()
        client.queue("q").put("first", delay=0.5)
        client.queue("q").put("second", delay=1.0)
        futures = two_waiting(client, threads, 10, timeout=5)
        got = sorted(len(future.result()) for future in futures)
        if got == [0, 2]:  # both were due when the first one looked
            return float("inf")
        assert got == [1, 1]
        seconds = watch()
        assert seconds > 0.9
        return seconds

    in_time(attempt, within=2)


@pytest.mark.usefixtures("no_ticks")
def test_a_time_to_run_that_ends_wakes_a_taker_of_the_same_process(
    dsn: str, blocking: Blocking, threads: ThreadPoolExecutor
) -> None:
    """The second taker lay down before the first one's take began, and so before it had a deadline."""
    client = blocking()
    two = two_waiting(client, threads, 10, timeout=60)
    with steady(dsn) as steadily:
        watch = Stopwatch()
        client.queue("q").put("x", ttr=0.5)
        assert [len(future.result()) for future in two] == [1, 1]
        assert watch() >= 0.5
        assert steadily() < 1.5


@pytest.mark.slow
@pytest.mark.usefixtures("no_ticks")
def test_a_taker_that_gives_up_at_a_locked_task_leaves_it_to_the_next(
    dsn: str,
    db: psycopg.Connection,
    blocking: Blocking,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rollback notifies nobody, so somebody who waits has to know that there is something to look at."""
    client = blocking()
    queue = client.queue("q")
    looked = threads_that_looked(client, monkeypatch)
    impatient = threads.submit(queue.take_many, 1, 4.0)
    eventually(lambda: waiters(client, "q") == 1)
    patient = threads.submit(queue.take_many, 1, 60)
    eventually(lambda: waiters(client, "q") == 2 and len(looked) == 2)
    id = value(db, "SELECT pgqueue.queue_id('q')")
    with psycopg.connect(dsn) as popper:
        db.execute("INSERT INTO pgqueue.task (queue_id, data) VALUES (%s, '1')", [id])  # a put that says nothing yet
        assert len(rows(popper, "SELECT * FROM pgqueue.pop('q')")) == 1
        db.execute("SELECT pgqueue._signal(%s)", [id])
        assert impatient.result() == []
        with steady(dsn) as watch:
            popper.rollback()
            assert len(patient.result()) == 1
            assert watch() < 1


def test_a_process_alone_is_woken_by_what_its_own_sweep_frees(
    dsn: str, blocking: Blocking, threads: ThreadPoolExecutor
) -> None:
    client = blocking()
    victim = psycopg.connect(dsn, autocommit=True)
    put(victim, "q")
    rows(victim, "SELECT pgqueue.open_session(grace => '0', label => 'victim')")
    assert len(rows(victim, "SELECT * FROM pgqueue.take('q')")) == 1
    taken = threads.submit(client.queue("q").take, 60)
    eventually(lambda: waiters(client, "q") == 1)
    with steady(dsn) as watch:
        victim.close()
        assert taken.result() is not None
        assert watch() < 1


async def test_a_take_that_is_undone_wakes_another_of_its_process(
    db: psycopg.Connection, awaiting: Awaiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cancelled after the server had given it the task, and undone when the other had looked already."""
    client = awaiting()
    queue = client.queue("q")
    assert await queue.take(0) is None
    patient = asyncio.create_task(queue.take(60))
    await soon(lambda: waiters(client, "q") == 1)
    core = client.shell.core
    session, heard = core.listener().session, []
    monkeypatch.setattr(core.listener().hub, "signal", lambda queues: heard.append(queues))  # nobody hears of the put
    id = put(db, "q")
    assert rows(db, "SELECT id FROM pgqueue.take('q', session => %s, new_token => 7)", session) == [(id,)]
    await soon(lambda: heard)
    monkeypatch.undo()
    core.listener().undo(7)
    async with asyncio.timeout(30):
        task = await patient
    assert task is not None
    assert task.id == id


# --- and nobody looks without a reason


@pytest.mark.slow
def test_a_waiting_taker_asks_nothing(db: psycopg.Connection, blocking: Blocking, threads: ThreadPoolExecutor) -> None:
    """Neither while the queue is empty, nor while all its tasks are taken."""
    client = blocking()
    put(db, "q")
    assert client.queue("q").take(0) is not None
    taken = threads.submit(client.queue("q").take, 60)
    silent = """SELECT clock_timestamp() - max(query_start) > interval '0.7 s'
                  FROM pg_stat_activity WHERE application_name = 'pgqueue'"""
    eventually(lambda: value(db, silent))  # three ticks, and three of the pauses at a locked task
    put(db, "q")
    assert taken.result() is not None


def test_a_queue_at_rest_does_not_make_its_neighbour_spin(blocking: Blocking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two queues waited for, one is claimed from the cursor."""
    client = blocking()
    assert client.take(["q", "r"], 0) is None
    cursor = client.shell.core.cursors["q"]
    cursor._last, cursor._head_at = (0, 1), time.monotonic() + 0.5
    runs = []
    run = client.shell.connections.run
    monkeypatch.setattr(client.shell.connections, "run", lambda call, **how: (runs.append(call), run(call, **how))[1])
    assert client.take(["q", "r"], 0.4) is None
    assert len(runs) < 12


def test_a_taker_does_not_sleep_in_front_of_a_task_that_is_ready(blocking: Blocking, db: psycopg.Connection) -> None:
    """T1 claims from the cursor. T2 releases a task in front of it before T1 waits, so nothing signals T1."""
    client = blocking()
    put(db, "q")
    cursor = client.shell.core.cursors.setdefault("q", ClaimCursor())
    cursor._last, cursor._head_at = (0, 1_000_000), time.monotonic() + 60
    assert cursor.start() is not None
    watch = Stopwatch()
    assert client.queue("q").take(60) is not None
    assert watch() < 30


# --- what a cancelled take leaves behind


async def test_a_take_cancelled_in_its_sleep_has_nothing_to_undo(awaiting: Awaiting) -> None:
    """An undo waits for every claim of the process, and reads all takes."""
    client = awaiting()
    taking = asyncio.create_task(client.queue("q").take())
    await soon(lambda: waiters(client, "q") == 1)
    undone: list[Any] = []
    client.shell.core.listener().later = undone.append  # type: ignore[assignment]
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert undone == []


async def test_a_take_cancelled_in_its_claim_is_undone(
    db: psycopg.Connection, awaiting: Awaiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was on its way: the task is ready again, and its next taker has it at once."""
    client = awaiting()
    queue = client.queue("q")
    assert await queue.take(0) is None
    id = put(db, "q")
    run = client.shell.connections.run

    async def late(call: Any, **how: Any) -> object:
        answer = await run(call, **how)
        if answer:
            raise asyncio.CancelledError
        return answer

    monkeypatch.setattr(client.shell.connections, "run", late)
    with pytest.raises(asyncio.CancelledError):
        await queue.take(5)
    monkeypatch.undo()
    task = await queue.take(5)
    assert task is not None
    assert task.id == id
    assert state(db, id) == "taken"
