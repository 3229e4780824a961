"""Puts at the same time: threads and coroutines of one process, each putting one task after the other.

Against pgbench's one-row INSERT with 8 clients, which share the flush of a commit as well. The latency of a put is the
time from its call until it has returned, hence until its commit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from itertools import chain

import pgqueue

from .. import conventional
from ..bench import QUEUE, Bench, connect, empty
from ..findings import Findings, Lines, Row, at_least, milliseconds, percentile, rate
from ..rounds import Rounds, take_turns

PUTTERS = (1, 8, 64)
CLIENTS = 8
THEIRS = f"INSERT by pgbench -c {CLIENTS}"
ITEM = conventional.item(7)

Latencies = dict[str, list[float]]


def measure(bench: Bench) -> Findings:
    seconds = bench.size(2, 1)
    latencies: Latencies = {}
    with bench.server.database() as dsn, connect(dsn) as conn:

        def timed(name: str, puts: Callable[[], list[float]]) -> Callable[[], float]:
            def run() -> float:
                empty(conn)
                found = puts()
                latencies.setdefault(name, []).extend(found)
                return len(found) / seconds

            return run

        def theirs() -> float:
            empty(conn)
            return bench.pgbench(dsn, conventional.ONE_PUT, clients=CLIENTS, seconds=seconds)

        contenders: dict[str, Callable[[], float]] = {THEIRS: theirs}
        for n in PUTTERS:
            contenders[f"{n} threads"] = timed(f"{n} threads", lambda n=n: _threads(dsn, n, seconds))  # type: ignore[misc]
            contenders[f"{n} coroutines"] = timed(
                f"{n} coroutines",
                lambda n=n: asyncio.run(_coroutines(dsn, n, seconds)),  # type: ignore[misc]
            )
        ran = take_turns(bench.rounds, contenders)
    return _findings(ran, latencies)


def _threads(dsn: str, n: int, seconds: float) -> list[float]:
    """The latency of each put."""
    found: list[list[float]] = [[] for _ in range(n)]
    with pgqueue.Client(dsn) as client:
        queue = client.queue(QUEUE)
        queue.put(ITEM)  # connects
        until = time.perf_counter() + seconds

        def puts(into: list[float]) -> None:
            while (began := time.perf_counter()) < until:
                queue.put(ITEM)
                into.append(time.perf_counter() - began)

        threads = [threading.Thread(target=puts, args=(into,)) for into in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return list(chain(*found))


async def _coroutines(dsn: str, n: int, seconds: float) -> list[float]:
    """The same in one event loop."""
    found: list[float] = []
    async with pgqueue.AsyncClient(dsn) as client:
        queue = client.queue(QUEUE)
        await queue.put(ITEM)
        until = time.perf_counter() + seconds

        async def puts() -> None:
            while (began := time.perf_counter()) < until:
                await queue.put(ITEM)
                found.append(time.perf_counter() - began)

        await asyncio.gather(*(puts() for _ in range(n)))
    return found


def _findings(ran: Rounds, latencies: Latencies) -> Findings:
    rows = []
    most = max(PUTTERS)
    reference = f"{rate(ran.median(THEIRS))} (one-row INSERT, pgbench -c {CLIENTS})"
    for kind in ("threads", "coroutines"):
        name = f"{most} {kind}"
        rows += [
            at_least(f"{name} putting singly", rate(ran.median(name)), reference, ran.ratio(name, THEIRS), 1),
            Row("... one put, median", milliseconds(percentile(latencies[name], 0.5))),
            Row("... one put, p99", milliseconds(percentile(latencies[name], 0.99))),
        ]
    lines = {kind: [(n, ran.median(f"{n} {kind}")) for n in PUTTERS] for kind in ("threads", "coroutines")}
    return Findings(rows, [Lines("puts at the same time", "putting at once", "tasks/s", lines, logarithmic=True)])
