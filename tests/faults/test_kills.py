"""kill -9: what was put is handled, what was acked is acked once, and the tasks of the dead are back at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from eventually import eventually, in_time
from processes import Program
from statements import row, rows, value

import pgqueue

TAKERS = 4
BATCH = 20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_takers_lose_and_repeat_nothing(
    dsn: str,
    db: psycopg.Connection,
    size: dict[str, int],
    start: Callable[..., Program],
    record_property: Callable[[str, object], None],
) -> None:
    """Takers die at random moments: in a claim, in an ack, in between. Every task is acked exactly once."""
    db.execute("CREATE TABLE acked (task_id bigint NOT NULL, pid int NOT NULL)")
    kills, portion = size["kills"], size["kill_tasks"] // size["kills"]
    refused: list[Any] = []
    ready = threading.Semaphore(0)

    def hear(line: dict[str, Any]) -> None:
        if "ready" in line:
            ready.release()
        else:
            refused.append(line)

    def taker() -> Program:
        program = start("taker", dsn, "q", BATCH, heard=hear)
        assert ready.acquire(timeout=30)
        return program

    began = time.monotonic()
    chance = random.Random(kills)
    takers = [taker() for _ in range(TAKERS)]
    with pgqueue.Client(dsn) as client:
        queue = client.queue("q")
        for kill in range(kills):
            queue.put_many([{"kill": kill}] * portion)
            threading.Event().wait(chance.uniform(0, 0.2))  # a random moment is the point
            takers.pop(chance.randrange(TAKERS)).kill()
            takers.append(taker())
        eventually(lambda: queue.stats()["total"] == 0, within=60 + size["kill_tasks"] / 200)
    took = time.monotonic() - began
    assert [process.end() for process in takers] == [0] * TAKERS
    total = kills * portion
    assert row(db, "SELECT count(*), count(DISTINCT task_id) FROM acked") == (total, total)
    assert rows(db, "SELECT * FROM pgqueue.take") == []
    assert rows(db, "SELECT * FROM pgqueue.session") == [] or eventually(lambda: swept(db))
    assert refused == []
    record_property("kills", f"{kills} kills, {total} tasks, {took:.1f} s")
    print(f"{kills} kills, {total} tasks, {took:.1f} s")


def swept(db: psycopg.Connection) -> bool:
    """The last ones killed are given up: every listener is gone, so it is for us to sweep."""
    db.execute("SELECT pgqueue.sweep()")
    return value(db, "SELECT count(*) FROM pgqueue.session") == 0


def waiting(db: psycopg.Connection) -> bool:
    """Somebody sleeps: holds a WAITER lock."""
    query = "SELECT EXISTS (SELECT FROM pg_locks WHERE classid = pgqueue._waiter_lock() AND granted)"
    return bool(value(db, query))


@pytest.mark.slow
@pytest.mark.parametrize(("grace", "bound"), [(0.5, 1.0), (0.0, 0.4)], ids=["defaults", "no grace"])
def test_tasks_of_a_killed_process_are_taken_again_in_time(
    dsn: str,
    db: psycopg.Connection,
    start: Callable[..., Program],
    blocking: Callable[..., pgqueue.Client],
    record_property: Callable[[str, object], None],
    grace: float,
    bound: float,
) -> None:
    """Others' tasks stay where they are."""
    queue = blocking(session_grace=grace).queue("q")
    bystander = start("holder", dsn, "other", grace)
    blocking().queue("other").put("not yours")
    assert len(bystander.ask("take 1")["taken"]) == 1
    latencies = []

    def kill_to_take() -> float:
        victim = start("holder", dsn, "q", grace)
        queue.put_many(range(3))
        held = victim.ask("take 3")["taken"]
        with ThreadPoolExecutor(1) as thread:
            taking = thread.submit(lambda: (queue.take_many(3, timeout=10), time.monotonic()))
            eventually(lambda: waiting(db))
            killed = time.monotonic()
            victim.kill()
            taken, at = taking.result()
        latencies.append(at - killed)
        queue.ack_many(taken)
        assert [(task.id, task.attempts) for task in taken] == [(id, 0) for id in held]
        return latencies[-1]

    for _ in range(5):
        in_time(kill_to_take, within=bound)
    latencies.sort()
    figures = (
        f"re-take after kill -9, grace {grace}: p50 {latencies[len(latencies) // 2]:.2f} s, max {latencies[-1]:.2f} s"
    )
    record_property("latency", figures)
    print(figures)
    assert value(db, "SELECT taken FROM pgqueue.stats WHERE queue = 'other'") == 1
    assert bystander.ask("ack") == {"acked": True}
