"""The holders of tasks: the takes, and the sessions of the processes that take."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..models import Lock, Session, Take
from . import showing
from .acting import ActingPage
from .base import Page
from .tasks import bury, release

NAMED = 20  # takes on the page of a session; the list of takes has all


class TakePage(ActingPage):
    """The tasks that are taken, the longest first. `?queue=` and `?session=` narrow the list."""

    list_display = ("task", "queue", "holder", "age_", "time_left_", "lane")
    list_display_links = None
    conditions = ("queue", "session")
    search_fields = ("id",)
    search_help_text = "The id of a task."
    ordering = ("taken_at", "id")
    actions = ("release", "bury")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        return queryset.filter(pk__in=showing.ids(term)) if term else queryset, False

    @admin.display
    def task(self, take: Take) -> SafeString:
        return self.task_link(take.pk)

    @admin.display(description="age")
    def age_(self, take: Take) -> str:
        return showing.duration(take.age)

    @admin.display(description="time left")
    def time_left_(self, take: Take) -> str:
        return showing.duration(take.time_left)

    @admin.action(permissions=["act"], description="Release: take from its holder")
    def release(self, request: HttpRequest, queryset: QuerySet[Take]) -> HttpResponse | None:
        return self.carry_out(request, self.chosen(request, queryset), release, "Released")

    @admin.action(permissions=["act"], description="Bury: take from its holder and set aside")
    def bury(self, request: HttpRequest, queryset: QuerySet[Take]) -> HttpResponse | None:
        return self.carry_out(request, self.chosen(request, queryset), bury, "Buried")


class SessionPage(Page):
    """The processes that take."""

    list_display = ("label", "host", "pid", "state", "age_", "taken_", "longest")
    search_fields = ("label",)
    ordering = ("label", "id")
    fieldsets = (
        (None, {"fields": ("label", "host", "pid", "backend_pid", "state", "missing_since", "started_at", "age_")}),
        ("What it holds", {"fields": ("takes", "longest", "locks")}),
    )

    @admin.display(description="age")
    def age_(self, session: Session) -> str:
        return showing.duration(session.age)

    @admin.display(description="takes")
    def taken_(self, session: Session) -> SafeString | str:
        """The number of takes, with a link to them."""
        return showing.link(f"{self.url('changelist', model='take')}?session={session.pk}", f"{session.taken:,}")

    @admin.display(description="longest take")
    def longest(self, session: Session) -> str:
        return showing.duration(session.longest_take)

    @admin.display
    def takes(self, session: Session) -> SafeString | str:
        found = Take.objects.using(session._state.db).filter(session=session.pk).order_by("taken_at", "id")[:NAMED]
        rows = ((self.task_link(take.pk), take.queue, showing.duration(take.age)) for take in found)
        return format_html("{}<br>{} in all", showing.lines("{} of {}, for {}", rows), self.taken_(session))

    @admin.display
    def locks(self, session: Session) -> SafeString | str:
        found = Lock.objects.using(session._state.db).filter(session=session.pk).order_by("name")
        return showing.lines("{} ({}), {} waiting", ((lock.name, lock.mode, lock.waiters) for lock in found))
