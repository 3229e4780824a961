"""The queues: the number and age of their tasks, and the actions pause, drain, kick, release and truncate."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.contrib.admin.utils import flatten_fieldsets
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from ...._calls import pick as picking
from ...._calls import queue as management
from ..models import Queue
from . import reasons, rights, showing
from .acting import ActingPage, Run

KICKED = 10_000  # tasks at once, in one statement of about a second
STATES = ("ready", "delayed", "taken", "buried", "blocked", "kept")

#: The options under their headings; those under none follow at the end.
HEADINGS: tuple[tuple[str, Any], ...] = (
    ("Defaults of a put", {"fields": ("priority", "delay", "ttr", "ttl")}),
    ("Limits", {"fields": ("capacity", "maxlen", "max_size", "max_takes", "keep_done", "expires")}),
    ("Dead letters", {"fields": ("dead_letter", "dead_letter_key")}),
    ("Kind", {"fields": ("type", "exclusive", "temporary", "auto_delete", "listed", "metadata_", "created_at")}),
)
_SHOWN = {name.rstrip("_") for name in flatten_fieldsets(HEADINGS)}
OTHERS = tuple(field.name for field in fields(management.QueueOptions) if field.name not in _SHOWN)


class PauseForm(forms.Form):
    minutes = forms.IntegerField(min_value=1, max_value=365 * 24 * 60, initial=60)


class QueuePage(ActingPage):
    """The queues. The numbers are those of counters, so they cost the same with any backlog."""

    list_display = ("name", *STATES, "oldest", "puts", "done_", "condition")
    list_select_related = ("stats", "rates")
    ordering = ("name",)
    search_fields = ("name",)
    actions = ("pause", "resume", "drain", "undrain", "kick_all", "release_all", "truncate")
    fieldsets = (
        (None, {"fields": ("name", "condition", "why", STATES, ("oldest", "puts", "done_", "drained"))}),
        *HEADINGS,
        ("Other options", {"fields": OTHERS}),
        ("Rights", {"fields": ("roles",)}),
    )

    # --- showing

    @admin.display
    def ready(self, queue: Queue) -> SafeString | str:
        return self._tasks(queue, "ready", queue.stats.ready)

    @admin.display
    def delayed(self, queue: Queue) -> SafeString | str:
        return self._tasks(queue, "delayed", queue.stats.delayed)

    @admin.display
    def taken(self, queue: Queue) -> SafeString | str:
        return self._tasks(queue, "taken", queue.stats.taken)

    @admin.display
    def buried(self, queue: Queue) -> SafeString | str:
        return self._tasks(queue, "buried", queue.stats.buried)

    @admin.display
    def blocked(self, queue: Queue) -> SafeString | str:
        return self._tasks(queue, "blocked", queue.stats.blocked)

    @admin.display(description="kept")
    def kept(self, queue: Queue) -> SafeString | str:
        """The number of done tasks that are kept."""
        return self._tasks(queue, "done", queue.stats.kept)

    @admin.display(description="oldest ready")
    def oldest(self, queue: Queue) -> str:
        return showing.duration(queue.stats.oldest_ready_age)

    @admin.display(description="puts/s")
    def puts(self, queue: Queue) -> str:
        return showing.rate(queue.rates.puts)

    @admin.display(description="done/s")
    def done_(self, queue: Queue) -> str:
        return showing.rate(queue.rates.done)

    @admin.display(description="drained in")
    def drained(self, queue: Queue) -> str:
        """The time until the queue is empty, at the rate of the last minute, if it shrinks."""
        return showing.duration(queue.rates.drained_in)

    @admin.display
    def condition(self, queue: Queue) -> str:
        paused = [f"paused for {showing.until(queue.paused_until)}"] if queue.paused_until else []
        return ", ".join([*paused, *(["draining"] if queue.draining else [])]) or "-"

    @admin.display(description="why not done")
    def why(self, queue: Queue) -> SafeString | str:
        return reasons.why(queue)

    @admin.display
    def roles(self, queue: Queue) -> SafeString | str:
        return rights.rights(queue)

    @admin.display(description="metadata")
    def metadata_(self, queue: Queue) -> SafeString | str:
        return showing.pretty(queue.metadata)

    def _tasks(self, queue: Queue, state: str, count: int) -> SafeString | str:
        """A number of tasks, with a link to them."""
        if not count:
            return "0"
        address = self.url("changelist", model="task")
        return showing.link(f"{address}?{urlencode({'queue': queue.name, 'state': state})}", f"{count:,}")

    # --- acting

    def fits(self, action: str, row: Queue) -> bool:
        has = {"resume": row.paused_until, "drain": not row.draining, "undrain": row.draining}
        has |= {"kick_all": row.stats.buried, "release_all": row.stats.taken}
        return bool(has.get(action, True))

    @admin.action(permissions=["act"], description="Pause…")
    def pause(self, request: HttpRequest, queryset: QuerySet[Queue]) -> HttpResponse | None:
        queues = self.chosen(request, queryset)
        form = PauseForm(request.POST if "confirmed" in request.POST else None)
        if queues and not form.is_valid():
            return self.confirm(
                request, queues, "pause", "No task is taken from these queues meanwhile. Puts go on.", form
            )
        minutes = form.cleaned_data["minutes"]

        def act(run: Run, queue: Queue) -> None:
            run(management.pause_queue(queue.name, minutes * 60))

        return self.carry_out(request, queues, act, f"Paused for {minutes} min")

    @admin.action(permissions=["act"], description="Resume")
    def resume(self, request: HttpRequest, queryset: QuerySet[Queue]) -> HttpResponse | None:
        def act(run: Run, queue: Queue) -> None:
            run(management.pause_queue(queue.name, 0))

        return self.carry_out(request, self.chosen(request, queryset), act, "Resumed")

    @admin.action(permissions=["act"], description="Drain: refuse puts")
    def drain(self, request: HttpRequest, queryset: QuerySet[Queue]) -> HttpResponse | None:
        def act(run: Run, queue: Queue) -> None:
            run(management.drain_queue(queue.name, True))

        return self.carry_out(request, self.chosen(request, queryset), act, "Draining")

    @admin.action(permissions=["act"], description="Accept puts again")
    def undrain(self, request: HttpRequest, queryset: QuerySet[Queue]) -> HttpResponse | None:
        def act(run: Run, queue: Queue) -> None:
            run(management.drain_queue(queue.name, False))

        return self.carry_out(request, self.chosen(request, queryset), act, "Accepting puts")

    @admin.action(permissions=["act"], description=f"Kick buried tasks, up to {KICKED:,}")
    def kick_all(self, request: HttpRequest, queryset: QuerySet[Queue]) -> HttpResponse | None:
        def act(run: Run, queue: Queue) -> str:
            return f"Kicked {run(picking.kick(queue.name, KICKED, False)):,} tasks of {queue}."

        return self.carry_out(request, self.chosen(request, queryset), act, "Kicked")

    @admin.action(permissions=["act"], description="Release taken tasks")
    def release_all(self, request: HttpRequest, queryset: QuerySet[Queue]) -> HttpResponse | None:
        def act(run: Run, queue: Queue) -> str:
            return f"Released {run(management.release_all(queue.name)):,} tasks of {queue}."

        return self.carry_out(request, self.chosen(request, queryset), act, "Released")

    @admin.action(permissions=["remove"], description="Truncate…")
    def truncate(self, request: HttpRequest, queryset: QuerySet[Queue]) -> HttpResponse | None:
        queues = self.chosen(request, queryset)
        if queues and "confirmed" not in request.POST:
            total = sum(queue.stats.total + queue.stats.kept for queue in queues)
            warning = (
                f"All {total:,} tasks in these queues are removed for good, also those that are taken. The queues stay."
            )
            return self.confirm(request, queues, "truncate", warning)

        def act(run: Run, queue: Queue) -> str:
            return f"Removed {run(management.truncate_queue(queue.name)):,} tasks of {queue}."

        return self.carry_out(request, queues, act, "Truncated", DELETION)
