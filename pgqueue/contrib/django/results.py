"""The framework's TaskResult of a task, and the JSON in which pgqueue keeps it.

    part         place                                   content
    the order    the task's data, while its row exists   the function, its arguments, the time of the enqueue
    the story    a status by key, once an attempt fails  the times, the workers and the errors of the attempts
    the result   the task's result, once it succeeds     the order, the story, and the function's return value

A task that succeeds at once, as nearly all do, never has a story of its own. A failed task is buried, so its row keeps
the order until it is deleted. If a worker dies in an attempt, only the row's counter shows the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from traceback import format_exception
from typing import Any, NamedTuple

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from ..._calls.call import Call
from ..._values import data
from .framework import BaseTaskBackend, Task, TaskError, TaskResult, TaskResultStatus

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL

LIVING = {"ready": READY, "delayed": READY, "blocked": READY, "taken": RUNNING}
LOST = "lost"  # stands for the id of a worker that died
ERRORS = 20  # the last errors that are kept
TRACEBACK = 20_000  # the last characters that are kept of each

Json = Mapping[str, Any]


# --- kept as JSON


def order(task: Task[..., Any], args: list[Any], kwargs: dict[str, Any], now: datetime) -> dict[str, Any]:
    """The data of a put. Only `task` is required, so that SQL can put a task without the other keys."""
    return {
        "task": task.module_path,
        "args": args,
        "kwargs": kwargs,
        "priority": task.priority,
        "run_after": _text(task.run_after),
        "enqueued_at": _text(now),
    }


def story(result: TaskResult[..., Any]) -> dict[str, Any]:
    return {
        "started_at": _text(result.started_at),
        "last_attempted_at": _text(result.last_attempted_at),
        "finished_at": _text(result.finished_at),
        "worker_ids": result.worker_ids,
        "errors": [[error.exception_class_path, error.traceback] for error in result.errors[-ERRORS:]],
    }


def story_key(id: int) -> str:
    return f"django.tasks:{id}"


def error_of(error: BaseException) -> TaskError:
    """An error in the form in which it is kept; jsonb can hold it with any message."""
    kind = type(error)
    text = "".join(format_exception(error)).replace("\0", "\\0").encode(errors="backslashreplace").decode()
    return TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=text[-TRACEBACK:])


# --- looking


class Found(NamedTuple):
    """A task's row, its result and its story; None if there is none. The last three columns are JSON text."""

    id: int
    state: str | None
    queue: str | None
    attempts: int | None
    error: str | None
    taken_at: datetime | None
    holder: str | None
    outcome: str | None
    ended_in: str | None
    failures: int | None
    failure: str | None
    finished_at: datetime | None
    order: str | None
    result: str | None
    story: str | None


def look(id: int) -> Call[Found]:
    """Look in one statement, hence one snapshot: a task that finishes between two statements would be in neither."""
    return Call(
        "SELECT asked.id, t.state, t.queue, t.attempts, t.error, t.taken_at, t.holder,"
        " r.state, r.queue, r.attempts, r.error, r.finished_at, t.data::pg_catalog.text, r.result::pg_catalog.text,"
        " s.value::pg_catalog.text FROM (SELECT %s::bigint) asked (id)"
        " LEFT JOIN pgqueue.tasks t ON t.id OPERATOR(pg_catalog.=) asked.id"
        " LEFT JOIN pgqueue.results r ON r.id OPERATOR(pg_catalog.=) asked.id"
        " LEFT JOIN pgqueue.statuses s ON s.key OPERATOR(pg_catalog.=) %s::pg_catalog.text",
        (id, story_key(id)),
        lambda rows: Found(*rows[0]),
    )


