"""A stopwatch that stands still whenever the machine or the server does.

A bound in seconds is a promise about pgqueue. A machine that gives no process a turn, and a disk that does not write,
delay whatever runs; so a control runs beside the test, and what it lost does not count. The control sleeps most of the
time, so the machine gives it a turn at once, even where a process that computes gets a tenth of a processor. So while
more processes want a processor than there are, each gets its share of the time, and the rest of it does not count.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

BEAT = 0.02  # seconds
STALL = 0.04  # seconds between two beats that are a stall; a busy machine has many short ones


LOADAVG = Path("/proc/loadavg")  # of Linux


def crowd() -> float:
    """Of the time, the part that a process which computes has to leave to others at this moment."""
    if not LOADAVG.exists():
        return 0.0
    running = int(LOADAVG.read_text().split()[3].partition("/")[0])  # with the reader
    return max(0.0, 1 - (os.cpu_count() or 1) / running)


class Steady:
    """Seconds since it was made, without those in which the control stood still, or others had the processors."""

    def __init__(self) -> None:
        self._began = self._beat = time.time()
        self._losses: list[tuple[float, float, float]] = []  # spans, and the part of each that was lost

    def __call__(self) -> float:
        now = time.time()
        return now - self._began - self.lost(self._began, now)

    def lost(self, since: float, until: float) -> float:
        """How many seconds of a span, given by time.time(), do not count."""
        losses = [*self._losses, *self._loss(time.time())]
        return sum(part * max(0.0, min(end, until) - max(begin, since)) for begin, end, part in losses)

    def beat(self) -> None:
        now = time.time()
        self._losses += self._loss(now)
        self._beat = now

    def _loss(self, now: float) -> list[tuple[float, float, float]]:
        turn = self._beat + BEAT if now - self._beat > STALL else now
        return [(self._beat, turn, crowd()), (turn, now, 1.0)]


@contextmanager
def steady(dsn: str) -> Iterator[Steady]:
    """A stopwatch whose control is a thread that commits a transaction at each beat."""
    over = threading.Event()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT txid_current()")
        watch = Steady()

        def run() -> None:
            while not over.wait(BEAT):
                conn.execute("SELECT txid_current()")  # has a commit to write
                watch.beat()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield watch
        finally:
            over.set()
            thread.join()
