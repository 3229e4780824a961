"""Jobs of Django's apps: client.job() for functions whose module is imported before the client works.

A job belongs to a database, not to a client: a test runner replaces the client of a database. Its puts are calls on
Django's own connection, so they are part of Django's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from ... import AsyncQueue, Queue
from ...jobs.options import JobPolicies
from ...jobs.registering import Register, registering
from ...jobs.registry import Registry
from ...jobs.starts import AnyStart
from . import clients


class Home:
    """The home of the jobs of a database: its present clients."""

    def __init__(self, using: str) -> None:
        self._using = using

    @property
    def jobs(self) -> Registry:
        return clients.client(self._using).jobs

    @property
    def middleware(self) -> list[Any]:
        return clients.client(self._using).middleware

    @property
    def starts(self) -> list[AnyStart]:
        return clients.client(self._using).starts

    def blocking_queue(self, name: str) -> Queue:
        return clients.queue(name, self._using)

    def awaiting_queue(self, name: str) -> AsyncQueue:
        return clients.client(self._using).aio.awaiting_queue(name)


def job(
    queue: str | None = None,
    *,
    using: str = "default",
    name: str | None = None,
    aliases: Sequence[str] = (),
    **policies: Unpack[JobPolicies],
) -> Register:
    """Make a function a job, for `manage.py pgqueue worker`; as Client.job.

    `put` and `put_many` run on Django's own connection: inside atomic() the task exists if and when that commits.
    `aput` has a connection of its own, since Django's connections block.

    Args:
        queue, name, aliases, policies: as for Client.job. With isolation="process" a child process sets Django up with
            the worker's settings module.
        using: the alias of the database in DATABASES.

    Raises:
        ValueError: as Client.job.
        ImproperlyConfigured: as client().
    """
    return registering(Home(using), queue, name, aliases, policies)
