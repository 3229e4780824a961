"""Calls of 3_tasks/find.sql: the tasks of a queue by state, job, error and age."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple, cast, get_args

from .._values import arguments
from .._values.arguments import Seconds
from .call import Call
from .pick import Found

State = Literal["taken", "ready", "delayed", "blocked", "waiting", "cancelling", "buried", "done"]
Verb = Literal["kick", "release", "cancel", "delete"]

MOST = 5000  # tasks that one transaction acts on: locks for a moment, and few round trips


class Filter(NamedTuple):
    """Which tasks of a state: None lets all pass."""

    job: str | None = None
    error: str | None = None
    older: float | None = None  # seconds

    @classmethod
    def of(cls, job: str | None, error: str | None, older: Seconds | None) -> Filter:
        """The arguments as users give them. Raises ValueError."""
        return cls(
            None if job is None else arguments.text(job, "a job"),
            None if error is None else arguments.text(error, "an error"),
            arguments.seconds("older", older),
        )


class FoundPage(NamedTuple):
    tasks: list[Found]
    marker: str | None


_COLUMNS = (
    "t.id, t.queue, t.state, t.priority, t.attempts, t.error, t.run_at, t.buried_at, t.deadline, t.holder,"
    " t.lane, t.key, t.data::pg_catalog.text"
)
FILTER = (
    " job => %s::pg_catalog.text, error => %s::pg_catalog.text, older => pg_catalog.make_interval(secs => %s::float)"
)
# The columns by which find_tasks orders the tasks of a state.
MARKER = (
    "CASE t.state WHEN 'taken' THEN pg_catalog.jsonb_build_array(t.taken_at, t.id)"
    " WHEN 'delayed' THEN pg_catalog.jsonb_build_array(t.run_at, t.id)"
    " WHEN 'done' THEN pg_catalog.jsonb_build_array(t.done_at, t.id)"
    " WHEN 'blocked' THEN pg_catalog.jsonb_build_array(t.lane, t.priority, t.id)"
    " ELSE pg_catalog.jsonb_build_array(t.priority, t.id) END"
)


def state(given: str) -> State:
    """Raises ValueError."""
    if given not in get_args(State):
        raise ValueError(f"no task is ever {given!r}: the states are {', '.join(get_args(State))}")
    return cast(State, given)


def page(queue: str, of: State, which: Filter, n: int, marker: str | None) -> Call[FoundPage]:
    """The tasks of a state behind the marker of the page before."""

    def read(rows: list[Any]) -> FoundPage:
        return FoundPage([Found(*row[:-1]) for row in rows], rows[-1][-1] if len(rows) == n else None)

    return Call(
        f"SELECT {_COLUMNS}, ({MARKER})::pg_catalog.text FROM pgqueue.find_tasks(queue => %s::pg_catalog.text,"
        f" state => %s::pg_catalog.text, n => %s::int,{FILTER}, after => %s::pg_catalog.jsonb)"
        " WITH ORDINALITY t ORDER BY t.ordinality",
        (queue, of, n, *which, marked(marker)),
        read,
    )


def tasks(queue: str, of: State | None, n: int, skip: int, which: Filter) -> Call[list[Found]]:
    """The tasks of a state, in its order; without a state, the tasks of each state in turn."""
    states = list(get_args(State)) if of is None else [of]
    return Call(
        f"SELECT {_COLUMNS} FROM pg_catalog.unnest(%s::pg_catalog.text[]) WITH ORDINALITY asked(state, place)"
        " CROSS JOIN LATERAL pgqueue.find_tasks(queue => %s::pg_catalog.text, state => asked.state, n => %s::int,"
        f"{FILTER}) WITH ORDINALITY t ORDER BY asked.place, t.ordinality LIMIT %s::int OFFSET %s::int",
        (states, queue, n + skip, *which, n, skip),
        lambda rows: [Found(*row) for row in rows],
    )


class Acted(NamedTuple):
    """How many, and where to go on; None: that were all."""

    n: int
    marker: str | None


def act(queue: str, verb: Verb, of: State, which: Filter, marker: str | None) -> Call[Acted]:
    """Act on at most MOST tasks behind the marker."""
    return Call(
        "SELECT acted, next::pg_catalog.text FROM pgqueue.act_on_tasks(queue => %s::pg_catalog.text,"
        f" verb => %s::pg_catalog.text, state => %s::pg_catalog.text, n => %s::int,{FILTER},"
        " after => %s::pg_catalog.jsonb)",
        (queue, verb, of, MOST, *which, marked(marker)),
        lambda rows: Acted(*rows[0]),
        long=True,
    )


def marked(marker: str | None) -> str | None:
    """Raises ValueError for what is no marker."""
    if marker is not None:
        try:
            is_marker = isinstance(json.loads(marker), list)
        except (TypeError, ValueError):
            is_marker = False
        if not is_marker:
            raise ValueError(f"a marker comes from the page before, and is not {marker!r}")
    return marker
