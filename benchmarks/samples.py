"""Latencies that a child measures: this process puts, pauses, and hears from the child."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from .children import Child

PAUSE = (0.01, 0.02)  # seconds between puts: long enough for all takers to sleep again


def pause() -> None:
    time.sleep(random.uniform(*PAUSE))


def samples(child: Child, put: Callable[[float], object], n: int) -> list[float]:
    """Call `put` with the moment, n times; returns what the child said each time."""
    found = []
    for _ in range(n):
        pause()
        put(time.monotonic())
        found.append(child.hear())
    return found
