"""One queue with many waiting processes: what a put, take and ack cost, how soon and in which order they are served.

The cost is the CPU time of the server's backends, those of the waiting processes among them, less what they use while
nothing is put. A process waits again as soon as it has acked. It is overtaken if it has waited for the longest, and
another process gets the task. The head is the process that has waited for the longest: when SIGSTOP stops it, the task
has to go to another.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import wait
from typing import NamedTuple

import pgqueue

from .. import conventional, takers
from ..bench import QUEUE, Bench, connect
from ..children import LIMIT, Child
from ..cpu import BackendTime
from ..findings import Findings, Lines, Row, at_most, milliseconds, percentile
from ..samples import pause

WAITING = (1, 10, 50)
STOPS = 3  # a round


class Crowd:
    """The waiting processes, and since when each of them waits."""

    def __init__(self, queue: pgqueue.Queue, children: list[Child]) -> None:
        self.overtaken = 0
        self._queue = queue
        self._since: dict[Child, float] = {child: child.hear() for child in children}

    def serve(self) -> float:
        """Put a task; returns the seconds until a process has it. Counts whether another had waited for longer."""
        self._queue.put({**conventional.item(7), "at": time.monotonic()})
        seconds, child, head = self._served()
        self.overtaken += child is not head
        return seconds

    def serve_without_head(self) -> float:
        """The same while the head is stopped."""
        head = self._head()
        os.kill(head.pid, signal.SIGSTOP)
        try:
            return self.serve()
        finally:
            os.kill(head.pid, signal.SIGCONT)

    def _head(self) -> Child:
        return min(self._since, key=self._since.__getitem__)

    def _served(self) -> tuple[float, Child, Child]:
        head = self._head()
        by_pipe = {child.pipe: child for child in self._since}
        ready = wait(by_pipe, timeout=LIMIT)
        if not ready:
            raise TimeoutError("no process took the task")
        child = next(by_pipe[pipe] for pipe in by_pipe if pipe in ready)
        seconds, self._since[child] = child.hear()
        return seconds, child, head


class Found(NamedTuple):
    cpu: float  # seconds of one put, take and ack
    pick_ups: list[float]
    overtaken: float  # a share
    stopped: list[float]  # the pick-ups while the head was stopped

    def median(self) -> float:
        return statistics.median(self.pick_ups)


def measure(bench: Bench) -> Findings:
    found: dict[int, list[Found]] = {n: [] for n in WAITING}
    for _ in range(bench.rounds):
        for n in WAITING:
            found[n].append(_serve(bench, n))
    return _findings(found)


def _serve(bench: Bench, n: int) -> Found:
    tasks, idle = bench.size(100, 20), bench.size(2, 1)
    with bench.server.database() as dsn, connect(dsn) as conn, _crowd(dsn, n) as crowd:
        for _ in range(max(10, n)):  # until each process has been served, or could have been
            pause()
            crowd.serve()
        crowd.overtaken = 0
        time.sleep(0.3)
        used = BackendTime(conn)
        began = time.perf_counter()
        time.sleep(idle)
        alone = used.seconds() / (time.perf_counter() - began)
        used = BackendTime(conn)
        began = time.perf_counter()
        pick_ups = []
        for _ in range(tasks):
            pause()
            pick_ups.append(crowd.serve())
        time.sleep(0.05)  # the last ack, and takers that look in vain
        cpu = used.seconds() - alone * (time.perf_counter() - began)
        overtaken = crowd.overtaken / tasks
        stopped = []
        for _ in range(STOPS if n > 1 else 0):
            time.sleep(0.1)
            stopped.append(crowd.serve_without_head())
    return Found(cpu / tasks, pick_ups, overtaken, stopped)


@contextmanager
def _crowd(dsn: str, n: int) -> Iterator[Crowd]:
    with ExitStack() as stack:
        client = stack.enter_context(pgqueue.Client(dsn))
        queue = client.queue(QUEUE)
        queue.put(None)
        queue.take(0)
        children = [stack.enter_context(Child(takers.wait_in_turn, dsn, QUEUE, forked=True)) for _ in range(n)]
        for child in children:
            child.hear()
        yield Crowd(queue, children)


def _findings(found: Mapping[int, list[Found]]) -> Findings:
    one, most = WAITING[0], WAITING[-1]
    cpu = {n: statistics.median(each.cpu for each in found[n]) for n in WAITING}
    times = {n: statistics.median(each.median() for each in found[n]) for n in WAITING}
    last = {n: percentile([t for each in found[n] for t in each.pick_ups], 0.99) for n in WAITING}
    overtaken = statistics.mean(each.overtaken for each in found[most])
    stopped = max(t for each in found[most] for t in each.stopped)
    turns = list(zip(found[most], found[one], strict=True))
    cpu_ratio = statistics.median(many.cpu / alone.cpu for many, alone in turns)
    time_ratio = statistics.median(many.median() / alone.median() for many, alone in turns)
    name = f"{most} waiting processes:"
    rows = [
        at_most(f"{name} CPU of a put+take+ack", milliseconds(cpu[most]), _one(cpu[one]), cpu_ratio, 2.5),
        at_most(f"{name} pick-up, median", milliseconds(times[most]), _one(times[one]), time_ratio, 1.5),
        Row("... p99", milliseconds(last[most]), _one(last[one]), last[most] / last[one]),
        Row(f"{name} tasks that overtook the head", f"{overtaken:.0%}", "-", None, "0%", overtaken == 0),
        Row(
            f"{name} pick-up when the head is stopped, worst", f"{stopped:.2f} s", "-", None, "<= 0.6 s", stopped <= 0.6
        ),
    ]
    curves = [
        Lines("CPU of a put+take+ack, by waiting processes", "waiting processes", "ms", _curve({"backends": cpu})),
        Lines("pick-up, by waiting processes", "waiting processes", "ms", _curve({"median": times, "p99": last})),
    ]
    return Findings(rows, curves)


def _one(seconds: float) -> str:
    return f"{milliseconds(seconds)} (one waiting)"


def _curve(by_name: Mapping[str, Mapping[int, float]]) -> dict[str, list[tuple[float, float]]]:
    return {name: [(n, seconds * 1e3) for n, seconds in values.items()] for name, values in by_name.items()}
