"""The filters of the list of tasks: a queue and one state of its tasks, which an index serves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest

from pgqueue._engine import borrowed

from ...._calls import stats as counting
from ...._calls.call import Call, call, query
from ..models import Queue
from .paging import MOST

QUEUES = 50  # queues in the sidebar; the list of queues has all
ORDER = {  # of each state, as in pgqueue.find_tasks
    "ready": ("priority", "id"),
    "delayed": ("run_at", "id"),
    "taken": ("taken_at", "id"),
    "buried": ("priority", "id"),
    "blocked": ("lane", "priority", "id"),
    "waiting": ("priority", "id"),
    "cancelling": ("priority", "id"),
    "done": ("-done_at", "-id"),
}


def asked_for(request: HttpRequest) -> tuple[str, str] | None:
    """The queue and the state in the URL; the state is ready if the URL has only a queue."""
    queue = request.GET.get("queue")
    return (queue, request.GET.get("state", "ready")) if queue else None


class QueueFilter(SimpleListFilter):
    title = "queue"
    parameter_name = "queue"

    def __init__(self, request: HttpRequest, params: Any, model: Any, page: Any) -> None:
        self._run = partial(borrowed.run, connections[page.alias()])
        super().__init__(request, params, model, page)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = list(Queue.objects.using(model_admin.alias()).values_list("name", flat=True)[:QUEUES])
        if (here := self.value()) and here not in names:
            names.insert(0, here)
        return [(name, name) for name in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        """Without a queue the newest tasks; with one, None: the other filter narrows the queryset."""
        if asked_for(request) or request.GET.get(SEARCH_VAR):
            return None
        return queryset.filter(pk__in=self._run(newest()))


class StateFilter(SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def __init__(self, request: HttpRequest, params: Any, model: Any, page: Any) -> None:
        self._asked = asked_for(request)
        self._run = partial(borrowed.run, connections[page.alias()])
        super().__init__(request, params, model, page)

    def value(self) -> str | None:
        return self._asked[1] if self._asked else None

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """The states, each with its number of tasks from the counters; of done tasks, those that the queue keeps."""
        if not self._asked:
            return []
        queue, state = self._asked
        if state not in ORDER:
            raise IncorrectLookupParameters(f"no task is ever {state!r}")
        stats = self._run(counting.stats(queue))
        counts: dict[str, Any] = {**stats, "done": stats["kept"]}
        names = {state: "done, kept" if state == "done" else state for state in ORDER}
        # waiting counts as blocked, and cancelling as taken
        return [(state, f"{name} ({counts[state]:,})" if state in counts else name) for state, name in names.items()]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """The choices without "All", which no index serves."""
        return islice(super().choices(changelist), 1, None)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        if not self._asked or request.GET.get(SEARCH_VAR):
            return None
        found = self._run(tasks_in(*self._asked))
        return queryset.filter(pk__in=found)


def newest() -> Call[list[int]]:
    """The ids of the MOST newest tasks. The view of the tasks would be read as a whole to sort it."""
    return query(
        "SELECT id FROM pgqueue.newest_tasks(n => %s::int) asked(id)", (MOST,), lambda rows: [id for (id,) in rows]
    )


def with_key(queue: str, key: str) -> Call[list[int]]:
    """The id of the task that has this key, if any."""
    return query(
        "SELECT pgqueue.find_key(queue => name, key => %s::pg_catalog.text) FROM pgqueue.queues"
        " WHERE name OPERATOR(pg_catalog.=) %s::pg_catalog.text",
        (key, queue),
        lambda rows: [id for (id,) in rows if id is not None],
    )


def tasks_in(queue: str, state: str) -> Call[list[int]]:
    """The ids of the first MOST tasks in a state; of done tasks, the last ones."""
    return call(
        "find_tasks",
        "id",
        lambda rows: [id for (id,) in rows],
        queue=queue,
        state=state,
        n=MOST,
        backwards=state == "done",
    )
