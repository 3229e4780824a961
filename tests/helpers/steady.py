"""A stopwatch that stands still whenever the machine or the server does.

A bound in seconds is a promise about pgqueue. A machine that gives no process a turn, and a disk that does not write,
delay whatever runs; so a control runs beside the test, and what it lost does not count.

The files of the tests' server may be in memory. A test of a server on a disk names a folder there, and the control
writes to that disk as well, since the end of that server does.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

BEAT = 0.02  # seconds
STALL = 0.04  # seconds between two beats that are a stall; a busy machine has many short ones


class Steady:
    """Seconds since it was made, without those in which the control stood still."""

    def __init__(self) -> None:
        self._began = self._beat = time.time()
        self._stalls: list[tuple[float, float]] = []
        self._beats, self._late = 0, 0.0

    def __call__(self) -> float:
        now = time.time()
        return now - self._began - self.lost(self._began, now)

    def lost(self, since: float, until: float) -> float:
        """For how many seconds the control stood still in a span, given by time.time()."""
        stalls = [*self._stalls, *self._stall(time.time())]
        return sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in stalls)

    def step(self) -> float:
        """What a wait and a statement take here besides the wait, in seconds; on average, without the stalls.

        A busy machine lets each wait end a little late. A chain of such steps is later by as much for each.
        """
        return self._late / max(1, self._beats)

    def beat(self) -> None:
        now = time.time()
        if stall := self._stall(now):
            self._stalls += stall
        else:
            self._beats += 1
            self._late += now - self._beat - BEAT
        self._beat = now

    def _stall(self, now: float) -> list[tuple[float, float]]:
        return [(self._beat + BEAT, now)] if now - self._beat > STALL else []


@contextmanager
def steady(dsn: str, disk: Path | None = None) -> Iterator[Steady]:
    """A stopwatch whose control is a thread that commits a transaction at each beat, and syncs a file in `disk`."""
    over = threading.Event()
    with ExitStack() as stack:
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        file = stack.enter_context(tempfile.TemporaryFile(dir=disk, buffering=0)) if disk else None

        def beat() -> None:
            conn.execute("SELECT txid_current()")  # has a commit to write
            if file is not None:
                file.write(b".")
                os.fsync(file.fileno())

        beat()
        watch = Steady()

        def run() -> None:
            while not over.wait(BEAT):
                beat()
                watch.beat()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield watch
        finally:
            over.set()
            thread.join()
