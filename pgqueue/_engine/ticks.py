"""The listener's periodic work."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from .retries import Conn, Retry

REST = 10.0


class Ticks:
    """One piece of periodic work, and its times: jittered, earlier if the work asks for it, later if it took long, and
    later if it failed (retries.py)."""

    def __init__(self, what: str, interval: float) -> None:
        self.at = 0.0
        self._interval = interval
        self._retry = Retry(what)
        self._sooner: float | None = None

    def run(self, conn: Conn, work: Callable[[], float | None]) -> None:
        """Do the work if it is due. It returns in how many seconds it has to be done again, None for the interval."""
        began = time.monotonic()
        if began < self.at:
            return

        def timed() -> None:
            self._sooner = work()

        if not self._retry.attempt(conn, timed):
            self.at = self._retry.at
            return
        now = time.monotonic()
        pause = self._interval * random.uniform(0.8, 1.0)
        self.at = now + max(pause if self._sooner is None else min(pause, self._sooner), REST * (now - began))
