"""The tasks of a queue in one state, page by page, with the filters of search_tasks; the newest of all; a search by id
or key."""

from __future__ import annotations

import json
from typing import Any, get_args

from ..._calls import stats as counting
from ..._calls.call import Call, Rows
from ..._calls.find import FROM_SEARCH, MARKER, Filter, FilterArguments, State, marked
from ..._calls.rows import Row, rows
from ..._values import data
from .visit import Page, Visit

N = 50  # tasks on a page
SHORT = 12_000  # bytes of data that pages read; of longer data they show the size
STATES: tuple[str, ...] = get_args(State)
WHICH = ("job", "error", "older", "key", "lane", "contains", "no_job", "no_error")  # the filter, as a URL has it
COLUMNS = (
    "t.id",
    "t.queue",
    "t.state",
    "t.priority",
    "t.attempts",
    "t.created_at",
    "t.run_at",
    "t.taken_at",
    "t.deadline",
    "t.done_at",
    "t.buried_at",
    "t.holder",
    "t.lane",
    "t.key",
    "t.error",
    "pg_catalog.pg_column_size(t.data) AS bytes",
    f"CASE WHEN pg_catalog.pg_column_size(t.data) OPERATOR(pg_catalog.<=) {SHORT}"
    f" AND pg_catalog.octet_length(t.data::pg_catalog.text) OPERATOR(pg_catalog.<=) {SHORT}"  # it may be compressed
    " THEN t.data::pg_catalog.text END AS text",
)


async def read(visit: Visit) -> dict[str, Any]:
    asked = visit.asked
    queue, term = asked.text("queue"), (asked.text("find") or "").strip()
    state, which, after = asked.one_of("state", STATES, "ready"), Filter.of(**chosen(visit)), asked.marker()
    more = None
    if term:
        found = await visit.read(_searched(queue, term))
    elif queue is None:
        found = await visit.read(_newest())
    else:
        found, more = await visit.read(_page(asked.queue(), state, which, after))
    counts: dict[str, Any] | None = None
    if queue is not None:
        stats = await visit.read(counting.stats(queue))
        counts = {**stats, "done": stats["kept"]}
    return {
        "queue": queue,
        "state": state,
        "states": STATES,
        "counts": counts,
        "tasks": [_shown(visit, row) for row in found],
        "which": {name: asked.text(name, longest=10_000) for name in WHICH},
        "searches_data": visit.settings.show_data is None,
        "is_filtered": which != Filter(),
        "find": term,
        "after": after,
        "more": more,
        "size": N,
    }


def chosen(visit: Visit) -> FilterArguments:
    """The filter of a URL. Raises ValueError.

    An empty field of a form is no filter, so tasks of no job, and those without an error, have a word of their own.
    Data that the application masks is not searched: from the tasks found a viewer could guess it, value by value.
    """
    asked = visit.asked
    contains = asked.json("contains")
    if contains is not None and visit.settings.show_data is not None:
        raise ValueError("data is masked in this dashboard, so it cannot be searched")
    return {
        "job": "" if asked.text("no_job") else asked.text("job"),
        "error": "" if asked.text("no_error") else asked.text("error"),
        "older": asked.seconds("older"),
        "key": asked.text("key"),
        "lane": asked.text("lane"),
        "contains": contains,
    }


def shortened(visit: Visit, row: Row) -> str | None:
    """The beginning of a task's data on one line; None if there is none to show, or it is long."""
    if row["text"] is None:
        return None
    shown = visit.shown(row["queue"], data.shown(row["text"]))
    return row["text"][:300] if isinstance(shown, data.Unreadable) else summary(shown)


def summary(value: Any) -> str:
    """Data on one line: of a job, its arguments as in a call."""
    if isinstance(value, dict) and isinstance(value.get("job"), str) and isinstance(value.get("args", {}), dict):
        inner = ", ".join(f"{name}={_compact(one)}" for name, one in list(value.get("args", {}).items())[:20])
        return f"{value['job']}({inner})"
    return _compact(value)


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)[:300]
    except (ValueError, TypeError, RecursionError):
        return str(value)[:300]


def _shown(visit: Visit, row: Row) -> Row:
    return row | {"summary": shortened(visit, row)}


def _page(queue: str, state: str, which: Filter, after: str | None) -> Call[tuple[list[Row], str | None]]:
    """A page of tasks, and the marker of the next one, which is there too if the search was ended by its time."""
    source = rows(
        (*COLUMNS, f"({MARKER})::pg_catalog.text AS marker", "s.next::pg_catalog.text AS next"),
        FROM_SEARCH,
        queue,
        state,
        N + 1,
        *which,
        marked(after),
    )

    def paged(found: Rows) -> tuple[list[Row], str | None]:
        page = source.read(found)
        tasks = [row for row in page if row["id"] is not None]
        return tasks[:N], tasks[N - 1]["marker"] if len(tasks) > N else page[-1]["next"]

    return source.reading(paged)


def _newest() -> Call[list[Row]]:
    return rows(
        COLUMNS,
        "FROM pgqueue.tasks t WHERE t.id OPERATOR(pg_catalog.=) ANY (ARRAY (SELECT pgqueue.newest_tasks(n => %s::int)))"
        " ORDER BY t.id DESC",
        N,
    )


def _searched(queue: str | None, term: str) -> Call[list[Row]]:
    """The task with this id; and in a queue, the one with this key."""
    id = int(term) if term.isascii() and term.isdecimal() and len(term) < 19 else None
    return rows(
        COLUMNS,
        "FROM pgqueue.tasks t WHERE t.id OPERATOR(pg_catalog.=) ANY (ARRAY (SELECT %s::bigint UNION SELECT"
        " pgqueue.find_key(queue => q.name, key => %s::pg_catalog.text) FROM pgqueue.queues q"
        " WHERE q.name OPERATOR(pg_catalog.=) %s::pg_catalog.text)) ORDER BY t.id",
        id,
        term,
        queue,
    )


PAGE = Page("tasks", "Tasks", "tasks.html", read)
