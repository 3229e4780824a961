"""Calls of 4_rules/attempts.sql: a holder's report of an attempt that failed, and the attempts of a task."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .._values.record import Record
from .call import Call, error_text, query
from .server import OWN


@dataclass(frozen=True, slots=True)
class Report:
    """How an attempt failed, for release, bury and fail with an error.

    Attributes:
        traceback: of the error; the server keeps at most 16 kB of it.
        began: when the handler began, in seconds since the epoch; None: when the task was taken.
        worker: the name of the worker that made it; None: the label of the client that took it.
        state: failed, timeout or cancelled.
        counts: whether it is an attempt of the queue's max_takes; else it is only recorded. Not for bury.
    """

    traceback: str | None = None
    began: float | None = None
    worker: str | None = None
    state: str = "failed"
    counts: bool = True


def said(report: Report | None) -> dict[str, Any]:
    """The arguments that release, bury and fail have for a report."""
    report = report or Report()
    return {
        "traceback": error_text(report.traceback),
        "began": report.began,
        "worker": report.worker,
        "ended_as": report.state,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Record):
    """One failed attempt of a task.

    Attributes:
        number: attempts that were recorded of the task, up to this one; the last ten of them are kept.
        began_at: when its handler began, or the take if that is not known.
        ended_at: when it was recorded.
        worker: the label of the client that had the task: host, process id and program.
        state: `failed`; `timeout`: its time was over; `cancelled`; or `died`: its process was gone.
        error: the last line of the error.
        traceback: of the error, where the worker sent one; at most 16 kB, the middle is cut.
    """

    number: int
    began_at: datetime | None
    ended_at: datetime
    worker: str | None
    state: str
    error: str | None
    traceback: str | None


def attempts(id: int) -> Call[list[Attempt]]:
    """The recorded attempts of a task, the first one first."""
    return query(
        "SELECT number, began_at, ended_at, worker, state, error, traceback FROM pgqueue.attempts"
        f" WHERE id OPERATOR(pg_catalog.=) %s::bigint ORDER BY number {OWN}",
        (id, id),
        lambda rows: [
            Attempt(
                number=number,
                began_at=began_at and began_at.astimezone(UTC),
                ended_at=ended_at.astimezone(UTC),
                worker=worker,
                state=state,
                error=error,
                traceback=traceback,
            )
            for number, began_at, ended_at, worker, state, error, traceback in rows
        ],
    )