def told(backend: BaseTaskBackend, found: Found) -> TaskResult[..., Any] | None:
    """The result of a task; None if the task is unknown, or belongs to another backend."""
    ended = found.outcome is not None and (found.state not in LIVING or found.queue != found.ended_in)
    queue = found.ended_in if ended else found.queue
    if queue is None or (backend.queues and queue not in backend.queues):
        return None
    if ended and found.outcome == "done":
        return _succeeded(backend, found, queue)
    if not is_order(asked := _decoded(found.order)):
        return None
    past = _decoded(found.story) or {}
    if ended or found.state == "buried":
        return _failed(rebuilt(backend, found.id, queue, asked, past, FAILED), found, past)
    if (status := LIVING.get(found.state or "")) is None:  # done, and its result has expired
        return None
    return _living(rebuilt(backend, found.id, queue, asked, past, status), found)


def is_order(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("task"), str)
        and isinstance(value.get("args", []), list)
        and isinstance(value.get("kwargs", {}), dict)
    )


def rebuilt(
    backend: BaseTaskBackend, id: int, queue: str, asked: Json, past: Json, status: TaskResultStatus
) -> TaskResult[..., Any]:
    """A TaskResult from the order and the story."""
    return TaskResult(
        task=task_of(asked, queue, backend),
        id=str(id),
        status=status,
        enqueued_at=_time(asked.get("enqueued_at")),
        started_at=_time(past.get("started_at")),
        finished_at=_time(past.get("finished_at")),
        last_attempted_at=_time(past.get("last_attempted_at")),
        args=asked.get("args", []),
        kwargs=asked.get("kwargs", {}),
        backend=backend.alias,
        errors=[TaskError(exception_class_path=path, traceback=text) for path, text in past.get("errors", ())],
        worker_ids=list(past.get("worker_ids", ())),
    )


def task_of(asked: Json, queue: str, backend: BaseTaskBackend) -> Task[..., Any]:
    """The task of an order, with its options at that time. If it cannot be found, a task that fails with the reason."""
    path = asked["task"]
    try:
        task = import_string(path)
        if not isinstance(task, Task):
            raise TypeError(f"{path} is not a task but a {type(task).__name__}: is @task missing?")
        priority, run_after = asked.get("priority", 0), _time(asked.get("run_after"))
        return task.using(backend=backend.alias, queue_name=queue, priority=priority, run_after=run_after)
    except Exception as error:
        return _missing(path, error, queue, backend)


def begin(result: TaskResult[..., Any], attempts: int, worker: str) -> None:
    """Record that a worker attempts the task, after `attempts` attempts that failed or were lost."""
    now = timezone.now()
    _count(result, attempts)
    result.worker_ids.append(worker)
    change(result, status=RUNNING, started_at=result.started_at or now, last_attempted_at=now, finished_at=None)


def change(result: TaskResult[..., Any], **attributes: Any) -> None:
    """Change a TaskResult, which is frozen for its users but not for its backend."""
    for name, value in attributes.items():
        object.__setattr__(result, name, value)


def _succeeded(backend: BaseTaskBackend, found: Found, queue: str) -> TaskResult[..., Any] | None:
    kept = _decoded(found.result)
    if not isinstance(kept, dict) or not is_order(kept.get("order")):
        return None
    result = rebuilt(backend, found.id, queue, kept["order"], kept["story"], SUCCESSFUL)
    change(result, _return_value=kept["return_value"])
    return result


def _failed(result: TaskResult[..., Any], found: Found, past: Json) -> TaskResult[..., Any]:
    _count(result, found.failures or found.attempts or 0)
    if not past.get("finished_at"):  # no error of its own: pgqueue or a person buried it
        reason = found.failure or found.error or "it was buried"
        result.errors.append(TaskError(exception_class_path="pgqueue.TaskFailed", traceback=reason))
        change(result, finished_at=_zoned(found.finished_at))
    return result


def _living(result: TaskResult[..., Any], found: Found) -> TaskResult[..., Any]:
    _count(result, found.attempts or 0)
    change(result, finished_at=None)  # it was kicked after its failure
    if result.status == RUNNING:
        result.worker_ids.append(found.holder or LOST)
        taken_at = _zoned(found.taken_at)
        change(result, started_at=result.started_at or taken_at, last_attempted_at=taken_at)
    return result


def _count(result: TaskResult[..., Any], attempts: int) -> None:
    result.worker_ids.extend([LOST] * (attempts - len(result.worker_ids)))


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
