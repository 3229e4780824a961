"""A task as its users see it: a small frozen record. The shells add the verbs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from . import arguments, data
from .calls import Found, Popped, Taken
from .calls.putting import Placed, PutOptions, insist

TAKEN, DONE = "taken", "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """What is known of a task at the moment that a call returned it.

    Attributes:
        id: unique in the database.
        queue: the queue's name.
        state: ready, delayed, taken, buried, or blocked (its lane is busy); done once it is acked, dead once it went to
            where dead letters go.
        data: what was put.
        priority: lower is taken first.
        attempts: how often it came back: failed, past its deadline, or its taker died.
        error: what the last failed attempt or the burial said; only peek looks it up.
        run_at: when a delayed task becomes ready; only peek looks it up.
        deadline: until when it is held, or None without a time to run.
        holder: host, process id and program of whoever holds it; only peek looks it up.
        lane: the lane that it was put into; only put and peek say so.
        key: the key that it was put with; only put and peek say so.
        existed: of a put with a key: this task was there already.
        token: the fence of the take, for a task that was taken by this client.
    """

    id: int
    queue: str
    state: str
    data: Any
    priority: int = 0
    attempts: int = 0
    error: str | None = None
    run_at: datetime | None = None
    deadline: datetime | None = None
    holder: str | None = None
    lane: str | None = None
    key: str | None = None
    existed: bool = False
    token: int | None = field(default=None, repr=False)


TaskLike = TaskRecord | int | str  # what a verb takes: a task, or an id as an int or a string of digits
Record = TypeVar("Record", bound=TaskRecord)


def named(task: TaskLike) -> tuple[int, int | None]:
    """A task's id, and its token if it was taken here. Raises TaskIdRequired."""
    if isinstance(task, TaskRecord):
        return task.id, task.token
    return arguments.task_id(task), None


def settled(task: Record, state: str) -> Record:
    """The task after a verb; without a take there is no token any more."""
    return replace(task, state=state, token=task.token if state == TAKEN else None)


def from_placed(kind: type[Record], placed: Placed, queue: str, value: Any, options: PutOptions, **more: Any) -> Record:
    """The task that is there after a put: the new one, or the one that had its key."""
    return kind(
        id=insist(placed, queue),
        queue=queue,
        state=placed.state,
        data=value if placed.kept is None else data.decode(placed.kept),
        lane=options.lane,
        key=options.key,
        existed=placed.existed,
        **more,
    )


def from_taken(kind: type[Record], row: Taken, **more: Any) -> Record:
    return kind(
        id=row.id,
        queue=row.queue,
        state=TAKEN,
        data=data.decode(row.data),
        priority=row.priority,
        attempts=row.attempts,
        deadline=row.deadline,
        token=row.token,
        **more,
    )


def from_popped(kind: type[Record], row: Popped, queue: str, **more: Any) -> Record:
    return kind(
        id=row.id,
        queue=queue,
        state=DONE,
        data=data.decode(row.data),
        priority=row.priority,
        attempts=row.attempts,
        **more,
    )


def from_found(kind: type[Record], row: Found, **more: Any) -> Record:
    return kind(
        id=row.id,
        queue=row.queue,
        state=row.state,
        data=data.decode(row.data),
        priority=row.priority,
        attempts=row.attempts,
        error=row.error,
        run_at=row.run_at,
        deadline=row.deadline,
        holder=row.holder,
        lane=row.lane,
        key=row.key,
        **more,
    )
