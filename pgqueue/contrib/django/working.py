"""Workers of a Django project: one for each database with handlers, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from ... import Worker
from . import clients, handlers, tidy


def workers(databases: Sequence[str], **options: Any) -> list[Worker]:
    """A worker for each of the databases, by default for each database with handlers.

    Args:
        databases: the aliases.
        options: the options of Worker.

    Raises:
        ImproperlyConfigured: there is no handler, or the database does not exist.
    """
    aliases = list(dict.fromkeys(databases or handlers.databases()))
    made = [handlers.equip(clients.client(alias), alias) for alias in aliases]
    for alias, client in zip(aliases, made, strict=True):
        if not client.handlers:
            raise ImproperlyConfigured(f"pgqueue: no handler is registered for the database {alias!r}")
    if not made:
        raise ImproperlyConfigured("pgqueue: no handler is registered: put @handler(queue) into the tasks.py of an app")
    return [_Worker(client, **options) for client in made]


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
