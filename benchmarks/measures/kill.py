"""The delay of a killed process's tasks: from its SIGKILL until another process has taken all of them."""

from __future__ import annotations

import random
import time

import pgqueue
from pgqueue._engine.core import Settings

from .. import conventional, takers
from ..bench import QUEUE, Bench
from ..children import LIMIT, Child
from ..findings import Findings, Row

TASKS = 10


def measure(bench: Bench) -> Findings:
    kills = bench.size(12, 3)
    rows = []
    for grace, target, name in ((Settings.of().session_grace, 1.0, "defaults"), (0.0, 0.4, "session_grace=0")):
        times = _kill(bench, kills, grace)
        median, last = sorted(times)[len(times) // 2], max(times)
        what = f"tasks of a killed process taken again, {name}, {kills} kills"
        shown = f"{last:.2f} s at most, {median:.2f} s median"
        rows.append(Row(what, shown, target=f"<= {target} s", met=last <= target))
    return Findings(rows)


def _kill(bench: Bench, kills: int, grace: float) -> list[float]:
    with bench.server.database() as dsn, pgqueue.Client(dsn) as client:
        queue = client.queue(QUEUE)
        queue.take(0)  # the survivor has its session and its ticks
        times = []
        for _ in range(kills):
            with Child(takers.hold, dsn, QUEUE, TASKS, grace) as victim:
                victim.hear()
                queue.put_many(conventional.item(n) for n in range(TASKS))
                victim.tell("take")
                if victim.hear() != TASKS:
                    raise RuntimeError("the victim could not take all tasks")
                time.sleep(random.uniform(0, 0.25))  # anywhere between two ticks
                began = time.perf_counter()
                victim.kill()
                _take_all(queue)
                times.append(time.perf_counter() - began)
        return times


def _take_all(queue: pgqueue.Queue) -> None:
    left, deadline = TASKS, time.monotonic() + LIMIT
    while left:
        tasks = queue.take_many(left, timeout=max(0.0, deadline - time.monotonic()))
        if not tasks:
            raise TimeoutError("the tasks of a killed process did not come back")
        queue.ack_many(tasks)
        left -= len(tasks)
