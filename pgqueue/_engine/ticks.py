"""The times of the listener's periodic work."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

REST = 10.0


class Ticks:
    """The time of a periodic piece of work: jittered, earlier if the work asks for it, later if the work took long."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self.at = 0.0

    def run(self, work: Callable[[], float | None]) -> None:
        began = time.monotonic()
        if began < self.at:
            return
        sooner = work()
        now = time.monotonic()
        pause = self._interval * random.uniform(0.8, 1.0)
        self.at = now + max(pause if sooner is None else min(pause, sooner), REST * (now - began))
