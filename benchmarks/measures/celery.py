"""Celery on pgqueue beside Celery on Redis, each as the broker and as the result backend, with their defaults.

A task is put by apply_async, one after the other. A drain lasts from the first run to the last, of tasks that were all
there. A result is awaited before the next task is sent, and a chord of 100 before the next one. The CPU time is that of
the client, of the worker with its children, and of the server. Redis writes nothing to disk; PostgreSQL flushes each
put and each result.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from psycopg.conninfo import conninfo_to_dict

from .. import celery_client, cpu, redis
from ..bench import Bench, connect
from ..children import LIMIT, Child
from ..findings import Findings, Row, at_least, rate
from ..rounds import Rounds, take_turns

OURS, THEIRS = "pgqueue", "Redis"
CHECKOUT = Path(__file__).parents[2]
POOLS = {"drain, solo": ("--pool", "solo"), "drain, prefork, -c 2": ("--concurrency", "2")}
FIGURES = {"put, one by one": 0.7, **dict.fromkeys(POOLS, 1.0), "delay().get(), in turn": 1.0, "chords of 100": 1.0}


@dataclass
class Side:
    """One of the two. `server`: the CPU time that it has used so far."""

    url: str
    runs: Path
    client: Child
    server: Callable[[], float]
    speeds: dict[str, list[float]] = field(default_factory=dict)
    by_cpu: dict[str, list[float]] = field(default_factory=dict)

    def round(self, n: int) -> float:
        """Add the figures of a round, with n tasks for each. Returns the first of them."""
        for pool, options in POOLS.items():
            first = self._ask("put", n)
            with self._worker(*options) as worker:
                self._drained(pool, n, worker)
            self._note("put, one by one", n, *first)
        with self._worker("--concurrency", "2") as worker:
            self._ask("get", 20)  # the worker has come up, and all are connected
            for figure, does, count in (("delay().get(), in turn", "get", n // 4), ("chords of 100", "chords", n // 2)):
                before = worker.seconds()
                seconds, used = self._ask(does, count)
                self._note(figure, count, seconds, used + worker.seconds() - before)
        return self.speeds["put, one by one"][-1]

    def _ask(self, does: str, n: int) -> tuple[float, float]:
        before = self.server()
        self.client.tell((does, n))
        seconds, used = self.client.hear(4 * LIMIT)
        return seconds, used + self.server() - before

    def _drained(self, pool: str, n: int, worker: cpu.TreeTime) -> None:
        base = self.runs.stat().st_size
        self._until(base + 1)
        began, used = time.perf_counter(), self.server() + worker.seconds()
        first = self.runs.stat().st_size
        self._until(base + n)
        seconds, used = time.perf_counter() - began, self.server() + worker.seconds() - used
        self._note(pool, base + n - first, seconds, used)

    def _until(self, size: int) -> None:
        deadline = time.monotonic() + 4 * LIMIT
        while self.runs.stat().st_size < size:
            if time.monotonic() > deadline:
                raise TimeoutError("the worker did not get through")
            time.sleep(0.005)

    def _note(self, figure: str, n: int, seconds: float, used: float) -> None:
        self.speeds.setdefault(figure, []).append(n / seconds)
        self.by_cpu.setdefault(figure, []).append(n / used)

    @contextmanager
    def _worker(self, *options: str) -> Iterator[cpu.TreeTime]:
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.celery_app", "worker", "-l", "ERROR", *options]
        own = {"BENCH_URL": self.url, "BENCH_RUNS": str(self.runs)}
        process = subprocess.Popen(
            command, cwd=CHECKOUT, env={**os.environ, **own}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield cpu.TreeTime(process.pid)
        finally:
            process.terminate()
            process.wait(LIMIT)


def measure(bench: Bench) -> Findings:
    if why := redis.missing():
        return Findings([Row("Celery beside Redis", f"not measured: {why}")])
    n = bench.size(2_000, 400)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgqueue-celery-")))
        dsn = stack.enter_context(bench.server.database())
        conn = stack.enter_context(connect(dsn))
        server = stack.enter_context(redis.serve())
        used = cpu.TreeTime(cpu.postmaster(conn))
        url = f"pgqueue://?{urlencode(conninfo_to_dict(dsn), safe='/')}"
        sides = {
            OURS: _side(stack, folder / OURS, url, used.seconds),
            THEIRS: _side(stack, folder / THEIRS, server.url, cpu.TreeTime(server.pid).seconds),
        }
        take_turns(bench.rounds, {name: lambda side=side: side.round(n) for name, side in sides.items()})  # type: ignore[misc]
    return Findings([row for figure, least in FIGURES.items() for row in _rows(figure, least, sides)])


def _side(stack: ExitStack, runs: Path, url: str, server: Callable[[], float]) -> Side:
    runs.touch()
    client = stack.enter_context(Child(celery_client.serve, url))
    client.hear()
    return Side(url, runs, client, server)


def _rows(figure: str, least: float, sides: dict[str, Side]) -> Iterator[Row]:
    ran = Rounds({name: side.speeds[figure] for name, side in sides.items()})
    reference = f"{rate(ran.median(THEIRS))} (Celery on Redis)"
    yield at_least(f"Celery: {figure}", rate(ran.median(OURS)), reference, ran.ratio(OURS, THEIRS), least)
    ran = Rounds({name: side.by_cpu[figure] for name, side in sides.items()})
    reference = f"{rate(ran.median(THEIRS))} (Celery on Redis)"
    yield Row("... for a second of CPU time", rate(ran.median(OURS)), reference, ran.ratio(OURS, THEIRS))
