"""The tasks: found by queue and state, by id or by key; kicked, released, buried and deleted."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import SEARCH_VAR
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from pgqueue._engine import borrowed
from pgqueue.errors import TaskError, TaskNotTaken

from ...._calls import attempts as attempt_calls
from ...._calls import pick as picking
from ...._calls import settle as calls
from ...._calls.call import Fence
from ..models import Result, Task
from . import reasons, showing
from .acting import ActingPage, Run
from .filters import ORDER, QueueFilter, StateFilter, asked_for, with_key
from .paging import MOST

NO_TAKE = Fence(None, None)
FITS = {  # the states in which each action may succeed
    "kick": ("buried", "delayed"),
    "release": ("taken",),
    "bury": ("ready", "delayed", "taken", "blocked", "waiting"),
    "remove": ("ready", "delayed", "buried", "blocked", "waiting", "done"),
}


class TaskPage(ActingPage):
    """The tasks. Without a queue, the newest; with one, those in a state, in the order in which they are taken."""

    list_display = ("id", "queue", "state_", "priority", "attempts", "age", "holder", "last_error")
    list_filter = (StateFilter, QueueFilter)
    conditions = ("queue", "state")
    search_fields = ("id",)
    search_help_text = "The id of a task; or, if a queue is chosen, the key of a task."
    deferred = ("data", "deaths")
    actions = ("kick", "release", "bury", "remove")
    fieldsets = (
        (None, {"fields": ("state_", "why", "queue_", "priority", "lane", "key", "routing_key")}),
        ("Contents", {"fields": ("data_", "error_", "result", "attempts_")}),
        ("Holder", {"fields": ("holder", "taken_at", "deadline")}),
        ("Times", {"fields": ("created_at", "run_at", "ready_since", "expires_at", "buried_at", "done_at", "ttr")}),
        ("History", {"fields": (("attempts", "releases", "timeouts", "buries", "kicks"), "deaths_")}),
    )

    # --- finding

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        asked = asked_for(request)
        return ("-id",) if asked is None else ORDER.get(asked[1], ("id",))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search for exact values, in any state: an index serves no other search."""
        term = search_term.strip()
        if not term:
            return queryset, False
        ids = showing.ids(term)
        if queue := request.GET.get("queue"):
            found = borrowed.run(connections[self.alias()], with_key(queue, term))
            ids.extend(found)
        return self.get_queryset(request).filter(pk__in=ids), False

    def subtitle(self, request: HttpRequest) -> str:
        if request.GET.get(SEARCH_VAR):
            return "By id or key"
        if asked := asked_for(request):
            return f"The first {MOST} that are {asked[1]} in {asked[0]}"
        return f"The newest {MOST} of all queues. Choose a queue to see the others."

    # --- showing

    @admin.display(description="state")
    def state_(self, task: Task) -> str:
        """In words."""
        if task.state == "delayed" and task.run_at:
            return f"delayed, due in {showing.until(task.run_at)}"
        if task.state == "taken" and task.taken_at:
            return f"taken {showing.age(task.taken_at)} ago"
        return str(task.state)

    @admin.display(description="queue")
    def queue_(self, task: Task) -> SafeString:
        return showing.link(self.url("change", quote(task.queue), model="queue"), task.queue)

    @admin.display(description="why not done")
    def why(self, task: Task) -> SafeString | str:
        return reasons.why(task)

    @admin.display(description="age")
    def age(self, task: Task) -> str:
        return showing.age(task.created_at)

    @admin.display(description="error")
    def last_error(self, task: Task) -> str:
        return showing.last_line(task.error)

    @admin.display(description="data")
    def data_(self, task: Task) -> SafeString | str:
        return showing.pretty(task.data)

    @admin.display(description="error")
    def error_(self, task: Task) -> SafeString | str:
        return showing.block(task.error)

    @admin.display(description="deaths")
    def deaths_(self, task: Task) -> SafeString | str:
        return showing.pretty(task.deaths)

    @admin.display(description="result")
    def result(self, task: Task) -> SafeString | str:
        """The result, if the task has ended and its result is kept."""
        kept = Result.objects.using(self.alias()).filter(pk=task.pk).first()
        return "-" if kept is None else showing.pretty(kept.result)

    @admin.display(description="failed attempts")
    def attempts_(self, task: Task) -> SafeString | str:
        """The last ones, each with its traceback."""
        found = borrowed.run(connections[self.alias()], attempt_calls.attempts(task.pk))
        return showing.block("\n\n".join(map(showing.attempt, found))) if found else "-"

    # --- acting

    def fits(self, action: str, row: Task) -> bool:
        return row.state in FITS[action]

    @admin.action(permissions=["act"], description="Kick: make ready now")
    def kick(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        def act(run: Run, task: Task) -> None:
            if run(picking.kick_task(task.id)) is None:
                raise TaskError(f"task {task.id} is neither buried nor delayed", task.id)

        return self.carry_out(request, self.chosen(request, queryset), act, "Kicked")

    @admin.action(permissions=["act"], description="Release: take from its holder")
    def release(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return self.carry_out(request, self.chosen(request, queryset), release, "Released")

    @admin.action(permissions=["act"], description="Bury: set aside")
    def bury(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return self.carry_out(request, self.chosen(request, queryset), bury, "Buried")

    @admin.action(permissions=["remove"], description="Delete…")
    def remove(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        tasks = self.chosen(request, queryset)
        if tasks and "confirmed" not in request.POST:
            return self.confirm(
                request, tasks, "remove", "These tasks are removed for good. A task that is taken stays."
            )

        def act(run: Run, task: Task) -> None:
            run(picking.delete_strict(task.id, NO_TAKE))

        return self.carry_out(request, tasks, act, "Deleted", DELETION)


def bury(run: Run, task: Any) -> None:
    """Bury a task, also one that is taken."""
    run(calls.bury(task.id, NO_TAKE, None))


def release(run: Run, task: Any) -> None:
    """Release a task as the session that holds it. If another session holds it by now, nothing happens."""
    if not task.session:
        raise TaskNotTaken(f"task {task.id} is not taken by any session", task.id)
    run(calls.release(task.id, Fence(None, task.session, task.holder), calls.Return()))
