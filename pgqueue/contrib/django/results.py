"""The framework's TaskResult of a task, from the records that pgqueue keeps.

    part          place                              content
    the order     the task's data, the arguments of  the function's arguments, the time of the enqueue
                  its job
    the attempts  the view pgqueue.attempts          times, worker and traceback of each that failed or was lost
    the outcome   the task's result, if it succeeds  the order, and of the last attempt time, worker and return value

A failed task is buried, so its row keeps the order until it is deleted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from traceback import format_exception
from typing import Any, NamedTuple

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from ..._calls.attempts import Attempt
from ..._calls.call import Call, query
from ..._values import data
from .framework import BaseTaskBackend, Task, TaskError, TaskResult, TaskResultStatus

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL

LIVING = {
    "ready": READY,
    "delayed": READY,
    "blocked": READY,
    "waiting": READY,
    "taken": RUNNING,
    "cancelling": RUNNING,
}
LOST = "lost"  # in place of the worker of an attempt that is not kept any more
WITHOUT_TRACEBACK = {
    "timeout": "builtins.TimeoutError",
    "cancelled": "pgqueue.TaskCancelled",
    "failed": "pgqueue.TaskFailed",
}
RAISED = re.compile(r"(?:  \| )?([A-Za-z_][\w.<>]*)(?::|$)")  # the line of a traceback that names the exception

Json = Mapping[str, Any]


# --- kept as JSON


def order(task: Task[..., Any], args: list[Any], kwargs: dict[str, Any], now: datetime) -> dict[str, Any]:
    """The arguments of the job. None is required, so that SQL can put a task with `args` alone."""
    return {
        "args": args,
        "kwargs": kwargs,
        "priority": task.priority,
        "run_after": _text(task.run_after),
        "enqueued_at": _text(now),
    }


def outcome(result: TaskResult[..., Any], asked: Json, value: Any) -> dict[str, Any]:
    """The record of a task that succeeds."""
    return {
        "job": result.task.module_path,
        "args": dict(asked),
        "started_at": _text(result.started_at),
        "last_attempted_at": _text(result.last_attempted_at),
        "worker": result.worker_ids[-1],
        "return_value": value,
    }


# --- told to a child process


def tell(result: TaskResult[..., Any], asked: Json) -> dict[str, Any]:
    """The TaskResult of a run as JSON. `asked`: the arguments of the job."""
    return {
        "id": int(result.id),
        "queue": result.task.queue_name,
        "asked": {"job": result.task.module_path, "args": dict(asked)},
        "started_at": _text(result.started_at),
        "last_attempted_at": _text(result.last_attempted_at),
        "worker_ids": result.worker_ids,
        "errors": [[error.exception_class_path, error.traceback] for error in result.errors],
    }


def hear(backend: BaseTaskBackend, told: Json) -> TaskResult[..., Any]:
    """The same TaskResult in the child."""
    result = rebuilt(backend, told["id"], told["queue"], told["asked"], [], RUNNING)
    times = {name: _time(told[name]) for name in ("started_at", "last_attempted_at")}
    change(result, errors=[_task_error(*error) for error in told["errors"]], worker_ids=told["worker_ids"], **times)
    return result


# --- errors


def error_now(error: BaseException) -> TaskError:
    """An error that was raised just now."""
    kind = type(error)
    return _task_error(f"{kind.__module__}.{kind.__qualname__}", "".join(format_exception(error)))


def errors(attempts: Sequence[Attempt]) -> list[TaskError]:
    """The errors of the attempts; an attempt whose worker died has none."""
    return [_error(attempt) for attempt in attempts if attempt.state in WITHOUT_TRACEBACK]


def _error(attempt: Attempt) -> TaskError:
    if attempt.traceback is None:
        return _task_error(WITHOUT_TRACEBACK[attempt.state], attempt.error or "")
    return _task_error(_class_path(attempt.traceback), attempt.traceback)


def _task_error(path: str, traceback: str) -> TaskError:
    return TaskError(exception_class_path=path, traceback=traceback)


def _class_path(text: str) -> str:
    """The path of the exception's class: it follows the last frame."""
    lines = text.splitlines()
    frames = [number for number, line in enumerate(lines) if line.lstrip(" |").startswith("File ")]
    for line in lines[frames[-1] + 1 if frames else 0 :]:
        if found := RAISED.match(line):
            return found[1] if "." in found[1] else f"builtins.{found[1]}"
    return "builtins.Exception"


