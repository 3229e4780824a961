"""One function for each SQL function: what to send, and how to read the answer. No I/O.

The only Python that holds SQL, but for what some part of contrib/ alone looks up. Arguments go by name, so that a
function may gain one with a default; columns are named too, so that it may gain a column. Each parameter has a cast,
since psycopg types an int by its size. Data travels as text: a connection that is the caller's may load jsonb its own
way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, LiteralString, NamedTuple, TypeVar

from .. import arguments
from ..errors import refusal

T = TypeVar("T")
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One round trip."""

    sql: LiteralString
    args: Sequence[Any]
    read: Callable[[Rows], T]


class Taken(NamedTuple):
    """A row of a claim. `data` is still JSON text: a batch is decoded by whoever needs it."""

    id: int
    token: int
    priority: int
    attempts: int
    deadline: datetime | None
    data: str
    queue: str


class Popped(NamedTuple):
    """A row of a pop."""

    id: int
    priority: int
    attempts: int
    data: str


class Found(NamedTuple):
    """A row of the view pgqueue.tasks."""

    id: int
    queue: str
    state: str
    priority: int
    attempts: int
    error: str | None
    run_at: datetime | None
    deadline: datetime | None
    holder: str | None
    lane: str | None
    key: str | None
    data: str


@dataclass(frozen=True, slots=True)
class Fence:
    """What a settling call presents: the token of the take, or, by id alone, the session."""

    token: int | None
    session: int | None
    me: str = "this client"


@dataclass(frozen=True, slots=True)
class Options:
    """What a put may say about its tasks; None is the queue's default. Times in seconds. Checked when made."""

    priority: int | None = None
    delay: float | None = None
    ttr: float | None = None
    ttl: float | None = None

    def __post_init__(self) -> None:
        arguments.integer("priority", self.priority)
        arguments.seconds("delay", self.delay)
        arguments.seconds("ttr", self.ttr, positive=True)
        arguments.seconds("ttl", self.ttl, positive=True)


# --- taking


def take(queue: str, session: int, token: int, after: tuple[int, int] | None) -> Call[list[Taken]]:
    priority, id = after or (None, None)
    return Call(
        "SELECT id, token, priority, attempts, deadline, data::text, %s::text"
        " FROM pgqueue.take(queue => %s::text, session => %s::int, new_token => %s::int8,"
        " after_priority => %s::int, after_id => %s::int8)",
        (queue, queue, session, token, priority, id),
        _taken,
    )


def take_many(
    queues: Sequence[str], n: int, session: int, token: int, after: Sequence[tuple[int, int] | None]
) -> Call[list[Taken]]:
    return Call(
        "SELECT id, token, priority, attempts, deadline, data::text, queue"
        " FROM pgqueue.take_many(queues => %s::text[], n => %s::int, session => %s::int, new_token => %s::int8,"
        " after_priority => %s::int[], after_id => %s::int8[])",
        (
            list(queues),
            n,
            session,
            token,
            [at[0] if at else None for at in after],
            [at[1] if at else None for at in after],
        ),
        _taken,
    )


def pop(queue: str, n: int, session: int | None) -> Call[list[Popped]]:
    return Call(
        "SELECT id, priority, attempts, data::text"
        " FROM pgqueue.pop(queue => %s::text, n => %s::int, session => %s::int)",
        (queue, arguments.count("n", n), session),
        lambda rows: [Popped(*row) for row in rows],
    )


def next_due(queues: Sequence[str], ids: Sequence[int]) -> Call[dict[str, float | None]]:
    """Without an entry for a queue whose id is none of these any more."""
    return Call(
        "SELECT queue, seconds FROM pgqueue.next_due(queues => %s::text[], ids => %s::int[])",
        (list(queues), list(ids)),
        lambda rows: dict(rows),
    )


def session_deadline(session: int) -> Call[float | None]:
    return Call("SELECT pgqueue.session_deadline(session => %s::int)", (session,), _scalar)


# --- settling


def ack(id: int, fence: Fence, puts: str | None = None) -> Call[str]:
    """`puts` is a JSON array of the tasks that this one hands on to."""
    if puts is None:
        return Call(
            "SELECT state, problem, holder FROM pgqueue.ack(id => %s::int8, token => %s::int8, session => %s::int)",
            (id, fence.token, fence.session),
            _settled(id, fence),
        )
    return Call(
        "SELECT state, problem, holder FROM pgqueue.ack(id => %s::int8, token => %s::int8, session => %s::int,"
        " puts => %s::jsonb)",
        (id, fence.token, fence.session, puts),
        _settled(id, fence),
    )


