"""For tests of Django projects: run a queue's tasks inside the test, and look at the tasks that were put.

All calls use Django's own connection, so in a TestCase they see the puts of the test's transaction, and are rolled back
with it. No worker is needed, and a worker would not see those tasks.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections
from django.test import TransactionTestCase

from ... import Task, TaskNotFound
from ..._async.shell import AsyncShell
from ..._calls import results as statuses
from ..._calls.call import Call, Fence, call, query
from ..._calls.pick import Found
from ..._calls.take import Taken
from ..._engine import borrowed
from ..._engine.core import Core
from ..._records.task import from_found, from_taken
from ...jobs.retry import Retry
from ...worker.apart import Apart
from ...worker.bridge import Bridge
from ...worker.failures import recorded
from ...worker.homes import AsyncHomes, only
from ...worker.loops import no_hooks
from ...worker.means import Means
from ...worker.overdue import Limits
from ...worker.served import Served
from ...worker.serving import Serving
from . import clients
from .handlers import equip, takes_any
from .tidy import left_alone

LIMIT = 1000
AT_ONCE = Retry(attempts=None, delay=0)  # of tasks without a Retry of their own: ready for the next run_tasks()


def run_tasks(queue: str | None = None, using: str = "default", *, limit: int = LIMIT) -> list[Task]:
    """Run the tasks that are ready, and the tasks that their handlers put, until none is ready.

    Works in a TestCase, a TransactionTestCase and in plain functions, in the thread that calls it.

    Args:
        queue: the queue's name; None: all queues that have a handler or jobs, by (priority, id); and for a backend of
            django.tasks whose QUEUES is empty also the queues that have its tasks.
        using: the alias of the database in DATABASES.
        limit: the most tasks to run.

    Returns:
        The tasks that were run, in their order, as they were taken.

    Raises:
        Exception: any exception of a handler or a job, but none of a task of django.tasks, whose result has it, also
            SystemExit. Before that, if the transaction can go on, the failed attempt is recorded: the task is ready
            again, or delayed or buried if its job's Retry says so.
        ValueError: the queue, or every queue, is without a handler, and no backend of django.tasks takes any queue.
        RuntimeError: the limit is reached.
    """
    run = _Run(using, queue)
    ran: list[Task] = []
    while row := run.take():
        task = from_taken(Task, row, run.joined.shell)
        if len(ran) == limit:
            task.release()
            raise RuntimeError(
                f"{limit} tasks were run and more are ready: does a handler put a task into its own queue?"
            )
        run(row, task)
        ran.append(task)
    return ran


def queued(queue: str, using: str = "default") -> list[Task]:
    """The tasks of a queue that are not done, by (priority, id): for example those that the tested code has put.

    Args:
        queue: the queue's name; the queue need not exist.
        using: the alias of the database in DATABASES.
    """
    shell = clients.joined(using).shell
    return [from_found(Task, row, shell) for row in shell.run(_find(queue))]


def clear(using: str = "default") -> None:
    """Remove all tasks of all queues. A TransactionTestCase empties only the tables of models, not pgqueue's."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pgqueue.truncate_queue(name) FROM pgqueue.queues")


class QueuesCleared(TransactionTestCase):
    """A TransactionTestCase that removes the tasks of its databases at the end of each test."""

    def setUp(self) -> None:
        super().setUp()
        for alias in self.databases:
            if connections[alias].vendor == "postgresql":
                self.addCleanup(clear, alias)


