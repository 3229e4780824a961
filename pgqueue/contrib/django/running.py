"""The tasks of django.tasks as jobs of pgqueue: a task's job has the name of its path, for example `shop.tasks.send`.

So a worker runs them as it runs any job, with time limits, middleware, statistics by name and a record of each failed
attempt. A sync task runs in a thread, an async one in the worker's loop.

The framework has no retries, so a task fails with its first error unless the backend's options allow more attempts. A
worker that dies is no error of the task, which then runs again (Retry.takes).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.utils import timezone

from ... import Client
from ..._calls.attempts import attempts
from ...jobs.job import Job
from ...jobs.middleware import Running
from ...jobs.options import Settings
from . import clients, results
from .framework import (
    BaseTaskBackend,
    Task,
    TaskContext,
    TaskResult,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from .jobs import Home
from .options import Options


class _Present(NamedTuple):
    """The run of a task, to its job: the result so far, the arguments of the job, and the check of its outcome."""

    result: TaskResult[..., Any]
    order: Mapping[str, Any]
    encode: Callable[[Any], str]


_present: ContextVar[_Present] = ContextVar("pgqueue_django_task")


class Tasks(Mapping[str, Job[..., Any]]):
    """The jobs of a backend, by the path of their task. A path is imported when it is asked for.

    Attributes:
        backend: the backend.
        database: the alias of its database.
        isolated: whether they run in child processes.
        retry: of all of them. A worker asks for it when it begins, and has imported none of the tasks then.
    """

    def __init__(self, backend: BaseTaskBackend, options: Options) -> None:
        self.backend = backend
        self.isolated = options.isolation == "process"
        self.database = options.database
        self.retry = options.retry
        self._home = Home(options.database)
        self._settings = Settings(
            retry=options.retry,
            keep_result=options.keep_results,
            timeout=options.timeout,
            soft_timeout=options.soft_timeout,
            isolation=options.isolation,
            middleware=[_Telling(backend, options.database)],
        )
        self._known: dict[str, Job[..., Any]] = {}

    def __getitem__(self, path: str) -> Job[..., Any]:
        if (known := self._known.get(path)) is not None:
            return known
        try:
            return self.job(results.imported(path))
        except Exception:  # then the run of the job raises the same
            return self._job(path, _run)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def job(self, task: Task[..., Any]) -> Job[..., Any]:
        """The job of a task."""
        path = task.module_path
        if (known := self._known.get(path)) is None:
            known = self._known[path] = self._job(path, _run_async if iscoroutinefunction(task.func) else _run)
        return known

    def _job(self, path: str, function: Any) -> Job[..., Any]:
        job: Job[..., Any] = Job(self._home, function, path, self._settings, plain=True)
        job.finder = self._find
        return job

    def _find(self) -> tuple[str, dict[str, Any]]:
        """How a child finds the job of the present run: by in_child()."""
        present = _present.get()
        given = {"backend": self.backend.alias, "told": results.tell(present.result, present.order)}
        return f"{__name__}:in_child", given


def in_child(backend: str, told: dict[str, Any]) -> Job[..., Any]:
    """The job of a run in a child process.

    Args:
        backend: its alias.
        told: the TaskResult of the run; see results.tell().
    """
    found_backend: Any = task_backends[backend]
    tasks: Tasks = found_backend.tasks
    result = results.hear(tasks.backend, told)
    present = _Present(result, told["asked"]["args"], clients.client(tasks.database).shell.encode)
    known = tasks[result.task.module_path]
    found = known.at(known._home)

    def run(**order: Any) -> Any:
        """In the context of the call, which for a coroutine is that of its loop's task."""
        _present.set(present)
        return known.function(**order)

    async def arun(**order: Any) -> Any:
        _present.set(present)
        return await known.function(**order)

    found.function = arun if known.is_async else run
    return found


def _run(
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    priority: int = 0,
    run_after: str | None = None,
    enqueued_at: str | None = None,
) -> dict[str, Any]:
    present = _present.get()
    task = present.result.task
    return _outcome(present, task.call(*_context(present.result), *(args or ()), **(kwargs or {})))


async def _run_async(
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    priority: int = 0,
    run_after: str | None = None,
    enqueued_at: str | None = None,
) -> dict[str, Any]:
    present = _present.get()
    task = present.result.task
    return _outcome(present, await task.acall(*_context(present.result), *(args or ()), **(kwargs or {})))


def _context(result: TaskResult[..., Any]) -> list[TaskContext[..., Any]]:
    return [TaskContext(task_result=result)] if result.task.takes_context else []


def _outcome(present: _Present, value: Any) -> dict[str, Any]:
    """The record of a task that succeeded. Raises BadData if it cannot be kept; then the task fails."""
    kept = results.outcome(present.result, present.order, normalize_json(value))
    present.encode(kept)
    return kept


class _Telling:
    """The middleware of each task: makes the TaskResult of its run, and sends the framework's signals."""

    def __init__(self, backend: BaseTaskBackend, database: str) -> None:
        self._backend = backend
        self._sender = type(backend)
        self._database = database

    @contextmanager
    def run(self, run: Running) -> Iterator[None]:
        result = self._begun(run)
        task_started.send_robust(sender=self._sender, task_result=result)
        token = _present.set(_Present(result, run.args, self._client.shell.encode))
        try:
            yield
        except BaseException as error:
            if _has_failed(run, result, error):
                task_finished.send_robust(sender=self._sender, task_result=result)
            raise
        finally:
            _present.reset(token)
        if _has_succeeded(run, result):
            task_finished.send_robust(sender=self._sender, task_result=result)

    @asynccontextmanager
    async def arun(self, run: Running) -> AsyncIterator[None]:
        result = await sync_to_async(self._begun)(run) if run.attempt > 1 else self._begun(run)
        await task_started.asend_robust(sender=self._sender, task_result=result)
        token = _present.set(_Present(result, run.args, self._client.shell.encode))
        try:
            yield
        except BaseException as error:
            if _has_failed(run, result, error):
                await task_finished.asend_robust(sender=self._sender, task_result=result)
            raise
        finally:
            _present.reset(token)
        if _has_succeeded(run, result):
            await task_finished.asend_robust(sender=self._sender, task_result=result)

    @property
    def _client(self) -> Client:
        return clients.client(self._database)

    def _begun(self, run: Running) -> TaskResult[..., Any]:
        shell, asked = self._client.shell, {"job": run.job, "args": run.args}
        past = shell.run(attempts(run.id)) if run.attempt > 1 else []
        result = results.rebuilt(self._backend, run.id, run.queue, asked, past, results.RUNNING)
        results.begin(result, run.attempt - 1, shell.core.label)
        return result


def _has_failed(run: Running, result: TaskResult[..., Any], error: BaseException) -> bool:
    """Whether the task fails by this error, and is not tried again."""
    if not run.buries(error):
        return False
    result.errors.append(results.error_now(error))
    results.change(result, status=results.FAILED, finished_at=timezone.now())
    return True


def _has_succeeded(run: Running, result: TaskResult[..., Any]) -> bool:
    """Whether the task succeeds. One that was given up, for example at its time limit, has ended before."""
    if run.given_up():
        return False
    value = run.result["return_value"]
    results.change(result, status=results.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
    return True
