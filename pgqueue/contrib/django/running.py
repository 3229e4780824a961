"""The handler that runs the tasks of a backend in a pgqueue worker.

A sync function runs in one of the worker's threads. So does a coroutine function, in an event loop for this call, as in
the framework's Task.call(). In both cases the ORM finds the thread's own connection.

The framework has no retries, so a task fails with its first error unless the backend's options allow more attempts. The
backend's policy decides, not the worker's: hence this module settles a failure itself. The worker acks a success, in
batches. Only KeyboardInterrupt is left to the worker.
"""

from __future__ import annotations

import logging
from typing import Any

from django.utils import timezone

from ... import BadData, Task
from ..._records.task import home_of
from ..._sync.statuses import Statuses
from ...worker.handlers import describe
from . import results
from .framework import BaseTaskBackend, TaskContext, TaskResult, normalize_json, task_finished, task_started
from .options import Options

log = logging.getLogger("pgqueue")


class Runner:
    """The handler of a queue of `backend`. Its return value is kept as the task's result."""

    def __init__(self, backend: BaseTaskBackend, options: Options) -> None:
        self.backend = backend
        self.options = options

    def __call__(self, data: Any, task: Task) -> dict[str, Any] | None:
        if not results.is_order(data):
            self._refuse(data, task)
            return None
        result = self._begun(data, task)
        task_started.send_robust(sender=type(self.backend), task_result=result)
        try:
            kept = self._kept(data, task, result, normalize_json(_call(result)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._failed(task, result, error)
            return None
        task_finished.send_robust(sender=type(self.backend), task_result=result)
        return kept

    def _begun(self, data: dict[str, Any], task: Task) -> TaskResult[..., Any]:
        shell = home_of(task)
        past = Statuses(shell).get(results.story_key(task.id)) if task.attempts else None
        result = results.rebuilt(self.backend, task.id, task.queue, data, past or {}, results.RUNNING)
        results.begin(result, task.attempts, shell.core.label)
        return result

    def _kept(self, data: dict[str, Any], task: Task, result: TaskResult[..., Any], value: Any) -> dict[str, Any]:
        """The result of a task that succeeded. Raises BadData if it cannot be kept; then the task fails."""
        now = timezone.now()
        kept = {"order": data, "story": results.story(result) | {"finished_at": now.isoformat()}, "return_value": value}
        home_of(task).encode(kept)
        results.change(result, status=results.SUCCESSFUL, finished_at=now, _return_value=value)
        return kept

    def _failed(self, task: Task, result: TaskResult[..., Any], error: BaseException) -> None:
        options, attempts = self.options, task.attempts + 1
        result.errors.append(results.error_of(error))
        if options.policy.exhausted(attempts):
            results.change(result, status=results.FAILED, finished_at=timezone.now())
            self._tell(task, result, options.keep_results)
            task.fail(describe(error), keep=options.keep_results)
            task_finished.send_robust(sender=type(self.backend), task_result=result)
        else:
            delay = options.policy.delay(attempts)
            results.change(result, status=results.READY)
            self._tell(task, result, delay + options.keep_results)
            task.release(delay, error=describe(error), hold_lane=True)
            log.warning("task %s of %s failed, again in %.1f s: %s", task.id, task.queue, delay, describe(error))

    def _tell(self, task: Task, result: TaskResult[..., Any], keep: float) -> None:
        """Store the story before the task is settled, so that a failed task already shows its errors."""
        try:
            Statuses(home_of(task)).set(results.story_key(task.id), results.story(result), ttl=keep)
        except BadData as error:
            log.warning("the errors of task %s of %s cannot be kept: %s", task.id, task.queue, error)

    def _refuse(self, data: object, task: Task) -> None:
        reason = f'its data is not a task of django.tasks, such as {{"task": "app.tasks.send"}}, but {str(data)[:200]}'
        log.error("task %s of %s is buried: %s", task.id, task.queue, reason)
        task.fail(reason, keep=self.options.keep_results)


def _call(result: TaskResult[..., Any]) -> Any:
    context = [TaskContext(task_result=result)] if result.task.takes_context else []
    return result.task.call(*context, *result.args, **result.kwargs)