class _Run:
    """Calls handlers and jobs as a worker does, without threads, delays and batches."""

    def __init__(self, using: str, queue: str | None) -> None:
        self.client, self.joined = clients.client(using), clients.joined(using)
        self._using, self._queue = using, queue
        self._results: dict[int, tuple[str, float]] = {}
        self._takes_any = takes_any(using)
        self._begin([] if queue is None else [queue])

    def take(self) -> Taken | None:
        """Take the next task."""
        row = self.joined.shell.run(_take(self._queues)) if self._queues else None
        if row is None and self._queue is None and self._takes_any:
            others = self.joined.shell.run(_with_jobs(self._queues, list(self.client.jobs)))
            if others:
                self._begin(others)
                return self.take()
        return row

    def _begin(self, more: Sequence[str]) -> None:
        """Bind the handlers and jobs of the queues. `more`: queues of a backend that takes any."""
        client, wanted = equip(self.client, self._using, more), self._queue
        known = sorted({*client.handlers, *client.jobs.by_queue(), *client.registries})
        if (not known and not self._takes_any) or (wanted is not None and wanted not in known):
            raise ValueError(f"no handler is registered for {'any queue' if wanted is None else repr(wanted)}")
        self._queues = known if wanted is None else [wanted]
        self._bind(self._queues)

    def _bind(self, queues: Sequence[str]) -> None:
        aio, homes = AsyncHomes(None, [_AwaitingShell(self.client.shell.core, self._using)]), only(self.joined.shell)
        self._apart = Apart(lambda: aio, self.client.starts)
        here = _Here(lambda: aio, lambda: None, no_hooks)
        means = Means(self._apart.runs, Limits(), defaultdict(lambda: here), None)
        served = Served.of(self.client, queues=queues)
        self._serving: dict[str, Serving[Any]] = served.blocking(homes, AT_ONCE, self._finish, means)
        for queue, serving in served.awaiting(homes, aio, AT_ONCE, self._finish, means).items():
            self._serving[queue] = Serving(async_to_sync(_awaited(serving)), serving.policy)

    def __call__(self, row: Taken, task: Task) -> None:
        serving, began = self._serving[row.queue], time.monotonic()
        try:
            with left_alone():
                settled = self._apart.run(row, serving.run)
        except BaseException as error:
            failed = serving.failure(row, error, began)
            if not connections[self._using].needs_rollback:
                self.joined.shell.run(statuses.fail_many([recorded(failed)]))  # or the handler settled it
            if not isinstance(error, (Exception, SystemExit)) or not self._tells(row.queue, failed.job):
                raise
            return
        if row.id in self._results:
            result, keep = self._results.pop(row.id)
            self.joined.shell.run(statuses.finish(row.id, Fence(row.token, None), result, keep))
        elif not settled:
            with suppress(TaskNotFound):  # the handler acked it in a transaction of its own
                task.ack()

    def _tells(self, queue: str, job: str | None) -> bool:
        """Whether it is a task of django.tasks, whose result has its errors."""
        return queue in self.client.registries and job not in self.client.jobs

    def _finish(self, row: Taken, result: str, keep: float) -> None:
        self._results[row.id] = result, keep


def _awaited(serving: Serving[Awaitable[bool]]) -> Callable[[Taken], Coroutine[Any, Any, bool]]:
    async def run(row: Taken) -> bool:
        return await serving.run(row)

    return run


class _Here(Bridge):
    """Async jobs beside sync ones: for the ORM, in the test's thread too."""

    def run(self, job: Callable[[Any], Coroutine[Any, Any, Any]], run: object = None) -> Any:
        async def awaited() -> Any:
            return await job(self._make())

        return async_to_sync(awaited)()


class _AwaitingShell(AsyncShell):
    """The shell of an async handler's task: its verbs run in the test's thread, which has Django's connection."""

    def __init__(self, core: Core, using: str) -> None:
        super().__init__(core)
        self.together = None
        self._using = using

    async def run(
        self, call: Call[Any], conn: Any = None, *, relaxed: bool = False, within: float | None = None
    ) -> Any:
        return await sync_to_async(lambda: borrowed.run(connections[self._using], call))()


def _take(queues: list[str]) -> Call[Taken | None]:
    """Take a task without a session: Django's connection holds it for as long as it is open."""
    return call(
        "take_many",
        "id, token, priority, attempts, deadline, data::pg_catalog.text, queue, redelivered",
        lambda rows: Taken(*rows[0]) if rows else None,
        queues=queues,
        n=1,
    )


def _with_jobs(but: list[str], jobs: list[str]) -> Call[list[str]]:
    """The queues, but for these, that have ready tasks of jobs other than these."""
    return query(
        "SELECT DISTINCT queue FROM pgqueue.tasks WHERE state OPERATOR(pg_catalog.=) 'ready'"
        " AND queue OPERATOR(pg_catalog.<>) ALL (%s::pg_catalog.text[])"
        " AND (data OPERATOR(pg_catalog.->>) 'job') OPERATOR(pg_catalog.<>) ALL (%s::pg_catalog.text[])",
        (but, jobs),
        lambda rows: [row[0] for row in rows],
    )


def _find(queue: str) -> Call[list[Found]]:
    return query(
        "SELECT id, queue, state, priority, attempts, error, run_at, buried_at, deadline, holder, lane, key,"
        " data::pg_catalog.text FROM pgqueue.tasks WHERE queue OPERATOR(pg_catalog.=) %s::pg_catalog.text"
        " AND state OPERATOR(pg_catalog.<>) 'done' ORDER BY priority, id",
        (queue,),
        lambda rows: [Found(*row) for row in rows],
    )
