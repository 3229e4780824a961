"""The schedules of a worker: it sets those that its code declares, and a thread fires those that are due
(_engine/clock.py)."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from .._calls.schedules import Plan
from .._engine.owners import Owned
from .._sync.client import Client

PATIENCE = 5.0  # seconds for a call under way at a stop


class Scheduling:
    """Fires schedules until stop(). Raises as client.schedules.sync() if the declared ones cannot be set."""

    def __init__(self, client: Client, declared: Mapping[str, dict[str, Plan]]) -> None:
        client.schedules.declared = dict(declared)
        client.schedules.sync()
        self._clock = client.schedules.clock()
        self._stopped = threading.Event()
        self._thread = Owned("pgqueue-clock", self._clock.run, self._stopped.is_set)
        self._thread.start()

    def stop(self) -> None:
        """Stop firing. Does not wait."""
        self._stopped.set()
        self._clock.stop()

    def join(self, until: float) -> None:
        """Wait for the thread until a monotonic time, PATIENCE seconds at most; after stop()."""
        self._thread.join(max(0.0, min(PATIENCE, until - time.monotonic())))
