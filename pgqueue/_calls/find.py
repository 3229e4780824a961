"""Calls of 5_verbs/find.sql and put/again.sql: tasks of a queue by state and a filter; and tasks that are put again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, LiteralString, NamedTuple, TypedDict, Unpack, cast, get_args

from .._values import arguments, data
from .._values.arguments import Seconds
from ..errors import refusal
from .call import Call, Rows, call, query, written
from .pick import Found

State = Literal["taken", "ready", "delayed", "blocked", "waiting", "cancelling", "buried", "done"]
Verb = Literal["kick", "release", "cancel", "delete", "put_again"]

MOST = 5000  # tasks that one transaction acts on: locks for a moment, and few round trips


class FilterArguments(TypedDict, total=False):
    """Which tasks of a state; a field that is left out, or None, matches all.

    Attributes:
        job: only tasks of the job with this name; empty: only those of no job.
        error: only tasks with a last error that has this part, for example the name of the exception's class;
            empty: only those without an error.
        older: only tasks that were put at least this number of seconds (or a timedelta) ago.
        key: only the task with this key; of done tasks several may have it.
        lane: only tasks of this lane.
        contains: only tasks whose data contains this JSON value, as PostgreSQL's `@>`: {"args": {"to": "ada"}} finds
            the tasks of jobs with this argument, whatever their other arguments are.
    """

    job: str | None
    error: str | None
    older: Seconds | None
    key: str | None
    lane: str | None
    contains: Any


class Filter(NamedTuple):
    """The arguments of a filter, checked, as the statements have them."""

    job: str | None = None
    error: str | None = None
    older: float | None = None  # seconds
    key: str | None = None
    lane: str | None = None
    contains: str | None = None  # JSON

    @classmethod
    def of(cls, **given: Unpack[FilterArguments]) -> Filter:
        """Raises ValueError."""
        texts = {name: cast(Any, given.get(name)) for name in ("job", "error", "key", "lane")}
        checked = {name: None if text is None else arguments.text(text, f"the {name}") for name, text in texts.items()}
        contains = given.get("contains")
        return cls(
            **checked,
            older=arguments.seconds("older", given.get("older")),
            contains=None if contains is None else data.encode(contains),
        )


class FoundPage(NamedTuple):
    tasks: list[Found]
    marker: str | None


_COLUMNS = (
    "t.id, t.queue, t.state, t.priority, t.attempts, t.error, t.run_at, t.buried_at, t.deadline, t.holder,"
    " t.lane, t.key, t.data::pg_catalog.text"
)
#: The columns by which a task has its place in its state, as a marker.
MARKER: LiteralString = (
    "CASE t.state WHEN 'taken' THEN pg_catalog.jsonb_build_array(t.taken_at, t.id)"
    " WHEN 'delayed' THEN pg_catalog.jsonb_build_array(t.run_at, t.id)"
    " WHEN 'done' THEN pg_catalog.jsonb_build_array(t.done_at, t.id)"
    " WHEN 'blocked' THEN pg_catalog.jsonb_build_array(t.lane, t.priority, t.id)"
    " ELSE pg_catalog.jsonb_build_array(t.priority, t.id) END"
)
SEARCH = written("search_tasks", "queue", "state", "n", *Filter._fields, "after")
_FIND = written("find_tasks", "queue", "n", *Filter._fields, state="asked.state")
#: A search, and the tasks that it found, in their order; without a task there is one row, for the marker. By LATERAL
#: and OFFSET 0: a plain join with the view reads every task.
FROM_SEARCH: LiteralString = (
    f"FROM {SEARCH} s LEFT JOIN LATERAL (SELECT * FROM pgqueue.tasks w"
    " WHERE w.id OPERATOR(pg_catalog.=) ANY (s.ids) OFFSET 0) t ON true ORDER BY pg_catalog.array_position(s.ids, t.id)"
)


def state(given: str) -> State:
    """Raises ValueError."""
    if given not in get_args(State):
        raise ValueError(f"no task is ever {given!r}: the states are {', '.join(get_args(State))}")
    return cast(State, given)


def states(given: Sequence[str] | None) -> list[State] | None:
    """Distinct states; None: any. Raises ValueError."""
    if isinstance(given, str):
        raise ValueError(f"states is a list of states, for example [{given!r}], not the string {given!r}")
    return None if given is None else [state(name) for name in dict.fromkeys(given)]


def page(queue: str, of: State, which: Filter, n: int, marker: str | None) -> Call[FoundPage]:
    """The tasks of a state behind the marker of the page before, as many as the search found in its time."""

    def read(rows: Rows) -> FoundPage:
        return FoundPage([Found(*row[:-1]) for row in rows if row[0] is not None], rows[-1][-1])

    return query(
        f"SELECT {_COLUMNS}, s.next::pg_catalog.text {FROM_SEARCH}",
        (queue, of, n, *which, marked(marker)),
        read,
    )


def tasks(queue: str, of: State | None, n: int, skip: int, which: Filter) -> Call[list[Found]]:
    """The tasks of a state, in its order; without a state, the tasks of each state in turn."""
    states = list(get_args(State)) if of is None else [of]
    return query(
        f"SELECT {_COLUMNS} FROM pg_catalog.unnest(%s::pg_catalog.text[]) WITH ORDINALITY asked(state, place)"
        f" CROSS JOIN LATERAL {_FIND} WITH ORDINALITY t"
        " ORDER BY asked.place, t.ordinality LIMIT %s::int OFFSET %s::int",
        (states, queue, n + skip, *which, n, skip),
        lambda rows: [Found(*row) for row in rows],
    )


class Acted(NamedTuple):
    """How many, and where to go on; None: that were all."""

    n: int
    marker: str | None


def act(queue: str, verb: Verb, of: State, which: Filter, marker: str | None) -> Call[Acted]:
    """Act on at most MOST tasks behind the marker."""
    return call(
        "act_on_tasks",
        "acted, next::pg_catalog.text",
        lambda rows: Acted(*rows[0]),
        long=True,
        queue=queue,
        verb=verb,
        state=of,
        n=MOST,
        **which._asdict(),
        after=marked(marker),
    )


def put_again(id: int) -> Call[int]:
    """Put a task again. Returns the new id."""

    def read(rows: Rows) -> int:
        if rows[0][0] is None:
            raise refusal(id, None, "not found", None, "")
        return int(rows[0][0])

    return call("put_again", None, read, id=id)


def marked(marker: str | None) -> str | None:
    """Raises ValueError if it is no marker."""
    if marker is not None:
        try:
            is_marker = isinstance(json.loads(marker), list)
        except (TypeError, ValueError):
            is_marker = False
        if not is_marker:
            raise ValueError(f"a marker comes from the page before, and is not {marker!r}")
    return marker