# --- looking


class Found(NamedTuple):
    """A task's row, its result and its attempts; None if there is none. The last three columns are JSON text."""

    id: int
    state: str | None
    queue: str | None
    attempts: int | None
    error: str | None
    taken_at: datetime | None
    buried_at: datetime | None
    holder: str | None
    outcome: str | None
    ended_in: str | None
    failures: int | None
    failure: str | None
    finished_at: datetime | None
    data: str | None
    result: str | None
    past: str | None


def look(id: int) -> Call[Found]:
    """Look in one statement, hence one snapshot: a task that finishes between two statements would be in neither."""
    return query(
        "SELECT asked.id, t.state, t.queue, t.attempts, t.error, t.taken_at, t.buried_at, t.holder,"
        " r.state, r.queue, r.attempts, r.error, r.finished_at, t.data::pg_catalog.text, r.result::pg_catalog.text,"
        " (SELECT pg_catalog.jsonb_agg(pg_catalog.to_jsonb(a) ORDER BY a.number)::pg_catalog.text"
        " FROM pgqueue.attempts a WHERE a.id OPERATOR(pg_catalog.=) asked.id)"
        " FROM (SELECT %s::bigint) asked (id)"
        " LEFT JOIN pgqueue.tasks t ON t.id OPERATOR(pg_catalog.=) asked.id"
        " LEFT JOIN pgqueue.results r ON r.id OPERATOR(pg_catalog.=) asked.id",
        (id,),
        lambda rows: Found(*rows[0]),
    )


def told(backend: BaseTaskBackend, found: Found) -> TaskResult[..., Any] | None:
    """The result of a task; None if the task is unknown, or belongs to another backend."""
    ended = found.outcome is not None and (found.state not in LIVING or found.queue != found.ended_in)
    queue = found.ended_in if ended else found.queue
    if queue is None or (backend.queues and queue not in backend.queues):
        return None
    past = [_attempt(one) for one in _decoded(found.past) or ()]
    if ended and found.outcome == "done":
        return _succeeded(backend, found, queue, past)
    if not is_order(asked := _decoded(found.data)):
        return None
    if ended or found.state == "buried":
        return _failed(rebuilt(backend, found.id, queue, asked, past, FAILED), found, past)
    if (status := LIVING.get(found.state or "")) is None:  # done, and its result has expired
        return None
    return _living(rebuilt(backend, found.id, queue, asked, past, status), found)


def is_order(value: object) -> bool:
    """Whether the data of a task is that of a job whose arguments are an order."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("job"), str)
        and isinstance(args := value.get("args", {}), dict)
        and isinstance(args.get("args", []), list)
        and isinstance(args.get("kwargs", {}), dict)
    )


def rebuilt(
    backend: BaseTaskBackend, id: int, queue: str, asked: Json, past: Sequence[Attempt], status: TaskResultStatus
) -> TaskResult[..., Any]:
    """A TaskResult from the job's data and the attempts so far."""
    args = asked.get("args", {})
    return TaskResult(
        task=task_of(asked, queue, backend),
        id=str(id),
        status=status,
        enqueued_at=_time(args.get("enqueued_at")),
        started_at=_zoned(past[0].began_at) if past else None,
        finished_at=None,
        last_attempted_at=_zoned(past[-1].began_at) if past else None,
        args=args.get("args", []),
        kwargs=args.get("kwargs", {}),
        backend=backend.alias,
        errors=errors(past),
        worker_ids=[attempt.worker or LOST for attempt in past],
    )


