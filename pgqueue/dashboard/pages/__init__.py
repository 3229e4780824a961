"""The pages of the dashboard: each reads the values that its template shows."""

from __future__ import annotations

from . import failures, jobs, listings, overview, queue, schedules, task, tasks, workers
from .visit import Page, Visit

#: The pages of the menu, in its order.
MENU: tuple[Page, ...] = (
    overview.PAGE,
    tasks.PAGE,
    failures.PAGE,
    jobs.PAGE,
    workers.PAGE,
    schedules.PAGE,
    *listings.PAGES,
)
#: All pages; those that are not in the menu need an argument.
PAGES: tuple[Page, ...] = (*MENU, queue.PAGE, task.PAGE, jobs.JOB, schedules.ONE)

__all__ = ["MENU", "PAGES", "Page", "Visit"]
