"""A handler that blocks its event loop holds up the async handlers of other queues once, for less than a second."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from eventually import eventually
from running import running

import pgqueue
from pgqueue import Retry, Worker
from pgqueue._calls.take import Taken
from pgqueue.worker.buffer import Buffer
from pgqueue.worker.loops import LOOKS, SILENT, Life, Loop
from pgqueue.worker.runs import Runs
from pgqueue.worker.shares import Shares

pytestmark = pytest.mark.once


@pytest.fixture
def client(blocking: Callable[..., pgqueue.Client]) -> pgqueue.Client:
    return blocking()


@pytest.fixture
def hold() -> Iterator[threading.Event]:
    """What the blocking handlers wait for."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def good(client: pgqueue.Client) -> Any:
    @client.job(queue="good", keep_result=60)
    async def good(n: int) -> int:
        return n

    return good


def working(client: pgqueue.Client, **options: Any) -> AbstractContextManager[Worker]:
    return running(Worker(client, **({"grace": 10, "concurrency": 4} | options)))


def blocks(client: pgqueue.Client, hold: threading.Event, queue: str = "bad", **options: Any) -> Any:
    @client.job(name=f"{queue}.block", queue=queue, **options)
    async def block() -> None:
        hold.wait(60)

    return block


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "another one begins for the other tasks" in message]


@pytest.mark.slow
def test_the_other_queues_go_on_and_the_blocking_one_has_a_loop_to_itself(client, good, hold, caplog):
    """Without a time limit, and with more tasks of the bad queue than the worker has runners: only the first of them
    can hold up another queue."""
    block = blocks(client, hold)
    tasks = [block.put() for _ in range(6)]
    with working(client):
        assert [good.put(n).result(20) for n in range(20)] == list(range(20))
        assert {task.peek().state for task in tasks} <= {"ready", "taken"}
        assert len(warned(caplog)) == 1
        assert "of bad blocks the event loop" in warned(caplog)[0]
        assert "hold.wait(60)" in warned(caplog)[0]
        hold.set()
        eventually(lambda: client.queue("bad").stats()["total"] == 0)


@pytest.mark.slow
def test_each_queue_that_blocks_gets_a_loop_and_the_last_one_keeps_the_first(client, good, hold, caplog):
    others = [blocks(client, hold, name) for name in ("b1", "b2", "b3")]
    for other in others:
        other.put()
        other.put()
    with working(client):
        eventually(lambda: len(warned(caplog)) == 3)
        assert good.put(7).result(20) == 7
        hold.set()
        eventually(lambda: not any(client.queue(name).stats()["total"] for name in ("b1", "b2", "b3")))


@pytest.mark.slow
def test_the_tasks_of_the_bad_queue_are_cut_by_their_limit_and_others_do_not_notice(client, good, hold, caplog):
    block = blocks(client, hold, timeout=0.3, retry=Retry(attempts=1))
    tasks = [block.put() for _ in range(4)]
    with working(client):
        assert good.put(0).result(20) == 0
        while client.queue("bad").stats()["buried"] < len(tasks):
            assert good.put(1).result(20) == 1
    assert {task.peek().attempts for task in tasks} == {1}
    assert len([message for message in caplog.messages if "a handler" in message and "of good" in message]) == 0


@pytest.mark.slow
def test_a_handler_under_way_beside_the_one_that_blocks_goes_on_after_it(client, good, hold):
    began, other = threading.Event(), []

    @client.job(queue="waits", keep_result=60)
    async def waits() -> int:
        other.append(1)
        began.set()
        while not hold.is_set():
            await asyncio.sleep(0.01)
        return 5

    block = blocks(client, hold)
    with working(client):
        task = waits.put()
        assert began.wait(20)
        block.put()
        assert good.put(1).result(20) == 1
        hold.set()
        assert task.result(20) == 5
    assert other == [1]


@pytest.mark.slow
def test_a_stop_waits_for_the_handlers_of_the_loop_that_was_left(client, good, hold):
    block = blocks(client, hold, keep_result=60)
    with working(client) as worker:
        task = block.put()
        assert good.put(1).result(20) == 1
        worker.stop()
        threading.Timer(0.5, hold.set).start()
    assert task.outcome().state == "done"


@pytest.mark.parametrize("kind", ["mixed", "batch"])
def test_an_async_job_in_a_thread_that_blocks_its_loop_holds_up_no_other_queue(client, hold, kind):
    began = threading.Event()

    def sync() -> None:
        pass

    async def block() -> None:
        began.set()
        hold.wait(60)

    async def answer(n: int) -> int:
        return n

    if kind == "mixed":
        block_job = client.job(queue="bad")(block)
        client.job(queue="bad")(sync)
        put = block_job.put
    else:

        @client.batch_handler("bad", 10)
        async def many(tasks: Any) -> None:
            await block()

        def put() -> Any:
            return client.queue("bad").put(1)

    good = client.job(queue="good", keep_result=60)(answer)
    client.job(queue="good")(sync_too := _copy(sync))
    assert sync_too is not sync
    with working(client):
        put()
        assert began.wait(20)
        assert [good.put(n).result(20) for n in range(5)] == list(range(5))
        hold.set()


def _copy(function: Callable[[], None]) -> Callable[[], None]:
    def other() -> None:
        function()

    return other


# --- the parts


def task(id: int, queue: str) -> Taken:
    return Taken(id, 7, 0, 0, None, "null", queue)


def shared(queues: str) -> Shares:
    return Shares(4, list(queues), {})


def test_a_take_that_was_under_way_brings_the_tasks_of_a_queue_that_was_left_in_vain() -> None:
    """T1, the fetcher, has sent its take of both queues when T2 parts with one of them."""
    buffer = Buffer(lambda n: None, shares=shared("ab"))
    mine, others = task(1, "a"), task(2, "b")
    assert buffer.fill([mine, others]) == []
    assert buffer.move("new", lambda n: None, without="b") == [others]
    late = task(3, "b")
    assert buffer.fill([late]) == [late]
    assert buffer.held() == [mine]
    assert buffer.wanted(["a", "b"]).queues  # the fetcher's list may be the old one
    assert list(buffer.startable(["a", "b"])) == ["a"]


def test_a_queue_that_was_left_has_no_place_kept() -> None:
    shares = shared("ab")
    shares.part("b")
    shares.part("b")
    assert not shares.several
    for runner in range(4):
        assert shares.may_start("a")
        assert not shares.may_start("b")
        shares.hold(runner, "a")


def test_a_machine_that_stood_still_is_no_blocked_loop() -> None:
    """The watch wakes up before the loop's thread: long after its question, but it has looked only once since."""
    buffer = Buffer(lambda n: None)
    held, entered = threading.Event(), threading.Event()

    def enter() -> None:
        entered.set()
        held.wait(30)

    async def handle(task: Any) -> None:
        raise AssertionError

    pool: Any = None
    loop = Loop(1, Life(handle, enter), buffer, Runs(), pool)
    buffer.move(loop, loop.wake)
    loop.start()
    try:
        assert entered.wait(30)
        now = time.monotonic()
        assert not loop.is_silent(now)
        later = now + 100 * SILENT
        assert [loop.is_silent(later) for _ in range(LOOKS)] == [False] * (LOOKS - 1) + [True]
        held.set()
        eventually(lambda: not loop.is_silent(time.monotonic()))
    finally:
        held.set()
        buffer.close()
        assert loop.join(30)