def task_of(asked: Json, queue: str, backend: BaseTaskBackend) -> Task[..., Any]:
    """The task of a job, with its options at that time. If it cannot be found, a task that fails with the reason."""
    path, args = asked["job"], asked.get("args", {})
    try:
        task, priority, run_after = imported(path), args.get("priority", 0), _time(args.get("run_after"))
        return task.using(backend=backend.alias, queue_name=queue, priority=priority, run_after=run_after)
    except Exception as error:
        return _missing(path, error, queue, backend)


def imported(path: str) -> Task[..., Any]:
    """The task at this path. Raises ImportError or TypeError."""
    task = import_string(path)
    if not isinstance(task, Task):
        raise TypeError(f"{path} is not a task but a {type(task).__name__}: is @task missing?")
    return task


def begin(result: TaskResult[..., Any], attempts: int, worker: str) -> None:
    """Record that a worker attempts the task, after `attempts` attempts that failed or were lost."""
    now = timezone.now()
    _count(result, attempts)
    result.worker_ids.append(worker)
    change(result, started_at=result.started_at or now, last_attempted_at=now)


def change(result: TaskResult[..., Any], **attributes: Any) -> None:
    """Change a TaskResult, which is frozen for its users but not for its backend."""
    for name, value in attributes.items():
        object.__setattr__(result, name, value)


def _succeeded(
    backend: BaseTaskBackend, found: Found, queue: str, past: Sequence[Attempt]
) -> TaskResult[..., Any] | None:
    kept = _decoded(found.result)
    if not is_order(kept) or "return_value" not in kept:
        return None
    result = rebuilt(backend, found.id, queue, kept, past, SUCCESSFUL)
    _count(result, found.failures or 0)
    result.worker_ids.append(kept.get("worker") or LOST)
    change(
        result,
        started_at=_time(kept.get("started_at")),
        last_attempted_at=_time(kept.get("last_attempted_at")),
        finished_at=_zoned(found.finished_at),
        _return_value=kept["return_value"],
    )
    return result


def _failed(result: TaskResult[..., Any], found: Found, past: Sequence[Attempt]) -> TaskResult[..., Any]:
    _count(result, found.failures or found.attempts or 0)
    reason = found.failure or found.error or "it was buried"
    if past and past[-1].error == reason:
        change(result, finished_at=_zoned(past[-1].ended_at))
    else:  # it was buried by hand, or its workers died too often
        result.errors.append(_task_error("pgqueue.TaskFailed", reason))
        change(result, finished_at=_zoned(found.finished_at or found.buried_at))
    return result


def _living(result: TaskResult[..., Any], found: Found) -> TaskResult[..., Any]:
    _count(result, found.attempts or 0)
    if result.status == RUNNING:
        result.worker_ids.append(found.holder or LOST)
        taken_at = _zoned(found.taken_at)
        change(result, started_at=result.started_at or taken_at, last_attempted_at=taken_at)
    return result


def _count(result: TaskResult[..., Any], attempts: int) -> None:
    """Pad the result's attempts to this number: only the last ten are kept."""
    result.worker_ids[:0] = [LOST] * (attempts - len(result.worker_ids))


def _missing(path: str, error: Exception, queue: str, backend: BaseTaskBackend) -> Task[..., Any]:
    def missing(*args: Any, **kwargs: Any) -> None:
        raise error

    missing.__module__, _, missing.__qualname__ = path.rpartition(".")
    missing.__name__ = missing.__qualname__
    # Django 6.0 has no defaults for two of these.
    return backend.task_class(func=missing, backend=backend.alias, queue_name=queue, priority=0, run_after=None)


def _text(time: datetime | None) -> str | None:
    return time.isoformat() if time else None


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _zoned(time: datetime | None) -> datetime | None:
    """A time of the database in the form of timezone.now()."""
    return time if time is None or settings.USE_TZ else timezone.make_naive(time)


def _decoded(text: str | None) -> Any:
    return None if text is None else data.decode(text)


def _attempt(row: Json) -> Attempt:
    times = {name: _time(row[name]) for name in ("began_at", "ended_at")}
    return Attempt(**{name: value for name, value in row.items() if name not in ("id", "queue")} | times)
