"""A task as callers see it: a small frozen record. The shells add the verbs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeVar

from .._calls.call import error_text
from .._calls.pick import Found
from .._calls.pop import Popped
from .._calls.put import Placed, insist
from .._calls.put_options import PutOptions
from .._calls.take import Taken
from .._values import arguments, data
from .._values.record import Record
from ..errors import ResultUnknown

TAKEN, DONE = "taken", "done"


class Bound(Record):
    """A record with a reference for its verbs: a task refers to its shell, a claim to its `queue.messages`.

    The reference is not a field: equality, `dataclasses.asdict` and pickle leave it out, so an unpickled record has
    none.
    """

    __slots__ = ("_bound", "_unkept", "_watched")
    _bound: Any
    _unkept: str  # of a task: the name of its job, if that keeps no result
    _watched: Any  # of a task: its take, once a caller has asked for its cancellation

    @property
    def _home(self) -> Any:
        try:
            return self._bound
        except AttributeError:
            raise RuntimeError(
                f"this {type(self).__name__} was copied or unpickled, so it has no client: use the verbs of its queue"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord(Bound):
    """A task at the moment at which a call returned it.

    Attributes:
        id: unique in the database.
        queue: the queue's name.
        state: ready, delayed, taken, buried, blocked (its lane is busy) or waiting (for a limit, or for other tasks);
            cancelling: taken and cancelled; done after its ack, cancelled, or dead once it was moved to the queue's
            dead letters.
        data: the data that was put. None for a task that existed already, if the role may not look into the queue.
        priority: the lowest is taken first. None after a put without one: then it is the queue's.
        attempts: how often it failed, passed its deadline, or was charged with the death of its taker, since its put or
            the kick that ended its burial.
        redelivered: whether an earlier take of it ended by a release, a burial, its deadline or the death of its taker;
            only a take knows it. False after release_many(), release_all(), the close of its client, and a crash of
            the server, which leave no trace in the task.
        error: the text of the last failed attempt or of the burial; only peek reads it, and a verb that sets it.
        run_at: when a delayed task becomes ready; only peek reads it, and a put that was given one. None after a put or
            release with a delay: the server's clock decides.
        buried_at: since when it is buried; only peek reads it.
        deadline: the end of its take; None without a time to run.
        holder: the label of its taker: host, process id and program, as in `web1:4711:gunicorn`, with `#2` for the
            second client of that process; only peek reads it.
        lane: the lane that it was put into; only put and peek know it.
        key: the key that it was put with; only put and peek know it.
        existed: after a put with a key: whether the task existed already.
        token: the fence of the take, for a task that this client took.
    """

    id: int
    queue: str
    state: str
    data: Any
    priority: int | None = None
    attempts: int = 0
    redelivered: bool = False
    error: str | None = None
    run_at: datetime | None = None
    buried_at: datetime | None = None
    deadline: datetime | None = None
    holder: str | None = None
    lane: str | None = None
    key: str | None = None
    existed: bool = False
    token: int | None = field(default=None, repr=False)


AnyTask = TypeVar("AnyTask", bound=TaskRecord)


@dataclass(frozen=True, slots=True)
class TaskPage(Record, Generic[AnyTask]):
    """A page of tasks.

    Attributes:
        tasks: in the order of their state.
        marker: the argument `marker` for the next page; None: this is the last one.
    """

    tasks: list[AnyTask]
    marker: str | None


TaskLike = TaskRecord | int | str  # an argument: a task, or an id as an int or a string of digits
AnyRecord = TypeVar("AnyRecord", bound=Bound)


def bind(record: AnyRecord, home: Any) -> AnyRecord:
    """Set the reference that the record's verbs use. Returns the record."""
    object.__setattr__(record, "_bound", home)
    return record


def home_of(record: Bound) -> Any:
    """The reference that a record's verbs use. Raises RuntimeError for an unpickled record."""
    return record._home


def named(task: TaskLike) -> tuple[int, int | None]:
    """A task's id, and its token if this client took it. Raises TaskIdRequired."""
    if isinstance(task, TaskRecord):
        return task.id, task.token
    return arguments.task_id(task), None


def without_result(task: AnyTask, job: str) -> AnyTask:
    """Mark the task as one of this job, which keeps no result. Returns the task."""
    object.__setattr__(task, "_unkept", job)
    return task


def check_result(task: TaskLike) -> None:
    """Raises ResultUnknown: no result of this task is kept, however it ends."""
    if isinstance(task, TaskRecord) and (job := getattr(task, "_unkept", None)) is not None:
        raise ResultUnknown(f"job {job} keeps no results: give it keep_result, or options(keep_result=...)", task.id)


def settled(task: AnyTask, state: str, *, priority: int | None = None, error: str | None = None) -> AnyTask:
    """The task after a verb that ended its take. `priority` and `error` are the values that the verb set; None: none.

    An error counts as an attempt where the verb presented a token, which is how a task ends its own take.
    """
    changed = replace(
        task,
        state=state,
        priority=task.priority if priority is None else priority,
        attempts=task.attempts + (error is not None and task.token is not None),
        error=task.error if error is None else error_text(error),
        run_at=None,
        buried_at=None,
        deadline=None,
        holder=None,
        token=None,
    )
    return bind(changed, task._home)


def touched(task: AnyTask, state: str, deadline: datetime | None) -> AnyTask:
    """The task with more time."""
    return bind(replace(task, state=state, deadline=deadline), task._home)


def moved(task: AnyTask, new_id: int, state: str) -> AnyTask:
    """The task under its new id."""
    return settled(bind(replace(task, id=new_id), task._home), state)


def from_placed(
    kind: type[AnyTask], placed: Placed, queue: str, value: Any, options: PutOptions, shell: Any
) -> AnyTask:
    """The task after a put: the new one, or the one that already had its key. Raises QueueFull."""
    ignored = placed.existed and options.if_exists != "replace"
    task = kind(
        id=insist(placed, queue),
        queue=queue,
        state=placed.state,
        data=(None if ignored else value) if placed.kept is None else data.shown(placed.kept),
        priority=placed.priority if ignored else options.priority,
        attempts=placed.attempts or 0,
        run_at=options.run_at if placed.state == "delayed" and not ignored else None,
        deadline=placed.deadline,
        lane=placed.lane if ignored else options.lane,
        key=options.key,
        existed=placed.existed,
    )
    return bind(task, shell)


def from_taken(kind: type[AnyTask], row: Taken, shell: Any) -> AnyTask:
    """A task that was just taken."""
    task = kind(
        id=row.id,
        queue=row.queue,
        state=TAKEN,
        data=data.decode(row.data),
        priority=row.priority,
        attempts=row.attempts,
        redelivered=row.redelivered,
        deadline=row.deadline,
        token=row.token,
    )
    return bind(task, shell)


def from_popped(kind: type[AnyTask], row: Popped | Taken, queue: str, shell: Any) -> AnyTask:
    """A task that was taken and acked in one step."""
    task = kind(
        id=row.id, queue=queue, state=DONE, data=data.shown(row.data), priority=row.priority, attempts=row.attempts
    )
    return bind(task, shell)


def from_found(kind: type[AnyTask], row: Found, shell: Any = None) -> AnyTask:
    """A task as the view pgqueue.tasks shows it."""
    value = None if row.data is None else data.shown(row.data)
    return bind(kind(**{**row._asdict(), "data": value}), shell)
