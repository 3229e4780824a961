"""Lanes, on both shells, and under eight processes that release, bury and die."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from eventually import eventually
from processes import Program
from statements import put, rows, value
from waiters import waiting

LANES = ["ann", "bob", "cid", "dan", "eve"]
TASKS = 600
TAKERS = 8


async def test_the_second_task_of_a_lane_is_not_taken_until_the_ack(queue):
    first = await queue.put(1, lane="a")
    second = await queue.put(2, lane="a")
    assert (first.state, second.state) == ("ready", "blocked")
    task = await queue.take(0)
    assert task.id == first.id
    assert await queue.take(0) is None
    await task.ack()
    task = await queue.take(0)
    assert task.id == second.id


async def test_a_waiting_taker_is_woken_when_the_lane_is_free(client, queue):
    await queue.put(1, lane="a")
    second = await queue.put(2, lane="a")
    task = await queue.take(0)
    taking = asyncio.ensure_future(queue.take(10))
    await waiting(client, "q")
    await task.ack()
    assert (await taking).id == second.id


async def test_tasks_in_lanes_and_in_none_come_in_order(queue):
    await queue.put_many([0, 1, 2, 3], lane=["a", "a", None, "b"])
    assert [task.data for task in await queue.take_many(10, timeout=0)] == [0, 2, 3]


async def test_a_pop_gives_the_next_of_each_lane(queue):
    await queue.put_many([0, 1], lane="a")
    assert [task.data for task in await queue.pop(10)] == [0]
    assert [task.data for task in await queue.pop(10)] == [1]
    assert await queue.pop() == []


async def test_a_release_with_a_delay_frees_the_lane_unless_it_holds_it(queue):
    for hold_lane in (False, True):
        lane = f"hold {hold_lane}"
        await queue.put_many([1, 2], lane=lane)
        await (await queue.take(0)).release(3600, hold_lane=hold_lane)
        second = await queue.take(0)
        assert (second is None) is hold_lane


@pytest.mark.slow
def test_eight_takers_five_lanes_six_hundred_tasks(
    dsn: str, db: psycopg.Connection, start: Callable[..., Program]
) -> None:
    """Never two at once in a lane, in order, and nothing is stuck. The takers release, bury, delay, and one take in a
    hundred kills its process; producers keep their transactions open, and some of what they put is urgent."""
    db.execute("SELECT pgqueue.allow_lanes('q')")
    db.execute("UPDATE pgqueue.queue SET listed = true WHERE name = 'q'")  # each task knows what transaction put it
    violations: list[Any] = []

    def hear(line: dict[str, Any]) -> None:
        if "ready" not in line:
            violations.append(line)

    chance = random.Random(33)

    def taker() -> Program:
        return start("lane_taker", dsn, "q", chance.random(), heard=hear)

    def left() -> int:
        return int(value(db, "SELECT count(*) FROM pgqueue.task"))

    takers = [taker() for _ in range(TAKERS)]
    put_all = threading.Event()

    def watch() -> None:
        """Kicks what was buried, and replaces the dead."""
        while not put_all.is_set() or left():
            rows(db, "SELECT pgqueue.kick('q', 100)")
            for i, one in enumerate(takers):
                if one.has_ended():
                    takers[i] = taker()
            put_all.wait(0.02)

    with ThreadPoolExecutor() as threads:
        producers = [threads.submit(produce, dsn, seed) for seed in range(4)]
        watching = threads.submit(watch)
        for producer in producers:
            producer.result(120)
        put_all.set()
        watching.result(120)
    assert violations == []
    eventually(lambda: rows(db, "SELECT pgqueue.promote_all(), count(*) FROM pgqueue.lane_check")[0][1] == 0)


def produce(dsn: str, seed: int) -> None:
    """A share of the tasks, a few in a transaction; some transactions are rolled back."""
    chance = random.Random(seed)
    left = TASKS // 4
    with psycopg.connect(dsn, autocommit=True) as conn:
        while left:
            n = min(left, chance.randint(1, 8))
            with conn.transaction(force_rollback=chance.random() < 0.1) as transaction:
                for _ in range(n):
                    lane = chance.choice(LANES)
                    put(conn, "q", lane, lane=lane, priority=chance.choice([0, 0, 0, 0, -1]))
                    threading.Event().wait(chance.random() * 0.005)
            left -= 0 if transaction.force_rollback else n
