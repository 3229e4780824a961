"""The tasks whose limit one server keeps, as this program has learned them from refusals. No I/O.

A limit with a home is kept by one server, and the others refuse puts of its tasks (sql/4_rules/limits/meters.sql). A
cluster does not read the limits before a put: that would cost each put a statement. It puts a refused task at the home,
and remembers the task's queue and job, so that the next one goes straight there.

The job is that of the task, and not that of the limit: a queue's limit does not hold for a job with a limit of its own.
The memory ends after FORGET seconds. Otherwise a program would put such tasks at the home as long as it runs, also when
the limit has no home any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from ...errors import LimitElsewhere

FORGET = 60.0  # seconds
MOST = 10_000  # names: data of a task may have any text as its job


class Kept:
    """The numbers of the servers that keep limits, by queue and job."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str | None], tuple[int, float]] = {}

    def learn(self, refusal: LimitElsewhere) -> None:
        """A server has refused a put."""
        if len(self._known) >= MOST:
            self._known = {}
        self._known[refusal.queue, refusal.job] = refusal.server, self._clock() + FORGET

    def server(self, tasks: Iterable[tuple[str, Any]]) -> int | None:
        """The number of the server for a put of these queues and data; None: any server may have it."""
        known = self._known
        if not known:
            return None
        now = self._clock()
        for queue, data in tasks:
            number, until = known.get((queue, _job(data)), (None, now))
            if now < until:
                return number
        return None

    def forget(self) -> None:
        self._known = {}


def _job(data: Any) -> str | None:
    job = data.get("job") if isinstance(data, dict) else None
    return job if isinstance(job, str) else None
