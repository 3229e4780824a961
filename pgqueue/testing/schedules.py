"""Schedules in memory: the clock of a test puts their tasks, as the clock of a worker does in the database."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from .._calls.put_options import PutOptions
from .._calls.schedules import Plan
from .._values import data as json_data
from .store import Store

MOST = 10_000  # occurrences in one step of the clock


class Schedules:
    """The next occurrences."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._coming: list[tuple[datetime, int, Plan]] = []
        self._order = itertools.count()

    def follow(self, plans: Iterable[Plan]) -> None:
        """From now on put the tasks of these schedules."""
        for plan in plans:
            self._await_next(plan)

    def go_to(self, moment: datetime) -> None:
        """Set the clock forward to a moment, and put the task of each occurrence on the way, at its time.

        Raises:
            RuntimeError: there are too many of them.
        """
        self._store.decide()  # the delay of a task after others begins when they have ended
        for _ in range(MOST):
            if not self._coming or self._coming[0][0] > moment:
                break
            at, _, plan = heapq.heappop(self._coming)
            self._store.now = max(self._store.now, at)  # a handler that runs in its put may have set it forward
            self._await_next(plan)
            self._put(plan, at)
        else:
            raise RuntimeError(f"{MOST} tasks of schedules in one step: advance the clock by less")
        self._store.now = max(self._store.now, moment)

    def _await_next(self, plan: Plan) -> None:
        if (at := plan.timetable().after(self._store.now)) is not None:
            heapq.heappush(self._coming, (at, next(self._order), plan))

    def _put(self, plan: Plan, at: datetime) -> None:
        data = json_data.decode(plan.text)
        data["headers"] = {**data.get("headers", {}), **_headers(plan, at)}
        self._store.put(plan.queue, data, PutOptions(**plan.options.as_dict()))


def is_of_job(plan: Plan) -> bool:
    """Whether its tasks are those of a job, and not of a plain handler."""
    data: Any = json_data.decode(plan.text)
    return isinstance(data, dict) and isinstance(data.get("job"), str)


def _headers(plan: Plan, at: datetime) -> dict[str, str]:
    """As _scheduled_data() in SQL sets them."""
    known = {"schedule": plan.name, "scheduled_at": f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"}
    if plan.cron is not None:
        return known | {"schedule_cron": plan.cron, "schedule_tz": plan.tz}
    every = plan.every or 0.0
    return known | {"schedule_every": str(int(every) if every.is_integer() else every)}
