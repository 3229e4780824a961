"""Time limits: handlers of each kind that hang are ended or written off in time, and other tasks go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from eventually import eventually
from running import running
from statements import column, row
from steady import steady

import pgqueue
from pgqueue import SoftTimeLimit, Worker, checkpoint
from pgqueue.worker import overdue

pytestmark = pytest.mark.once

RUNS = int(os.environ.get("PGQUEUE_TEST_RUNS", "10"))
LIMIT = 0.5
BOUND = 0.5  # seconds after the limit


@pytest.fixture
def client(blocking: Callable[..., pgqueue.Client]) -> pgqueue.Client:
    return blocking()


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """Handlers hang until it is set."""
    over = threading.Event()
    yield over
    over.set()


def working(client: pgqueue.Client, handlers: dict[str, Any] | None, **options: Any) -> AbstractContextManager[Worker]:
    return running(Worker(client, handlers, **({"retry_delay": 0, "grace": 0, "max_attempts": 1} | options)))


def total(queue: pgqueue.Queue) -> int:
    return queue.stats()["total"]


def hung(hanging: threading.Event) -> dict[str, Callable[..., Any]]:
    """Handlers that hang, by how they do."""

    def thread(data: Any) -> None:
        hanging.wait(60)

    async def waits(data: Any) -> None:
        await asyncio.sleep(60)

    async def swallows(data: Any) -> None:
        while not hanging.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    async def blocks(data: Any) -> None:
        hanging.wait(60)

    async def blocks_in_a_task_of_its_own(data: Any) -> None:
        await asyncio.create_task(blocks(data))

    return {f.__name__: f for f in (thread, waits, swallows, blocks, blocks_in_a_task_of_its_own)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "waits", "swallows", "blocks", "blocks_in_a_task_of_its_own"])
def test_a_handler_that_hangs_is_ended_in_time_and_others_go_on(dsn, db, client, hanging, kind, record_property):
    """Ten of them beside tasks of the same kind of handler. Those that block their loop come one after another."""
    function, begun, ended = hung(hanging)[kind], dict[Any, float](), dict[Any, float]()
    hang, other = client.queue("hang"), client.queue("other")

    def noting(data: Any) -> Any:
        begun[data] = time.time()
        return function(data)

    async def noting_async(data: Any) -> Any:
        await noting(data)

    async def quick_async(data: Any) -> None:
        await asyncio.sleep(0)

    def others_go_on() -> None:
        other.put_many(range(5))
        eventually(lambda: total(other) == 0)

    def all_ended() -> bool:
        for data in column(db, "SELECT data FROM pgqueue.tasks WHERE queue = 'hang' AND state = 'buried'"):
            ended.setdefault(data, time.time())
        return len(ended) == len(begun)

    handlers = {"hang": noting_async, "other": quick_async}
    if kind == "thread":
        handlers = {"hang": noting, "other": lambda data: None}
    at_once = 1 if "blocks" in kind else RUNS
    with steady(dsn) as watch, working(client, handlers, concurrency=RUNS + 1, time_limit=LIMIT):
        for first in range(0, RUNS, at_once):
            hang.put_many(range(first, first + at_once))
            eventually(lambda first=first: len(begun) == first + at_once)  # type: ignore[misc]
            if "blocks" not in kind:
                others_go_on()
            eventually(all_ended)
            others_go_on()
    assert min(ended[data] - begun[data] for data in range(RUNS)) >= LIMIT
    late = sorted(ended[n] - begun[n] - LIMIT - watch.lost(begun[n], ended[n]) for n in range(RUNS))
    record_property("late", [round(seconds, 3) for seconds in late])
    assert late[int(0.8 * RUNS)] < BOUND, late  # a process may stall in between
    assert column(db, "SELECT DISTINCT error FROM pgqueue.tasks WHERE queue = 'hang'") == [
        f"it ran for longer than the worker's time limit of {LIMIT} s"
    ]


@pytest.mark.slow
def test_the_neighbours_in_a_loop_that_is_blocked_are_released_and_not_charged(db, client, hanging, caplog):
    begun = threading.Event()
    cancelled: list[Any] = []

    @client.job(queue="q", retry=pgqueue.Retry(attempts=1))
    async def neighbour() -> None:
        if not begun.is_set():
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append("neighbour")
                raise

    @client.job(queue="q", timeout=LIMIT, retry=pgqueue.Retry(attempts=1))
    async def blocks() -> None:
        hanging.wait(60)

    with working(client, None, concurrency=2, time_limit=60):
        released = neighbour.put()
        assert begun.wait(30)
        blocking = blocks.put()
        eventually(lambda: blocking.peek().state == "buried")
        eventually(lambda: any("is not begun" in message for message in caplog.messages))
        assert (released.peek().attempts, cancelled) == (0, [])
        hanging.set()
        eventually(lambda: total(client.queue("q")) == 1)
    assert row(db, "SELECT id, attempts FROM pgqueue.tasks") == (blocking.id, 1)


@pytest.mark.slow
def test_a_loop_is_not_given_up_for_a_handler_that_may_still_block_it(client, hanging):
    """The handler whose time is over waits; the one that blocks the loop has no time limit that has passed."""
    loops: list[Any] = []

    @client.job(queue="q", timeout=2 * LIMIT, retry=pgqueue.Retry(attempts=1))
    async def waits() -> None:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(60)

    @client.job(queue="q")
    async def blocks(wait: bool) -> None:
        loops.append(asyncio.get_running_loop())
        if wait:
            hanging.wait(60)

    with working(client, None, concurrency=3, time_limit=60):
        waiting = waits.put()
        eventually(lambda: loops)
        blocks.put(True)
        eventually(lambda: waiting.peek().state == "buried")
        hanging.set()
        blocks.put(False)
        eventually(lambda: total(client.queue("q")) == 1)
    assert len(loops) == 3
    assert len(set(loops)) == 1


# --- soft limits


def test_a_soft_limit_is_an_exception_in_a_coroutine(client):
    seen: list[Any] = []

    async def handle(data: Any) -> None:
        try:
            await asyncio.sleep(60)
        except SoftTimeLimit as error:
            seen.append(str(error))
            async with asyncio.timeout(30):  # fails in a task that still counts a cancellation
                await asyncio.sleep(0.01)
            seen.append(data)

    queue = client.queue("q")
    with working(client, {"q": handle}, soft_time_limit=0.5, time_limit=20):
        queue.put("x")
        eventually(lambda: total(queue) == 0)
    assert seen == ["its soft time limit has passed", "x"]


def test_a_soft_limit_reaches_a_thread_at_a_checkpoint(client):
    seen: list[Any] = []

    def handle(data: Any) -> None:
        try:
            while True:
                time.sleep(0.01)
                checkpoint()
        except SoftTimeLimit:
            checkpoint()  # once
            seen.append(data)

    queue = client.queue("q")
    with working(client, {"q": handle}, soft_time_limit=0.5, time_limit=20):
        queue.put("x")
        eventually(lambda: total(queue) == 0)
    assert seen == ["x"]
    checkpoint()  # outside of a handler it does nothing


def test_a_soft_limit_reaches_a_batch_at_a_checkpoint(client):
    seen: list[int] = []

    @client.batch_handler("rows", 5)
    def handle(tasks: list[Any]) -> None:
        try:
            while True:
                time.sleep(0.01)
                checkpoint()
        except SoftTimeLimit:
            seen.extend(task.data for task in tasks)

    queue = client.queue("rows")
    queue.put_many([1, 2])
    with working(client, None, soft_time_limit=0.5, time_limit=20):
        eventually(lambda: total(queue) == 0)
    assert sorted(seen) == [1, 2]


def test_a_soft_limit_that_is_not_caught_is_a_failed_attempt(db, client):
    async def handle(data: Any) -> None:
        await asyncio.sleep(60)

    queue = client.queue("q")
    with working(client, {"q": handle}, soft_time_limit=0.5):
        put = queue.put("x")
        eventually(lambda: queue.peek(put).state == "buried")
    assert column(db, "SELECT error FROM pgqueue.tasks")[0].startswith("pgqueue.errors.SoftTimeLimit: its soft time")


@pytest.mark.parametrize("limits", [{"time_limit": 0}, {"soft_time_limit": -1}, {"soft_time_limit": float("nan")}])
def test_limits_that_cannot_be_are_refused(client, limits):
    with pytest.raises(ValueError, match="time_limit"):
        Worker(client, {"q": print}, **limits)


# --- jobs


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "waits", "swallows", "blocks"])
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "mixed"])
def test_a_job_has_limits_of_its_own_in_a_mixed_queue_too(dsn, db, client, hanging, kind, mixed):
    """In a queue of sync and async jobs, threads wait for the async ones, in a loop of their own."""
    function = hung(hanging)[kind]
    begun: list[Any] = []

    def noting(data: str) -> None:
        begun.append(time.time())
        function(data)

    async def noting_async(data: str) -> None:
        begun.append(time.time())
        await function(data)

    retry = pgqueue.Retry(attempts=1)
    hang = client.job(queue="q", name="hang", timeout=LIMIT, retry=retry)(noting if kind == "thread" else noting_async)

    @client.job(queue="q", keep_result=60)
    async def quick(n: int) -> int:
        await asyncio.sleep(0)
        return n

    if mixed:

        @client.job(queue="q")
        def sync() -> None: ...

    with steady(dsn) as watch, working(client, None, time_limit=60, concurrency=3):
        late = []
        for n in range(3):
            put = hang.put("x")
            eventually(lambda put=put: put.peek().state == "buried")  # type: ignore[misc]
            ended = time.time()
            late.append(ended - begun[-1] - LIMIT - watch.lost(begun[-1], ended))
            assert quick.put(n).result(30) == n
    assert sorted(late)[1] < BOUND, late
    errors = column(db, "SELECT DISTINCT error FROM pgqueue.tasks WHERE state = 'buried'")
    assert errors == [f"it ran for longer than its time limit of {LIMIT} s"]


@pytest.mark.slow
def test_a_loop_that_was_blocked_ends_with_its_last_job(client, hanging):
    before = bridges()

    @client.job(queue="q", timeout=LIMIT, retry=pgqueue.Retry(attempts=1))
    async def blocks() -> None:
        hanging.wait(60)

    @client.job(queue="q", keep_result=60)
    def sync() -> str:
        return "done"

    with working(client, None, time_limit=60):
        put = blocks.put()
        eventually(lambda: put.peek().state == "buried")
        assert sync.put().result(30) == "done"
        assert len(bridges() - before) == 1
        hanging.set()
        eventually(lambda: not bridges() - before)


def bridges() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "pgqueue-bridge"}


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True], ids=["loop", "bridge"])
def test_a_job_has_a_soft_limit_of_its_own(client, mixed):
    @client.job(queue="q", keep_result=60, soft_timeout=0.5)
    async def patient() -> str:
        try:
            await asyncio.sleep(60)
        except SoftTimeLimit:
            await asyncio.sleep(0.01)
            return "softly"
        return "never"

    if mixed:

        @client.job(queue="q", keep_result=60, soft_timeout=0.5)
        def sync() -> str:
            try:
                while True:
                    time.sleep(0.01)
                    checkpoint()
            except SoftTimeLimit:
                return "at a checkpoint"

    with working(client, None, time_limit=60):
        assert patient.put().result(30) == "softly"
        if mixed:
            assert sync.put().result(30) == "at a checkpoint"


@pytest.mark.parametrize("mixed", [False, True], ids=["loop", "bridge"])
def test_cancelling_reaches_a_coroutine_and_not_a_thread(client, hanging, mixed):
    seen: list[str] = []

    @client.job(queue="q", retry=pgqueue.Retry(attempts=1))
    async def waits() -> None:
        try:
            seen.append("begun")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @client.job(queue="q" if mixed else "threads")
    def thread() -> None:
        seen.append("thread")
        hanging.wait(60)

    with working(client, None):
        put = waits.put()
        eventually(lambda: seen == ["begun"])
        client.cancel(put, "not wanted any more")
        (attempt,) = eventually(lambda: client.results.attempts(put))
        assert (seen, attempt.error) == (["begun", "cancelled"], "it was cancelled: not wanted any more")
        other = thread.put()
        eventually(lambda: seen[-1] == "thread")
        client.cancel(other)
        hanging.set()
        eventually(lambda: client.queue(other.queue).stats()["taken"] == 0)
    assert seen == ["begun", "cancelled", "thread"]  # its work is done, and acked


def test_the_watch_sleeps_while_a_handler_goes_on_after_its_soft_limit(
    client: pgqueue.Client, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is in the past then: a watch that still counted it would look without a pause."""
    looks: list[float] = []
    wait = overdue.Watch._until_next

    def until_next(watch: overdue.Watch) -> float:
        looks.append(wait(watch))
        return looks[-1]

    monkeypatch.setattr(overdue.Watch, "_until_next", until_next)
    softened = threading.Event()

    def goes_on(data: Any) -> None:
        with contextlib.suppress(SoftTimeLimit):
            while not softened.is_set():
                checkpoint()
                softened.wait(0.01)
        softened.set()
        hanging.wait(60)

    client.queue("q").put(1)
    with working(client, {"q": goes_on}, soft_time_limit=0.05):
        assert softened.wait(30)
        looks.clear()
        eventually(lambda: len(looks) >= 2)
        hanging.set()
    assert looks[0] == overdue.LOOK
