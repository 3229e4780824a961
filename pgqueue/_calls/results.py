"""Calls of 6_families/results.sql: the outcome of a task, its result and its progress."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from psycopg import sql

from .._values import arguments, data
from .._values.arguments import Seconds
from .._values.record import Record
from .attempts import Report, said
from .call import (
    REFUSALS,
    SETTLED,
    Call,
    Fence,
    Named,
    Refused,
    Rows,
    call,
    columns,
    error_text,
    hasty,
    in_haste,
    query,
    refusals,
    settled,
    then_without_haste,
)

ENDED = frozenset(("done", "failed", "cancelled", "unknown"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Record):
    """The state of a task at the moment of the call, also after its end.

    Attributes:
        id: the task's id.
        state: ready, delayed, taken, cancelling (it is taken, and was cancelled), waiting, blocked or buried before its
            end. After its end `done`, `failed` or `cancelled` if that was kept, and otherwise `unknown`, as for a task
            that never existed.
        queue: the queue's name; None if the state is unknown.
        attempts: the number of its attempts, failed ones and lost ones.
        error: the error of the last failed attempt; for a failed task, the error that ended it; for a cancelled one,
            the reason.
        holder: host, process id and program of the client that has taken it.
        progress: the last progress that its taker reported; None if it reported none.
        result: the result of a task that is done.
        has_result: whether that result is kept, which may be None. A queue's `keep_done` keeps tasks without it.
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
    has_result: bool = False
    updated_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether the task has ended: it is done, failed, cancelled or unknown."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A failed attempt: an argument of fail_many.

    Attributes:
        keep: seconds for which the error is kept as the task's result; None: it is not.
        delay: seconds until the next attempt; None: there is none, the task has failed.
        hold_lane: whether the task's lane waits for it during the delay.
    """

    id: int
    token: int
    error: str
    keep: float | None
    delay: float | None
    hold_lane: bool
    report: Report


_COLUMNS = "state, queue, attempts, error, holder, progress::pg_catalog.text, result::pg_catalog.text, updated_at"
_TASK = re.compile("pgqueue:task:([0-9]{1,18})")


def outcome(id: int) -> Call[Outcome]:
    return call("outcome", _COLUMNS, lambda rows: _outcome(id, *rows[0]), id=id)


def await_outcome(id: int) -> Call[tuple[Outcome, bool]]:
    """The outcome, and whether each change that it does not show yet will be announced."""

    def read(rows: Rows) -> tuple[Outcome, bool]:
        *row, drained = rows[0]
        return _outcome(id, *row), drained

    return call("await_outcome", f"{_COLUMNS}, drained", read, id=id)


def task_channel(id: int) -> str:
    """The channel on which results and progress of a task are announced, to a connection with await_ends."""
    return f"pgqueue:task:{id}"


def gate(off: Sequence[str], on: Sequence[str]) -> list[sql.Composed]:
    """Statements to send with UNLISTEN and LISTEN of these channels, for those that are channels of tasks.

    They follow the others, and the one that gives up is the last, since it must not run twice.
    """
    steps = (
        ("SELECT pgqueue.await_ends(ids => {}::bigint[])", on),
        ("SELECT pgqueue.leave_ends(ids => {}::bigint[])", off),
    )
    return [
        sql.SQL(step).format(sql.Literal("{" + ",".join(ids) + "}"))
        for step, names in steps
        if (ids := [found[1] for name in names if (found := _TASK.fullmatch(name))])
    ]


def _outcome(
    id: int,
    state: str,
    queue: str | None,
    attempts: int | None,
    error: str | None,
    holder: str | None,
    progress: str | None,
    result: str | None,
    updated_at: datetime | None,
) -> Outcome:
    return Outcome(
        id=id,
        state=state,
        queue=queue,
        attempts=attempts or 0,
        error=error,
        holder=holder,
        progress=data.decode_if_any(progress),
        result=data.decode_if_any(result),
        has_result=result is not None,  # a result that is None is the text null
        updated_at=updated_at,
    )


def finish(id: int, fence: Fence, text: str, keep: Seconds) -> Call[str]:
    return call(
        "finish",
        SETTLED,
        settled(id, fence),
        **fence.of(id),
        result=text,
        keep=_keep(keep),
    )


def finish_many(tasks: Named, texts: Sequence[str], fence: Fence, keep: Seconds) -> Call[list[Refused]]:
    """Ack the tasks of a worker, and keep their results; none of them waits for another transaction's lock."""
    ids, tokens = columns(tasks)
    return call(
        "finish_many",
        REFUSALS,
        refusals,
        ids=ids,
        tokens=tokens,
        session=in_haste(fence.session),
        results=f"[{','.join(texts)}]",
        keep=_keep(keep),
    )


def fail(
    id: int,
    fence: Fence,
    error: str | None,
    keep: Seconds,
    delay: float | None = None,
    report: Report | None = None,
) -> Call[str]:
    """Fail a task. With a delay it is tried again, and fails only if the queue allows no more attempts."""
    report = report or Report()
    return call(
        "fail",
        SETTLED,
        settled(id, fence),
        id=id,
        token=fence.token,
        error=error_text(error),
        keep=_keep(keep),
        delay=delay,
        counts=report.counts,
        **said(report),
    )


def fail_many(failed: Sequence[Failed], *, patient: bool = True) -> Call[list[Refused]]:
    """Settle the failed attempts of a worker, each by a call of fail: in one statement, and all of them or none.

    The tasks are locked in the order of their ids; `patient`: each waits for another transaction's lock.
    """
    rows = [
        {
            "id": one.id,
            "token": one.token,
            "error": error_text(one.error),
            "keep": one.keep,
            "delay": one.delay,
            "counts": one.report.counts,
            "hold_lane": one.hold_lane,
            "traceback": error_text(one.report.traceback),
            "began": one.report.began,
            "ended_as": one.report.state,
        }
        for one in sorted(failed, key=lambda one: one.id)
    ]
    token = "asked.token" if patient else hasty("asked.token")
    statement: LiteralString = (
        "SELECT asked.id, s.state, s.problem, s.holder"
        " FROM pg_catalog.jsonb_to_recordset(%s::pg_catalog.jsonb) asked(id bigint, token bigint,"
        " error pg_catalog.text, keep float, delay float, counts boolean, hold_lane boolean,"
        " traceback pg_catalog.text, began float, ended_as pg_catalog.text),"
        f" LATERAL pgqueue.fail(id => asked.id, token => {token}, error => asked.error,"
        " keep => pg_catalog.make_interval(secs => asked.keep), delay => pg_catalog.make_interval(secs => asked.delay),"
        " counts => asked.counts, hold_lane => asked.hold_lane, traceback => asked.traceback,"
        " began => pg_catalog.to_timestamp(asked.began), ended_as => asked.ended_as) s"
        " WHERE s.problem IS NOT NULL"
    )
    return query(
        statement if patient else then_without_haste(statement),
        (data.encode(rows, 1 << 30),),
        refusals,
    )


def progress(id: int, fence: Fence, text: str) -> Call[str]:
    return call("progress", SETTLED, settled(id, fence), **fence.of(id), value=text)


def _keep(value: Seconds) -> float:
    seconds = arguments.seconds("keep", value, positive=True)
    if seconds is None:
        raise ValueError("keep must be a number of seconds, not None: without a result to keep, ack or bury")
    return seconds
