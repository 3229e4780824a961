"""The schedules: their next and last occurrence, and the actions pause, resume, run now and delete."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from ...._calls import schedules as calls
from ..models import Schedule
from . import showing
from .acting import ActingPage, Run


class SchedulePage(ActingPage):
    """The schedules. Code and SQL make them; here they are paused, run and deleted."""

    list_display = ("name", "times", "queue", "next", "last", "last_state", "declared_", "problem")
    search_fields = ("name",)
    ordering = ("name",)
    actions = ("run_now", "pause", "resume", "delete_chosen")
    deferred = ("data", "last_result")
    fieldsets = (
        (None, {"fields": ("name", "times", "tz", "queue", "missed", "paused", "next", "error")}),
        ("Each task", {"fields": ("data_", "options_", "role")}),
        ("The last task", {"fields": ("last", "task", "last_state", "last_error_", "last_result_")}),
        ("Code", {"fields": ("declared_", "created_at")}),
    )

    # --- showing

    @admin.display
    def times(self, schedule: Schedule) -> str:
        return str(schedule.cron) if schedule.cron is not None else f"every {showing.duration(schedule.every)}"

    @admin.display
    def next(self, schedule: Schedule) -> str:
        if schedule.paused:
            return "paused"
        return "-" if schedule.next_at is None else f"in {showing.until(schedule.next_at)}"

    @admin.display
    def last(self, schedule: Schedule) -> str:
        return "-" if schedule.last_at is None else f"{showing.age(schedule.last_at)} ago"

    @admin.display
    def task(self, schedule: Schedule) -> SafeString | str:
        return "-" if schedule.last_task is None else self.task_link(schedule.last_task)

    @admin.display(description="declared by")
    def declared_(self, schedule: Schedule) -> str:
        return f"{schedule.declared or '-'}{' (removed)' if schedule.removed_at else ''}"

    @admin.display(description="error")
    def problem(self, schedule: Schedule) -> str:
        return showing.last_line(schedule.error)

    @admin.display(description="data")
    def data_(self, schedule: Schedule) -> SafeString | str:
        return showing.pretty(schedule.data)

    @admin.display(description="options")
    def options_(self, schedule: Schedule) -> SafeString | str:
        return showing.pretty(schedule.options)

    @admin.display(description="error")
    def last_error_(self, schedule: Schedule) -> SafeString | str:
        return showing.block(schedule.last_error)

    @admin.display(description="result")
    def last_result_(self, schedule: Schedule) -> SafeString | str:
        return showing.pretty(schedule.last_result)

    # --- acting

    def fits(self, action: str, row: Schedule) -> bool:
        return {"pause": not row.paused, "resume": bool(row.paused)}.get(action, True)

    @admin.action(permissions=["act"], description="Run now: put a task")
    def run_now(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> HttpResponse | None:
        def act(run: Run, schedule: Schedule) -> str:
            return f"Put task {run(calls.run_schedule(schedule.name))} of {schedule}."

        return self.carry_out(request, self.chosen(request, queryset), act, "Run")

    @admin.action(permissions=["act"], description="Pause")
    def pause(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> HttpResponse | None:
        def act(run: Run, schedule: Schedule) -> None:
            run(calls.pause_schedule(schedule.name))

        return self.carry_out(request, self.chosen(request, queryset), act, "Paused")

    @admin.action(permissions=["act"], description="Resume")
    def resume(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> HttpResponse | None:
        def act(run: Run, schedule: Schedule) -> None:
            run(calls.resume_schedule(schedule.name))

        return self.carry_out(request, self.chosen(request, queryset), act, "Resumed")

    @admin.action(permissions=["remove"], description="Delete…")
    def delete_chosen(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> HttpResponse | None:
        schedules = self.chosen(request, queryset)
        if schedules and "confirmed" not in request.POST:
            warning = (
                "These schedules put no task any more. A worker whose code declares one sets it again at its start."
            )
            return self.confirm(request, schedules, "delete_chosen", warning)

        def act(run: Run, schedule: Schedule) -> None:
            run(calls.delete_schedule(schedule.name))

        return self.carry_out(request, schedules, act, "Deleted", DELETION)
