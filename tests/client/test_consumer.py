"""client.consumer(): taking ahead with a descriptor, credit and an ack buffer."""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from eventually import eventually
from waiters import waiting

import pgqueue
from pgqueue._engine import takes


async def received(consumer: Any, n: int) -> list[Any]:
    """The next n tasks, whatever the batches."""
    tasks: list[Any] = []
    while len(tasks) < n:
        batch = await consumer.receive(timeout=30)
        assert batch, f"{len(tasks)} of {n} tasks came"
        tasks += batch
    return tasks


async def test_it_takes_and_acks(client: Any, queue: Any) -> None:
    await queue.put_many(range(10))
    async with await client.consumer(["q"]) as consumer:
        tasks = await received(consumer, 10)
        assert [task.data for task in tasks] == list(range(10))
        assert [task.state for task in tasks] == ["taken"] * 10
        for task in tasks:
            consumer.ack(task)
        assert await consumer.receive() == []
        assert (await queue.stats())["calls"]["ack"] == 10


async def test_a_put_and_a_due_task_end_the_wait(client: Any, queue: Any) -> None:
    async with await client.consumer(["q"]) as consumer:
        assert await consumer.receive() == []
        await queue.put("now")
        assert [task.data for task in await received(consumer, 1)] == ["now"]
        await queue.put("later", delay=0.3)
        assert [task.data for task in await received(consumer, 1)] == ["later"]


