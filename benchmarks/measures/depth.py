"""Depth and lanes: a put, take and ack one by one in a queue that holds few tasks, and in one that holds many."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pgqueue

from .. import conventional
from ..bench import QUEUE, Bench, connect, fill
from ..findings import Findings, Lines, at_most, milliseconds

READY = (1_000, 10_000, 100_000, 1_000_000)
LANES = (100, 1_000, 10_000, 50_000)
FLAT = 1.2  # the most by which the last figure may exceed the first


def measure(bench: Bench) -> Findings:
    shown = bench.size(4, 3)
    depths = _curve(bench, READY[:shown], _among_ready)
    lanes = _curve(bench, LANES[:shown], _among_lanes)
    rows = []
    for what, found in (("tasks ready", depths), ("lanes", lanes)):
        (few, first), *_, (many, last) = found.items()
        reference = f"{milliseconds(first)} ({few:,} {what})"
        rows.append(at_most(f"put+take+ack, {many:,} {what}", milliseconds(last), reference, last / first, FLAT))
    plots = [
        Lines("put+take+ack, by depth", "ready tasks", "ms", {"one by one": _points(depths)}, logarithmic=True),
        Lines("put+take+ack, by lanes", "lanes", "ms", {"one by one": _points(lanes)}, logarithmic=True),
    ]
    return Findings(rows, plots)


def _curve(bench: Bench, sizes: tuple[int, ...], prepare: Callable[[str, int], list[str] | None]) -> dict[int, float]:
    cycles = bench.size(500, 100)
    found = {}
    for size in sizes:
        with bench.server.database() as dsn:
            found[size] = _cycle(dsn, cycles, prepare(dsn, size))
    return found


def _among_ready(dsn: str, n: int) -> None:
    with connect(dsn) as conn:
        fill(conn, n)


def _among_lanes(dsn: str, n: int) -> list[str]:
    """One task in each lane; returns the lanes."""
    lanes = [f"lane {k}" for k in range(n)]
    with pgqueue.Client(dsn) as client, connect(dsn) as conn:
        for k in range(0, n, 10_000):
            some = lanes[k : k + 10_000]
            client.queue(QUEUE).put_many([conventional.item(k)] * len(some), lane=some)
        conn.execute("VACUUM ANALYZE pgqueue.task")
    return lanes


def _cycle(dsn: str, cycles: int, lanes: list[str] | None) -> float:
    """The median seconds of a cycle. A task is put into the lane in which one was acked."""
    spent = []
    item = conventional.item(7)
    with pgqueue.Client(dsn) as client:
        queue = client.queue(QUEUE)
        for k in range(cycles):
            began = time.perf_counter()
            queue.put(item, lane=lanes[k % len(lanes)] if lanes else None)
            task = queue.take(timeout=0)
            if task is None:
                raise RuntimeError("a ready task was not taken")
            task.ack()
            spent.append(time.perf_counter() - began)
    return statistics.median(spent)


def _points(found: dict[int, float]) -> list[tuple[float, float]]:
    return [(float(n), seconds * 1e3) for n, seconds in found.items()]
