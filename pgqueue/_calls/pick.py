"""Calls of 5_verbs/pick.sql: one task by its id, or by its place."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString, NamedTuple

from .._values import arguments
from .._values.record import Record
from ..errors import TaskError, refusal
from .call import SETTLED, Call, Fence, Rows, call, query, scalar, written
from .server import OWN


class Found(NamedTuple):
    """A row of the view pgqueue.tasks. `data` is None for a role that may monitor and not look."""

    id: int
    queue: str
    state: str
    priority: int
    attempts: int
    error: str | None
    run_at: datetime | None
    buried_at: datetime | None
    deadline: datetime | None
    holder: str | None
    lane: str | None
    key: str | None
    data: str | None


_FOUND: LiteralString = (
    "SELECT id, queue, state, priority, attempts, error, run_at, buried_at, deadline, holder, lane, key,"
    " data::pg_catalog.text FROM pgqueue.tasks"
)


def peek(id: int) -> Call[Found]:
    def read(rows: Rows) -> Found:
        if not rows:
            raise refusal(id, None, "not found", None, "")
        return Found(*rows[0])

    return query(f"{_FOUND} WHERE id OPERATOR(pg_catalog.=) %s::bigint {OWN}", (id, id), read)


FIRST = ("ready", "delayed", "buried")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStats(Record):
    """The history of a task. As beanstalkd's stats-job.

    Attributes:
        id, queue, state, priority, ttr: as for the task; `ttr` in seconds, None for no limit.
        age: seconds since it was ready: since its put, the end of its delay, or a kick; a take that was given back
            changes nothing. 0 while it is delayed.
        time_left: seconds until its take ends, or until its delay ends; None if neither applies.
        reserves: the number of takes that are known: one if it is taken now, plus releases, timeouts and buries.
        releases: the number of its releases, and of the deaths of its takers.
        timeouts: the number of takes that ended with its time to run.
        buries: the number of times that it was buried.
        kicks: the number of times that it was kicked.
        attempts: the number of failures: a release or burial with an error, a timeout, or the death of its taker.
    """

    id: int
    queue: str
    state: str
    priority: int
    ttr: float | None
    age: float
    time_left: float | None
    reserves: int
    releases: int
    timeouts: int
    buries: int
    kicks: int
    attempts: int


def requeue(id: int, fence: Fence) -> Call[tuple[int, str]]:
    """Requeue a task. Returns its new id and its state."""

    def read(rows: Rows) -> tuple[int, str]:
        new_id, state, problem, holder = rows[0]
        if problem:
            raise refusal(id, state, problem, holder, fence.me)
        return new_id, state

    return call("requeue", f"new_id, {SETTLED}", read, **fence.of(id))


def delete(id: int) -> Call[None]:
    def read(rows: Rows) -> None:
        if not rows[0][0]:
            raise _gone(id)

    return call("delete", None, read, id=id)


def delete_strict(id: int, fence: Fence) -> Call[None]:
    def read(rows: Rows) -> None:
        state, problem, holder = rows[0]
        if problem:
            raise refusal(id, state, problem, holder, fence.me)

    return call("delete_strict", SETTLED, read, **fence.of(id))


def delete_one(id: int, fence: Fence, strict: bool) -> Call[None]:
    """Delete a task. `strict`: refuse if another client has taken it."""
    return delete_strict(id, fence) if strict else delete(id)


def kick(queue: str, n: int, delayed: bool) -> Call[int]:
    known = arguments.flag("delayed", delayed)
    return call("kick", None, scalar, long=True, queue=queue, n=arguments.count("n", n), delayed=known)


def kick_task(id: int) -> Call[str | None]:
    """Kick a task. Returns its new state; None if it was neither buried nor delayed."""

    def read(rows: Rows) -> str | None:
        state, problem = rows[0]
        if problem == "not found":
            raise _gone(id)
        return None if problem else state

    return call("kick_task", "state, problem", read, id=id)


def peek_next(queue: str, state: str) -> Call[Found | None]:
    if state not in FIRST:
        raise ValueError(f"peek_next needs the state {', '.join(FIRST[:-1])} or {FIRST[-1]}, not {state!r}")
    return query(
        f"{_FOUND} WHERE id OPERATOR(pg_catalog.=) (SELECT {written('first_task', 'queue', 'state')})",
        (queue, state),
        lambda rows: Found(*rows[0]) if rows else None,
    )


def urgent_priority(queue: str) -> Call[int]:
    return call("urgent_priority", None, scalar, queue=queue)


def task_stats(id: int) -> Call[TaskStats]:
    def read(rows: Rows) -> TaskStats:
        if not rows:
            raise _gone(id)
        id_, queue, state, priority, ttr, age, left, delay, releases, timeouts, buries, kicks, attempts = rows[0]
        return TaskStats(
            id=id_,
            queue=queue,
            state=state,
            priority=priority,
            ttr=ttr,
            age=age or 0.0,
            time_left={"taken": left, "delayed": delay}.get(state),
            reserves=(state == "taken") + releases + timeouts + buries,
            releases=releases,
            timeouts=timeouts,
            buries=buries,
            kicks=kicks,
            attempts=attempts,
        )

    return query(
        "SELECT id, queue, state, priority, extract(epoch FROM ttr)::float,"
        " extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) ready_since)::float,"
        " extract(epoch FROM deadline OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp())::float,"
        " extract(epoch FROM run_at OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp())::float,"
        " releases, timeouts, buries, kicks, attempts"
        f" FROM pgqueue.tasks WHERE id OPERATOR(pg_catalog.=) %s::bigint {OWN}",
        (id, id),
        read,
    )


def _gone(id: int) -> TaskError:
    return refusal(id, None, "not found", None, "")
