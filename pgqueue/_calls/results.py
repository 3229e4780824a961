"""Calls of 4_families/results.sql: the outcome of a task, its result and its progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .._values import arguments, data
from .._values.arguments import Seconds
from .._values.record import Record
from .call import Call, Fence, Named, Refused, Rows, columns, error_text, refusals, settled

ENDED = frozenset(("done", "failed", "unknown"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Record):
    """The state of a task at the moment of the call, also after its end.

    Attributes:
        id: the task's id.
        state: ready, delayed, taken or buried before its end. After its end `done` or `failed` if its result was
            kept, and otherwise `unknown`, as for a task that never existed.
        queue: the queue's name; None if the state is unknown.
        attempts: the number of times that the task came back.
        error: the error of the last failed attempt; for a failed task, the error that ended it.
        holder: host, process id and program of the client that has taken it.
        progress: the last progress that its taker reported; None if it reported none.
        result: the result of a task that is done.
        updated_at: when it was put, taken, last reported progress, or ended: the latest of these that is known.
    """

    id: int
    state: str
    queue: str | None = None
    attempts: int = 0
    error: str | None = None
    holder: str | None = None
    progress: Any = None
    result: Any = None
    updated_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether the task has ended: it is done, failed or unknown."""
        return self.state in ENDED


def outcome(id: int) -> Call[Outcome]:
    def read(rows: Rows) -> Outcome:
        state, queue, attempts, error, holder, progress, result, updated_at = rows[0]
        return Outcome(
            id=id,
            state=state,
            queue=queue,
            attempts=attempts or 0,
            error=error,
            holder=holder,
            progress=data.decode_if_any(progress),
            result=data.decode_if_any(result),
            updated_at=updated_at,
        )

    return Call(
        "SELECT state, queue, attempts, error, holder, progress::pg_catalog.text, result::pg_catalog.text, updated_at"
        " FROM pgqueue.outcome(id => %s::bigint)",
        (id,),
        read,
    )


def task_channel(id: int) -> str:
    """The channel on which results and progress of a task are announced."""
    return f"pgqueue:task:{id}"


def finish(id: int, fence: Fence, text: str, keep: Seconds) -> Call[str]:
    return Call(
        "SELECT state, problem, holder FROM pgqueue.finish(id => %s::bigint, token => %s::bigint, session => %s::int,"
        " result => %s::pg_catalog.jsonb, keep => pg_catalog.make_interval(secs => %s::float))",
        (id, fence.token, fence.session, text, _keep(keep)),
        settled(id, fence),
    )


def finish_many(tasks: Named, texts: Sequence[str], fence: Fence, keep: Seconds) -> Call[list[Refused]]:
    return Call(
        "SELECT id, state, problem, holder"
        " FROM pgqueue.finish_many(ids => %s::bigint[], tokens => %s::bigint[], session => %s::int,"
        " results => %s::pg_catalog.jsonb, keep => pg_catalog.make_interval(secs => %s::float))",
        (*columns(tasks), fence.session, f"[{','.join(texts)}]", _keep(keep)),
        refusals,
    )


def fail(id: int, fence: Fence, error: str | None, keep: Seconds, delay: float | None = None) -> Call[str]:
    """Fail a task. With a delay it is tried again, and fails only if the queue allows no more attempts."""
    return Call(
        "SELECT state, problem, holder FROM pgqueue.fail(id => %s::bigint, token => %s::bigint,"
        " error => %s::pg_catalog.text,"
        " keep => pg_catalog.make_interval(secs => %s::float), delay => pg_catalog.make_interval(secs => %s::float))",
        (id, fence.token, error_text(error), _keep(keep), delay),
        settled(id, fence),
    )


def progress(id: int, fence: Fence, text: str) -> Call[str]:
    return Call(
        "SELECT state, problem, holder FROM pgqueue.progress(id => %s::bigint, token => %s::bigint, session => %s::int,"
        " value => %s::pg_catalog.jsonb)",
        (id, fence.token, fence.session, text),
        settled(id, fence),
    )


def _keep(value: Seconds) -> float:
    seconds = arguments.seconds("keep", value, positive=True)
    if seconds is None:
        raise ValueError("keep must be a number of seconds, not None: without a result to keep, ack or bury")
    return seconds
