"""The admin: queues, tasks, takes, schedules, sessions, results and health, and actions on them.

The default site has these pages without a call. Another site, or another database, needs one call:

    jobs_admin = AdminSite("jobs-admin")
    register(jobs_admin, using="jobs")
"""

from __future__ import annotations

from django.contrib import admin
from django.contrib.admin import AdminSite

from ..models import Health, Queue, Result, Schedule, Session, Take, Task
from .base import Page
from .health import HealthPage
from .holders import SessionPage, TakePage
from .queues import QueuePage
from .results import ResultPage
from .schedules import SchedulePage
from .tasks import TaskPage

__all__ = ["HealthPage", "QueuePage", "ResultPage", "SchedulePage", "SessionPage", "TakePage", "TaskPage", "register"]

PAGES: dict[type, type[Page]] = {
    Queue: QueuePage,
    Task: TaskPage,
    Take: TakePage,
    Result: ResultPage,
    Schedule: SchedulePage,
    Session: SessionPage,
    Health: HealthPage,
}


def register(site: AdminSite, using: str | None = None) -> None:
    """Add the pages to a site.

    Args:
        site: the site. A site has the pages of one database.
        using: the alias of the database; None leaves it to Django's routers, and is `default` if there are none.
    """
    for model, page in PAGES.items():
        site.register(model, page, using=using)


register(admin.site)