@pytest.mark.parametrize("user", ["a consumer without room", "a consumer that waits", "a taker that waits"])
async def test_it_uses_its_queues(
    shell: Any, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    """The listener says so, whatever the program does meanwhile."""
    monkeypatch.setattr("pgqueue._engine.uses.NOTE", 0.05)
    client = shell.client(poll=None)
    queue = await client.create_queue("q", expires=60)
    consumer = await client.consumer(["other", "q"], prefetch=1)
    if user == "a consumer without room":
        await client.queue("other").put(1)
        await received(consumer, 1)
    elif user == "a consumer that waits":
        assert await consumer.receive() == []
    else:
        await consumer.close()
        taker = asyncio.ensure_future(queue.take(None))
        await waiting(client, "q")
    db.execute("INSERT INTO pgqueue.unused SELECT id, now() - interval '59 s' FROM pgqueue.queue WHERE name = 'q'")
    eventually(lambda: db.execute("SELECT FROM pgqueue.unused").fetchall() == [])
    await consumer.close()
    if user == "a taker that waits":
        await queue.put(1)
        await (await taker).ack()


async def test_it_holds_no_more_than_its_prefetch(client: Any, queue: Any) -> None:
    await queue.put_many(range(5))
    async with await client.consumer(["q"], prefetch=2) as consumer:
        first = await received(consumer, 2)
        assert [task.data for task in first] == [0, 1]
        assert await consumer.receive(timeout=0.05) == []
        consumer.ack(first[0])
        assert [task.data for task in await received(consumer, 1)] == [2]
        await first[1].bury()
        consumer.settled(first[1])
        assert [task.data for task in await received(consumer, 1)] == [3]
        consumer.change(["q"], None)
        assert [task.data for task in await received(consumer, 1)] == [4]


async def test_it_waits_for_more_while_it_has_room(client: Any, queue: Any) -> None:
    """A worker with a free process has to hear of a task although none of those that it runs has ended."""
    async with await client.consumer(["q"], prefetch=2) as consumer:
        with selectors.DefaultSelector() as selector:
            selector.register(consumer, selectors.EVENT_READ)
            got: list[Any] = []
            for number in range(2):
                await queue.put(number)
                while len(got) <= number:
                    assert selector.select(30), "the descriptor was not readable"
                    got += await consumer.receive()
            assert [task.data for task in got] == [0, 1]


async def test_what_was_put_between_two_receives_comes(client: Any, queue: Any) -> None:
    """The second one does not claim first: the claim before it has found that there is no more."""
    async with await client.consumer(["q"]) as consumer:
        for number in range(3):
            await queue.put_many([number, number])
            assert [task.data for task in await received(consumer, 2)] == [number, number]


async def test_its_queues_change(client: Any) -> None:
    await client.queue("a").put("a")
    await client.queue("b").put("b")
    async with await client.consumer() as consumer:
        assert await consumer.receive(timeout=0.05) == []
        consumer.change(["b"], 200)
        assert [task.data for task in await received(consumer, 1)] == ["b"]
        consumer.change(["a"], 200)
        assert [task.data for task in await received(consumer, 1)] == ["a"]
        assert consumer.queues == ("a",)
        consumer.change([], 200)
        await client.queue("a").put("more")
        assert await consumer.receive(timeout=0.05) == []


async def test_close_sends_the_acks_and_gives_back_the_rest(client: Any, queue: Any) -> None:
    await queue.put_many([1, 2, 3])
    consumer = await client.consumer(["q"])
    tasks = await received(consumer, 3)
    consumer.ack(tasks[1])
    await consumer.close()
    await consumer.close()
    assert [task.data for task in await queue.take_many(10, 5)] == [1, 3]
    with pytest.raises(pgqueue.ClosedError, match="consumer is closed"):
        await consumer.receive()


async def test_a_late_ack_is_told_and_the_others_are_made(client: Any, queue: Any) -> None:
    await queue.put_many([1, 2])
    async with await client.consumer(["q"]) as consumer:
        one, two = await received(consumer, 2)
        await one.release()
        consumer.ack(one)
        consumer.ack(two)
        with pytest.raises(pgqueue.TakeLost):
            await consumer.receive()
        again = await received(consumer, 1)
        assert [task.data for task in again] == [1]
        consumer.ack(again[0])
        await consumer.flush()
        assert (await queue.stats())["calls"]["ack"] == 2


async def test_a_task_that_is_not_held_is_refused(client: Any, queue: Any) -> None:
    await queue.put(1)
    async with await client.consumer(["q"]) as consumer:
        (task,) = await received(consumer, 1)
        consumer.ack(task)
        with pytest.raises(ValueError, match=f"task {task.id} is not held by this consumer"):
            consumer.ack(task)


@pytest.mark.parametrize(
    ("queues", "prefetch", "message"),
    [("q", 1, "not the string"), (["q"], -1, "prefetch must be"), ([""], 1, "name"), (["q"], True, "prefetch must be")],
)
async def test_bad_arguments(client: Any, queues: Any, prefetch: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        await client.consumer(queues, prefetch)


async def test_it_ends_with_its_client(client: Any, queue: Any) -> None:
    consumer = await client.consumer(["q"])
    waiting = asyncio.ensure_future(consumer.receive(timeout=30))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(pgqueue.ClosedError):
        await waiting
    await consumer.close()


def test_an_event_loop_of_any_kind_waits_for_its_descriptor(blocking: Callable[..., pgqueue.Client]) -> None:
    """The descriptor is readable when there is something to do, and else it is not. No thread waits."""
    client = blocking()
    queue, threads = client.queue("q"), threading.active_count()
    with client.consumer(["q"]) as consumer, selectors.DefaultSelector() as selector:
        selector.register(consumer, selectors.EVENT_READ)
        assert threading.active_count() <= threads + 1  # the client's listener

        def next_tasks() -> list[Any]:
            until = time.monotonic() + 30
            while time.monotonic() < until:
                if selector.select(30) and (tasks := consumer.receive()):
                    return tasks
            raise AssertionError("no task came")

        queue.put("ready")
        (task,) = next_tasks()  # also without a receive() before it
        consumer.ack(task)
        assert selector.select(0), "an ack that is due is something to do"
        queue.put("delayed", delay=0.2)
        assert [task.data for task in next_tasks()] == ["delayed"]
        eventually(lambda: consumer.receive() == [] and not selector.select(0.2))


@pytest.mark.slow
def test_after_a_wait_it_claims_one_task_if_the_wait_before_was_for_one(
    blocking: Callable[..., pgqueue.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = blocking()
    queue, connections, claims = client.queue("q"), client.shell.connections, list[Any]()
    run = connections.run

    def noted(call: Any, **options: Any) -> Any:
        if call.function in ("take", "take_many"):
            claims.append(call.function)
        return run(call, **options)

    monkeypatch.setattr(connections, "run", noted)
    with client.consumer(["q"], 8) as consumer, selectors.DefaultSelector() as selector:
        selector.register(consumer, selectors.EVENT_READ)
        for first, sizes in (("take_many", [1]), ("take", [1]), ("take", [1, 2]), ("take_many", [3])):
            eventually(lambda: consumer.receive() == [] and not selector.select(0.2))  # it waits
            claims.clear()
            queue.put_many(range(sum(sizes)))
            received = list[list[Any]]()
            while sum(map(len, received)) < sum(sizes):
                assert selector.select(30)
                received += filter(None, [consumer.receive()])
            assert [len(tasks) for tasks in received] == sizes
            assert claims[0] == first
            for tasks in received:
                for task in tasks:
                    consumer.ack(task)


class Full:
    """A consumer that holds as many tasks as it may, 4 of 8."""

    def __init__(self, client: pgqueue.Client, selector: selectors.BaseSelector) -> None:
        self.queue = client.queue("q")
        self.queue.put_many(range(8))
        self.consumer = client.consumer(["q"], 4)
        self.tasks: list[pgqueue.Task] = []
        while len(self.tasks) < 4:
            self.tasks += self.consumer.receive(30)
        self.consumer.receive()
        self._selector = selector
        selector.register(self.consumer, selectors.EVENT_READ)

    def is_readable(self, within: float) -> bool:
        return bool(self._selector.select(within))


@pytest.fixture
def full(blocking: Callable[..., pgqueue.Client]) -> Iterator[Full]:
    with selectors.DefaultSelector() as selector:
        made = Full(blocking(), selector)
        yield made
        made.consumer.close()


def test_a_full_consumer_gathers_acks_until_half_of_its_tasks_are_settled(
    full: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue._sync.consumer.GATHER", 60)
    full.consumer.ack(full.tasks[0])
    assert not full.is_readable(0)
    full.tasks[1].bury()
    full.consumer.settled(full.tasks[1])
    assert full.is_readable(0)
    assert [task.data for task in full.consumer.receive()] == [4, 5]


def test_a_full_consumer_gathers_acks_for_a_moment(full: Full) -> None:
    full.consumer.ack(full.tasks[0])
    assert full.is_readable(30)
    assert [task.data for task in full.consumer.receive()] == [4]


def test_an_ack_beside_a_claim_is_not_forgotten(full: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread acks between the flush and a claim that begins to wait, which drops the alarm of that ack."""
    monkeypatch.setattr("pgqueue._sync.consumer.GATHER", 60)
    take = takes.take

    def beside(*arguments: Any, **options: Any) -> Any:
        thread = threading.Thread(target=full.consumer.ack, args=(full.tasks[2],))
        thread.start()
        thread.join()
        return take(*arguments, **options)

    full.queue.take_many(4, 0)
    full.consumer.ack(full.tasks[0])
    with monkeypatch.context() as patch:
        patch.setattr(full.consumer, "_room", lambda: 1)  # as if the other ack came a moment before
        patch.setattr("pgqueue._sync.consumer.takes.take", beside)
        assert full.consumer.receive() == []
    assert full.is_readable(0)
    full.consumer.receive()
    assert full.queue.stats()["calls"]["ack"] == 2


def test_acks_of_many_threads_are_all_sent(blocking: Callable[..., pgqueue.Client]) -> None:
    client = blocking()
    queue = client.queue("q")
    queue.put_many(range(400))
    with client.consumer(["q"], None) as consumer:
        tasks: list[Any] = []
        while len(tasks) < 400:
            tasks += consumer.receive(30)
        acking = [
            threading.Thread(target=lambda part=tasks[i::8]: [consumer.ack(task) for task in part]) for i in range(8)
        ]
        for thread in acking:
            thread.start()
        while any(thread.is_alive() for thread in acking):
            consumer.flush()
        for thread in acking:
            thread.join()
        consumer.flush()
        assert queue.stats()["calls"]["ack"] == 400
        assert len(consumer) == 0


def test_it_goes_on_after_its_connections_are_cut(
    blocking: Callable[..., pgqueue.Client], db: psycopg.Connection
) -> None:
    client = blocking()
    queue = client.queue("q")
    with client.consumer(["q"]) as consumer:
        assert consumer.receive() == []
        db.execute(
            "SELECT pg_terminate_backend(pid::int) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        queue.put("after")
        (task,) = consumer.receive(30)
        assert task.data == "after"
        consumer.ack(task)


def test_a_fork_refuses_its_parents_consumer(blocking: Callable[..., pgqueue.Client]) -> None:
    client = blocking()
    client.queue("q").put(1)
    with client.consumer(["q"]) as consumer:
        (task,) = consumer.receive(30)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    consumer.receive()
                except pgqueue.ClosedError:
                    consumer.close()  # gives nothing back that is the parent's
                    code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.peek(task.id).state == "taken"
        consumer.ack(task)
