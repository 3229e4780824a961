"""Workers of a Django project: one for each database with handlers, in one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from ... import Client, Worker
from ...worker.health import Report
from ...worker.served import Served
from . import clients, handlers, tidy


def workers(
    databases: Sequence[str], *, queues: Sequence[str] = (), exclude: Sequence[str] = (), **options: Any
) -> list[Worker]:
    """A worker for each of the databases, by default for each database with handlers or jobs.

    Args:
        databases: the aliases.
        queues: the queues to serve, each in the databases that have a handler or job for it; default: all of them.
        exclude: the queues not to serve.
        options: the other options of Worker.

    Raises:
        ImproperlyConfigured: there is nothing to serve, or the database does not exist, or none of several databases
            has a handler or job for one of the queues.
        ValueError: as Worker.
    """
    aliases = list(dict.fromkeys(databases or handlers.databases()))
    made = [handlers.equip(clients.client(alias), alias, queues) for alias in aliases]
    for alias, client in zip(aliases, made, strict=True):
        if not (client.handlers or client.jobs or client.registries or client.batch_handlers):
            raise ImproperlyConfigured(f"pgqueue: no handler is registered for the database {alias!r}")
    if not made:
        raise ImproperlyConfigured("pgqueue: no handler is registered: put @handler or @job into an app's tasks.py")
    if len(made) == 1:
        return [_Worker(made[0], queues=queues or None, exclude=exclude, **options)]
    return list(_share(made, queues, exclude, options))


def _share(
    made: Sequence[Client], queues: Sequence[str], exclude: Sequence[str], options: dict[str, Any]
) -> Iterator[Worker]:
    """A worker for each client that has one of the queues."""
    served = [Served.of(client).names for client in made]
    shares = options.pop("shares", None) or {}
    for queue in (*queues, *exclude, *shares):
        if not any(queue in names for names in served):
            raise ImproperlyConfigured(f"pgqueue: none of the databases has a handler for the queue {queue!r}")
    for client, names in zip(made, served, strict=True):
        mine = [queue for queue in queues or names if queue in names and queue not in exclude]
        if mine:
            given = {queue: share for queue, share in shares.items() if queue in mine}
            yield _Worker(client, queues=mine, shares=given, **options)


def report(workers: Sequence[Worker]) -> Report:
    """Whether all of the workers are alive and ready."""
    reports = [worker.report() for worker in workers]
    return next((one for one in reports if not one.live), next((one for one in reports if not one.ready), reports[0]))


class _Worker(Worker):
    """One of several in a process: a stop of one, by a signal too, stops all at once, so that they share the grace."""

    together: Sequence[Worker] = ()

    def stop(self) -> None:
        for worker in self.together or [self]:
            Worker.stop(worker)


def run(workers: Sequence[Worker]) -> None:
    """Run workers until SIGTERM or SIGINT, or until one of them ends; then all end as Worker.run does.

    Signals are caught in the main thread only.

    Raises:
        Error: as Worker.run, from any of them.
    """
    first, *others = workers
    for worker in workers:
        if isinstance(worker, _Worker):
            worker.together = workers
    running: list[Future[None]] = []
    try:
        with ThreadPoolExecutor(len(workers), thread_name_prefix="pgqueue-worker") as threads:
            try:
                for worker in others:
                    running.append(threads.submit(worker.run))
                    running[-1].add_done_callback(lambda done: first.stop())
                first.run()
            finally:
                for worker in others:
                    worker.stop()
    finally:
        tidy.end_all()
    for done in running:
        done.result()
