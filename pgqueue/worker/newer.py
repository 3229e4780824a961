"""Tasks that this worker cannot run, and a worker with other code may: they wait for it.

During a rolling deployment the programs that put may have newer code than this worker, or older code. So the worker
releases a task of an unknown job with a delay, and likewise a task whose arguments do not fit, if it was put for
another signature of the job (Job.version). That is no attempt. The delay begins with FIRST and doubles up to LONGEST: a
worker that knows the job takes the task soon, and many such tasks do not keep this one busy.

A task that was put by mistake would wait indefinitely. So a worker buries it WAIT seconds after it has first met it.
The time since the put, which the database knows, cannot be used: a task may be delayed for longer than that.
"""

from __future__ import annotations

import threading
import time

from .._calls.take import Taken
from .._values.logs import log
from ..jobs.retry import Newer

WAIT = 900.0  # seconds
FIRST, LONGEST = 0.5, 10.0  # seconds
SAY = 60.0  # seconds between two lines in the log


class Waiting:
    """The tasks of a shift that wait for a worker with other code."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[float, float]] = {}  # by id, in order: the time of the first meeting, the next delay
        self._lock = threading.Lock()
        self._said = float("-inf")

    def delay(self, task: Taken, why: Newer) -> float | None:
        """Seconds for which to release the task; None: it has waited for long enough. May be called in any thread."""
        now = time.monotonic()
        with self._lock:
            self._forget(now)
            first, delay = self._met.get(task.id, (now, FIRST))
            if now - first >= WAIT:
                del self._met[task.id]
                return None
            self._met[task.id] = first, min(2 * delay, LONGEST)
            if say := now - self._said >= SAY:
                self._said = now
        if say:
            log.warning("%s tasks wait for a worker with other code, for example %s: %s", len(self._met), task.id, why)
        return delay

    def _forget(self, before: float) -> None:
        """Forget tasks that another worker has taken since: they were not seen again when they were due."""
        while self._met and next(iter(self._met.values()))[0] < before - 2 * WAIT:
            del self._met[next(iter(self._met))]
