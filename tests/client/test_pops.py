"""pop on both shells: waiting for a task, over several queues, and at most once."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, soon_enough
from flowing import Clock, Listener, Take, name, task
from statements import rows
from steady import steady
from waiters import waiting

from pgqueue._engine import pops, takes
from pgqueue.errors import ConnectionLost, ServerError


async def test_a_waiting_pop_gets_what_is_put(client: Any, queue: Any, db: psycopg.Connection) -> None:
    async def put_to_popped() -> float:
        popping = asyncio.ensure_future(queue.pop(timeout=3))
        await waiting(client, "q")
        watch = Stopwatch()
        await queue.put("x")
        (task,) = await popping
        assert (task.data, task.queue, task.state, task.token) == ("x", "q", "done", None)
        return watch()

    await soon_enough(put_to_popped, within=0.3)
    assert rows(db, "SELECT * FROM pgqueue.tasks") == rows(db, "SELECT * FROM pgqueue.take") == []


@pytest.mark.parametrize("timeout", [0.3, timedelta(seconds=0.3)])
async def test_a_pop_from_empty_queues_ends_in_its_time(client: Any, queue: Any, timeout: Any) -> None:
    await client.pop(["q", "r"])  # opens the session

    async def both() -> float:
        watch = Stopwatch()
        assert await queue.pop(timeout=timeout) == []
        assert await client.pop(["q", "r"], timeout=timeout) == []
        assert watch() >= 0.6
        return watch()

    await soon_enough(both, within=1)


async def test_a_pop_does_not_wait_unless_it_is_told_to(client: Any, queue: Any, dsn: str) -> None:
    await client.pop(["q", "r"])

    async def three() -> float:
        with steady(dsn) as watch:
            assert await queue.pop() == await queue.pop(2, 0) == await client.pop(["q", "r"]) == []
            return watch() - 4 * watch.step()  # one look for each, and another of two queues

    await soon_enough(three, within=0.1)


async def test_of_several_queues_the_lowest_priority_and_id_is_first(client: Any, db: psycopg.Connection) -> None:
    await client.queue("b").put("b0")
    await client.queue("a").put_many(["a1", "a2"], priority=1)
    await client.queue("b").put("b2", priority=2)
    popped = [await client.pop(["a", "b", "none"]) for _ in range(5)]
    assert [[(task.queue, task.data) for task in one] for one in popped] == [
        [("b", "b0")],
        [("a", "a1")],
        [("a", "a2")],
        [("b", "b2")],
        [],
    ]
    assert rows(db, "SELECT * FROM pgqueue.tasks") == rows(db, "SELECT * FROM pgqueue.take") == []


async def test_many_of_several_queues(client: Any, db: psycopg.Connection) -> None:
    await client.queue("a").put_many(["a1", "a2"], priority=1)
    await client.queue("b").put_many(["b1", "b2"])
    assert [task.data for task in await client.pop(["a", "b"], 3)] == ["b1", "b2", "a1"]
    assert rows(db, "SELECT data, state FROM pgqueue.tasks") == [("a2", "ready")]
    stats = await client.queue("b").stats()
    assert (stats["total"], stats["taken"], stats["done"], stats["calls"]["ack"]) == (0, 0, 2, 2)


async def test_a_pop_of_several_queues_waits_for_the_first_task_of_any(client: Any) -> None:
    popping = asyncio.ensure_future(client.pop(["a", "b"], 5, None))
    await waiting(client, "a", "b")
    await client.queue("b").put("x")
    assert [(task.queue, task.data) for task in await popping] == [("b", "x")]


async def test_a_task_that_expires_between_take_and_ack_is_not_returned(client: Any, db: psycopg.Connection) -> None:
    """Its ttr is over at once, so the ack is refused: it comes back, and a pop that returned it would do so twice."""
    await client.create_queue("a")
    await client.create_queue("b")
    await client.queue("a").put("short", ttr=1e-6)
    await client.queue("a").put("long")
    assert [task.data for task in await client.pop(["a", "b"], 2)] == ["long"]
    assert rows(db, "SELECT data FROM pgqueue.tasks") == [("short",)]


async def test_eight_pop_each_task_once(client: Any, queue: Any) -> None:
    ids = await queue.put_many(range(100))

    async def popper() -> list[int]:
        popped: list[int] = []
        while tasks := await client.pop(["q", "r"], 3, 0):
            popped += [task.id for task in tasks]
        return popped

    popped = await asyncio.gather(*(popper() for _ in range(8)))
    assert sorted(id for ids in popped for id in ids) == ids


async def test_a_pop_in_a_transaction_does_not_wait(shell: Any, queue: Any) -> None:
    conn = await shell.connection()
    for timeout in (1, None):
        with pytest.raises(ValueError, match="a pop with conn cannot wait"):
            await queue.pop(timeout=timeout, conn=conn)
    await queue.put("x")
    assert [task.data for task in await queue.pop(1, 0, conn=conn)] == ["x"]
    await conn.rollback()
    assert [task.data for task in await queue.pop()] == ["x"]


@pytest.mark.parametrize(("n", "timeout"), [(0, 1), (1, float("nan")), (1, "1"), (True, 1)])
async def test_arguments_are_checked(client: Any, queue: Any, n: Any, timeout: Any) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        await queue.pop(n, timeout)
    with pytest.raises(ValueError, match=r"must be"):
        await client.pop(["q"], n, timeout)


# --- by hand, without a database: tests/engine/test_takes.py has the same for takes


class Pop(Take):
    def begin(self, *queues: str, n: int = 1, timeout: float | None = None) -> Any:
        listener: Any = self.listener
        self.flow = pops.pop(self.core, listener, threading.Event, queues or ("q",), n, timeout)
        return self._go(lambda: next(self.flow))


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> Pop:
    clock = Clock()
    monkeypatch.setattr(takes, "time", SimpleNamespace(monotonic=clock))
    return Pop(clock, Listener(clock))


def test_a_pop_commits_durably_and_is_not_undone(by_hand: Pop) -> None:
    step = by_hand.begin()
    assert (name(step), step.relaxed) == ("pop", False)
    with pytest.raises(KeyboardInterrupt):
        by_hand.fail(KeyboardInterrupt())
    assert by_hand.listener.undone == []


def test_a_pop_whose_answer_is_lost_ends(by_hand: Pop) -> None:
    by_hand.begin()
    with pytest.raises(ConnectionLost, match="it broke"):
        by_hand.fail(ConnectionLost("it broke"))


def test_also_when_it_looks_for_the_last_time_before_it_sleeps(by_hand: Pop) -> None:
    by_hand.begin()
    by_hand.answer([])
    by_hand.answer({"q": 1})
    by_hand.answer(True)
    assert name(by_hand.answer({"q": 0.0})) == "pop"  # something is due
    with pytest.raises(ConnectionLost, match="it broke"):
        by_hand.fail(ConnectionLost("it broke"))


def test_a_server_that_is_away_is_waited_for(by_hand: Pop) -> None:
    by_hand.begin()
    by_hand.fail(ServerError("away"))
    by_hand.answer()
    assert name(by_hand.step) == "pop"
    by_hand.answer([task()])
    assert by_hand.result == [task()]


def test_several_queues_are_popped_from_one_by_one_if_a_task_is_due_and_the_pop_of_all_found_none(by_hand: Pop) -> None:
    by_hand.begin("q", "r", timeout=0)
    assert name(by_hand.answer([])) == "next_due"
    assert name(by_hand.answer({"q": None, "r": 0.0})) == "pop"
    by_hand.answer([task(queue="r")])
    assert by_hand.result == [task(queue="r")]


def test_a_pop_of_one_of_several_queues_whose_answer_is_lost_ends(by_hand: Pop) -> None:
    by_hand.begin("q", "r", timeout=0)
    by_hand.answer([])
    by_hand.answer({"q": 0.0})
    with pytest.raises(ConnectionLost):
        by_hand.fail(ConnectionLost("gone"))
