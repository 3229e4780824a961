"""Handlers of Django's apps: functions in their tasks.py, imported when a worker or a test needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import autodiscover_modules

from ... import Client
from ..._values import arguments
from ..._values.arguments import Seconds
from . import clients
from .isolated import child_setup
from .tidy import tidied, tidy_jobs

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Registered:
    """A handler, and the seconds for which its results are kept."""

    function: Callable[..., Any]
    keep_result: float | None


_registered: dict[str, dict[str, Registered]] = {}  # by database, and by queue


def handler(queue: str, *, using: str = "default", keep_result: Seconds | None = None) -> Callable[[F], F]:
    """Register a function as the handler of a queue's tasks, for `manage.py pgqueue worker`. It stays callable.

    The function may be sync or async. It is called with a task's data, and with the Task if it has a parameter named
    `task`; see pgqueue.Worker.

    Args:
        queue: the queue's name.
        using: the alias of its database in DATABASES.
        keep_result: the seconds, or the timedelta, for which to keep the handler's result; None keeps no results.

    Raises:
        ValueError: the name or the time is not valid.
        ImproperlyConfigured: another function is the queue's handler already.
    """
    arguments.queue_name(queue)
    keep = arguments.seconds("keep_result", keep_result, positive=True)

    def register(function: F) -> F:
        of_database = _registered.setdefault(using, {})
        if (known := of_database.get(queue)) and _path(known.function) != _path(function):
            raise ImproperlyConfigured(
                f"pgqueue: the queue {queue!r} has two handlers, {_path(known.function)} and {_path(function)}"
            )
        of_database[queue] = Registered(function, keep)
        return function

    return register


def databases() -> list[str]:
    """The aliases of the databases with handlers, jobs, or a backend of django.tasks."""
    autodiscover_modules("tasks")
    found = {*_registered, *clients.with_jobs()}
    if _tasks_backends():
        from . import backend

        found |= {alias for alias in connections if backend.backends_of(alias)}
    return sorted(found)


def equip(client: Client, using: str, queues: Sequence[str] = ()) -> Client:
    """Register all handlers of its database with a client, which has the jobs. Connections are tidy; see tidy.py.

    Imports the tasks.py of every installed app. `queues`: those that the worker is told to serve.
    """
    autodiscover_modules("tasks")
    for queue, registered in _registered.get(using, {}).items():
        client.handler(queue, keep_result=registered.keep_result)(tidied(registered.function))
    tidy_jobs(client)
    if _tasks_backends():
        from . import backend

        backend.register(client, using, queues)
    client.child_setup = partial(child_setup, client)
    return client


def takes_any(using: str) -> bool:
    """Whether a backend of django.tasks of the database takes the tasks of any queue: its QUEUES is empty."""
    if not _tasks_backends():
        return False
    from . import backend

    return any(not one.queues for one in backend.backends_of(using))


def _tasks_backends() -> bool:
    """Whether django.tasks is configured; before Django 6 it may not be installed."""
    return bool(getattr(settings, "TASKS", None))


def _path(function: Callable[..., Any]) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{function.__module__}.{kind.__qualname__}"
