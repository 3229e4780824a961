"""A backend for Django's tasks framework: its tasks are in pgqueue's queues, in the project's database.

    TASKS = {
        "default": {
            "BACKEND": "pgqueue.contrib.django.PgqueueBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"keep_results": 3600},
        }
    }

An enqueue is one statement on Django's own connection: inside atomic() it commits and rolls back with the rest. The
worker of `manage.py pgqueue worker` runs the tasks; register() gives it their jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, cached_property, partial
from typing import Any, ParamSpec, TypeVar

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils import timezone

from ... import Client
from ..._engine import borrowed
from ..._values import arguments
from ..._values.logs import log
from ...errors import TaskIdRequired
from . import clients, results
from .framework import (
    BaseTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_backends,
    task_enqueued,
)
from .isolated import child_setup
from .options import Options
from .running import Tasks
from .tidy import tidy_jobs

P = ParamSpec("P")
R = TypeVar("R")


class PgqueueBackend(BaseTaskBackend):
    """The backend for TASKS. Each thread has an instance of its own for each alias, as in the framework."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @cached_property
    def settings(self) -> Options:
        """The checked OPTIONS. Raises ImproperlyConfigured; check() reports the same error."""
        try:
            return Options.of(self.options)
        except ValueError as error:
            raise ImproperlyConfigured(f"OPTIONS of TASKS[{self.alias!r}]: {error}") from None

    @cached_property
    def tasks(self) -> Tasks:
        """The jobs of the tasks. Raises as settings."""
        return Tasks(self, self.settings)

    @property
    def database(self) -> Any:
        """The alias of its database, even if the other options are not valid."""
        return self.options.get("database", "default") if isinstance(self.options, dict) else None

    def enqueue(self, task: Task[P, R], args: Any, kwargs: Any) -> TaskResult[P, R]:
        """Put a task, in the transaction that Django's connection is in.

        Raises:
            InvalidTask: the task cannot be run by this backend.
            TypeError: an argument is of a type that JSON does not have.
            ValueError: bytes are not UTF-8.
            BadData: JSON or jsonb cannot hold an argument, or they are over max_data_size.
            QueueFull: the queue is at its capacity.
            ImproperlyConfigured: the backend's options are not valid.
        """
        self.validate_task(task)
        args, kwargs, now = normalize_json(args), normalize_json(kwargs), timezone.now()
        run_at = None if task.run_after is None else task.run_after.astimezone()  # without USE_TZ it is local
        job = self.tasks.job(task).options(queue=task.queue_name, priority=-task.priority, run_at=run_at)
        put = job.put(**results.order(task, args, kwargs, now))
        result = TaskResult(
            task=task,
            id=str(put.id),
            status=results.READY,
            enqueued_at=now,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        """The present result of a task, by its id.

        Raises:
            TaskResultDoesNotExist: the task is unknown, or its result has expired, or it belongs to another backend.
        """
        try:
            id = arguments.task_id(result_id)
        except TaskIdRequired:
            raise TaskResultDoesNotExist(result_id) from None
        found = borrowed.run(clients.wrapper(self.settings.database), results.look(id))
        result = results.told(self, found)
        if result is None:
            raise TaskResultDoesNotExist(result_id)
        return result

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        return list(self._problems())

    def _problems(self) -> Iterator[checks.CheckMessage]:
        where = f"TASKS[{self.alias!r}]"
        if not self.queues:
            hint = "Name the queues: a worker serves these, and others only if it is told to by --queue."
            yield checks.Warning(f"QUEUES of {where} is empty.", hint=hint, id="pgqueue.W101")
        for queue in self.queues:
            try:
                arguments.queue_name(queue)
            except ValueError as error:
                yield checks.Error(f"QUEUES of {where}: {error}", id="pgqueue.E102")
        try:
            database = self.settings.database
        except ImproperlyConfigured as error:
            yield checks.Error(str(error), id="pgqueue.E101")
            return
        if database not in connections:
            yield checks.Error(f"{where} uses the database {database!r}, which DATABASES lacks.", id="pgqueue.E103")
        elif connections[database].vendor != "postgresql":
            yield checks.Error(f"{where} uses the database {database!r}, which is not PostgreSQL.", id="pgqueue.E104")
        if not apps.is_installed("pgqueue.contrib.django"):
            yield checks.Error(f"{where} needs 'pgqueue.contrib.django' in INSTALLED_APPS.", id="pgqueue.E105")
        for other in backends_of(database):
            if other.alias > self.alias and (shared := sorted(self.queues & other.queues)):
                problem = f"{where} and TASKS[{other.alias!r}] share the queue {shared[0]!r} of {database!r}."
                hint = "Give each its own queues in QUEUES, or another database in OPTIONS."
                yield checks.Error(problem, hint=hint, id="pgqueue.E106")


def register(client: Client, using: str = "default", queues: Sequence[str] = ()) -> None:
    """Let workers of a client run the tasks of every PgqueueBackend of a database, in the backends' queues.

    Args:
        client: the client.
        using: the alias of the client's database.
        queues: more queues, whose tasks are those of a backend without QUEUES, if there is one.

    Raises:
        ImproperlyConfigured: such a queue has a handler, or two backends, or its backend's options are not valid.
    """
    served: dict[str, PgqueueBackend] = {}
    backends = backends_of(using)
    named = {queue for backend in backends for queue in backend.queues} | {*client.handlers, *client.batch_handlers}
    others = {queue for queue in queues if queue not in named}
    for backend in backends:
        for queue in sorted(backend.queues or others):
            if queue in client.handlers or queue in client.batch_handlers:
                raise ImproperlyConfigured(f"the queue {queue!r} of TASKS[{backend.alias!r}] has a handler already")
            if (other := served.setdefault(queue, backend)) is not backend:
                both = f"TASKS[{other.alias!r}] and TASKS[{backend.alias!r}]"
                raise ImproperlyConfigured(f"the queue {queue!r} is one of {both}: give it to one of them")
    tidy_jobs(client)
    client.child_setup = partial(child_setup, client)
    client.registries.clear()
    client.registries.update({queue: backend.tasks for queue, backend in served.items()})


def backends_of(database: str) -> list[PgqueueBackend]:
    """Every PgqueueBackend in TASKS that uses the database of this alias. Entries that cannot be made are left out."""
    ours = [backend for backend in map(_made, task_backends) if isinstance(backend, PgqueueBackend)]
    return [backend for backend in ours if backend.database == database]


def _made(alias: str) -> Any:
    try:
        return task_backends[alias]
    except Exception as error:  # of any backend: its package is missing, or its options are not valid
        _report(alias, str(error))
        return None


@cache
def _report(alias: str, error: str) -> None:
    """Once in a process."""
    log.error("TASKS[%r] is left out: %s", alias, error)