@dataclass(frozen=True, slots=True)
class Return:
    """How a task is given back. Times in seconds. Checked when made."""

    delay: float | None = None
    every: float | None = None
    priority: int | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        arguments.seconds("delay", self.delay)
        arguments.seconds("every", self.every, positive=True)
        arguments.integer("priority", self.priority)
        if self.delay and self.every:
            raise ValueError(f"a task is released with a delay or every so often, not both: {self.delay}, {self.every}")


def release(id: int, fence: Fence, how: Return) -> Call[str]:
    return Call(
        "SELECT state, problem, holder FROM pgqueue.release(id => %s::int8, token => %s::int8, session => %s::int,"
        " delay => make_interval(secs => %s::float8), error => %s::text, priority => %s::int,"
        " every => make_interval(secs => %s::float8))",
        (id, fence.token, fence.session, how.delay, _text(how.error), how.priority, how.every),
        _settled(id, fence),
    )


def touch(id: int, fence: Fence, more: float | None) -> Call[str]:
    return Call(
        "SELECT state, problem, holder FROM pgqueue.touch(id => %s::int8, token => %s::int8, session => %s::int,"
        " more => make_interval(secs => %s::float8))",
        (id, fence.token, fence.session, arguments.seconds("more", more)),
        _settled(id, fence),
    )


def bury(id: int, fence: Fence, error: str | None, priority: int | None = None) -> Call[str]:
    return Call(
        "SELECT state, problem, holder FROM pgqueue.bury(id => %s::int8, token => %s::int8, error => %s::text,"
        " priority => %s::int)",
        (id, fence.token, _text(error), arguments.integer("priority", priority)),
        _settled(id, fence),
    )


class Refused(NamedTuple):
    """A task that a call for many could not settle, and why."""

    id: int
    state: str | None
    problem: str
    holder: str | None


Named = Sequence[tuple[int, int | None]]  # ids, each with its token if that is known


def ack_many(tasks: Named, fence: Fence) -> Call[list[Refused]]:
    return Call(
        "SELECT id, state, problem, holder"
        " FROM pgqueue.ack_many(ids => %s::int8[], tokens => %s::int8[], session => %s::int)",
        (*_columns(tasks), fence.session),
        _refused,
    )


def release_many(tasks: Named, fence: Fence) -> Call[list[Refused]]:
    return Call(
        "SELECT id, state, problem, holder"
        " FROM pgqueue.release_many(ids => %s::int8[], tokens => %s::int8[], session => %s::int)",
        (*_columns(tasks), fence.session),
        _refused,
    )


def insist(refused: list[Refused], fence: Fence) -> None:
    """Raise the TakeLost of the first, if any."""
    for task in refused:
        raise refusal(*task, fence.me)


# --- looking


def peek(id: int) -> Call[Found]:
    def read(rows: Rows) -> Found:
        if not rows:
            raise refusal(id, None, "not found", None, "")
        return Found(*rows[0])

    return Call(
        "SELECT id, queue, state, priority, attempts, error, run_at, deadline, holder, lane, key,"
        " data::text FROM pgqueue.tasks WHERE id = %s::int8",
        (id,),
        read,
    )


# --- writing and reading


def _text(value: str | None) -> str | None:
    """An error message as PostgreSQL can store it: no NUL, no lone surrogates."""
    return value and str(value).replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _scalar(rows: Rows) -> Any:
    return rows[0][0]


def _nothing(rows: Rows) -> None:
    return None


def _taken(rows: Rows) -> list[Taken]:
    make = Taken._make
    return [make(row) for row in rows]


def _columns(tasks: Named) -> tuple[list[int], list[int | None]]:
    return [id for id, _ in tasks], [token for _, token in tasks]


def _refused(rows: Rows) -> list[Refused]:
    return [Refused(*row) for row in rows]


def _settled(id: int, fence: Fence) -> Callable[[Rows], str]:
    def read(rows: Rows) -> str:
        state, problem, holder = rows[0]
        if problem:
            raise refusal(id, state, problem, holder, fence.me)
        return str(state)

    return read
