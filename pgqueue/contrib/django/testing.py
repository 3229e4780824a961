"""For tests of Django projects: run a queue's tasks inside the test, and look at the tasks that were put.

All calls use Django's own connection, so in a TestCase they see the puts of the test's transaction, and are rolled back
with it. No worker is needed, and a worker would not see those tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections
from django.test import TransactionTestCase

from ... import AsyncClient, TakeLost, Task, TaskNotFound
from ..._async.shell import AsyncShell
from ..._calls import results as statuses
from ..._calls.call import Call, Fence
from ..._calls.pick import Found
from ..._calls.take import Taken
from ..._engine import borrowed
from ..._engine.core import Core
from ..._records.task import from_found, from_taken
from ...worker.handlers import bind, bind_async, describe, is_async
from . import clients
from .handlers import equip
from .tidy import untidied

LIMIT = 1000


def run_tasks(queue: str | None = None, using: str = "default", *, limit: int = LIMIT) -> list[Task]:
    """Run the tasks that are ready, and the tasks that their handlers put, until none is ready.

    Works in a TestCase, a TransactionTestCase and in plain functions, in the thread that calls it.

    Args:
        queue: the queue's name; None: all queues that have a handler, by (priority, id).
        using: the alias of the database in DATABASES.
        limit: the most tasks to run.

    Returns:
        The tasks that were run, in their order, as they were taken.

    Raises:
        Exception: any exception of a handler. Its task is released with one attempt more, if the transaction can go on.
        ValueError: the queue, or every queue, is without a handler.
        RuntimeError: the limit is reached.
    """
    run = _Run(using)
    known = sorted(run.client.handlers)
    if not known or (queue is not None and queue not in known):
        raise ValueError(f"no handler is registered for {'any queue' if queue is None else repr(queue)}")
    queues = known if queue is None else [queue]
    ran: list[Task] = []
    while row := run.joined.shell.run(_take(queues)):
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
    """Calls handlers as a worker does, without threads, retries and batches."""

    def __init__(self, using: str) -> None:
        self.client = equip(clients.client(using), using)
        self.joined = clients.joined(using)
        self.awaiting = AsyncClient.over(_AwaitingShell(self.client.shell.core, using))
        self._using = using

    def __call__(self, row: Taken, task: Task) -> None:
        results: list[str] = []
        try:
            settled = self._bound(row.queue, results)(row)
        except BaseException as error:
            if not connections[self._using].needs_rollback:
                with suppress(TakeLost):  # the handler settled it before it failed
                    task.release(error=describe(error))
            raise
        if results:
            keep = self.client.keep_results[row.queue]
            self.joined.shell.run(statuses.finish(row.id, Fence(row.token, None), results[0], keep))
        elif not settled:
            with suppress(TaskNotFound):  # the handler acked it in a transaction of its own
                task.ack()

    def _bound(self, queue: str, results: list[str]) -> Callable[[Taken], bool]:
        """The queue's handler. It appends a result that is kept to `results`."""

        def finish(row: Taken, result: str) -> None:
            results.append(result)

        function, keeps = untidied(self.client.handlers[queue]), queue in self.client.keep_results
        if is_async(function):
            return async_to_sync(bind_async(self.awaiting, function, finish if keeps else None))
        return bind(self.joined, function, finish if keeps else None)


class _AwaitingShell(AsyncShell):
    """The shell of an async handler's task: its verbs run in the test's thread, which has Django's connection."""

    def __init__(self, core: Core, using: str) -> None:
        super().__init__(core)
        self._using = using

    async def run(self, call: Call[Any], conn: Any = None, *, relaxed: bool = False) -> Any:
        return await sync_to_async(lambda: borrowed.run(connections[self._using], call))()


def _take(queues: list[str]) -> Call[Taken | None]:
    """Take a task without a session: Django's connection holds it for as long as it is open."""
    return Call(
        "SELECT id, token, priority, attempts, deadline, data::pg_catalog.text, queue"
        " FROM pgqueue.take_many(queues => %s::pg_catalog.text[], n => 1)",
        (queues,),
        lambda rows: Taken(*rows[0]) if rows else None,
    )


def _find(queue: str) -> Call[list[Found]]:
    return Call(
        "SELECT id, queue, state, priority, attempts, error, run_at, buried_at, deadline, holder, lane, key,"
        " data::pg_catalog.text FROM pgqueue.tasks WHERE queue OPERATOR(pg_catalog.=) %s::pg_catalog.text"
        " AND state OPERATOR(pg_catalog.<>) 'done' ORDER BY priority, id",
        (queue,),
        lambda rows: [Found(*row) for row in rows],
    )
