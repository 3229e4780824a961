"""What a request has in Django, and a task needs as well: connections that are looked after, before and behind it.

Without it a worker's connections would outlive a restart of the server and CONN_MAX_AGE, a handler that left a
transaction open would hand it to the next one, and with DEBUG on connection.queries would grow for ever.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, cast

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper

from ...worker.handlers import is_async

log = logging.getLogger("pgqueue")

_used: set[BaseDatabaseWrapper] = set()  # by the threads of a worker; Django knows only those of the running thread


def tidied(function: Callable[..., Any]) -> Callable[..., Any]:
    """The handler with tidy connections around it, in the thread that runs it."""
    tidy: Any = _tidied_async(function) if is_async(function) else _tidied(function)
    tidy.untidied = function
    return cast(Callable[..., Any], tidy)


def untidied(function: Callable[..., Any]) -> Callable[..., Any]:
    """The handler itself, for who looks after the connections."""
    return getattr(function, "untidied", function)


def _tidied(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        begin()
        try:
            return function(*args, **kwargs)
        finally:
            end()

    return wrapper


def _tidied_async(function: Callable[..., Any]) -> Callable[..., Any]:
    """As ASGIHandler does: what a handler awaits with sync_to_async, as the ORM does, has a thread of its own.

    That thread ends with the task, and so do its connections.
    """

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        async with ThreadSensitiveContext():
            try:
                return await function(*args, **kwargs)
            finally:
                await sync_to_async(_drop_all)()

    return wrapper


def begin() -> None:
    """Before a task: as the signal request_started does."""
    reset_queries()
    close_old_connections()


def end() -> None:
    """After a task: as request_finished does, and nobody inherits a transaction that was left open."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            _drop(connection.alias)
        else:
            _used.add(connection)
    close_old_connections()


def end_all() -> None:
    """After the last task, when the threads that ran them have ended: close what CONN_MAX_AGE kept open."""
    while _used:
        connection = _used.pop()
        connection.inc_thread_sharing()
        connection.close()


def _drop_all() -> None:
    for connection in connections.all(initialized_only=True):
        _drop(connection.alias)


def _drop(alias: str) -> None:
    """Close a connection, and have a new one made at the next use: this one would stay inside its atomic block."""
    connection = connections[alias]
    if connection.in_atomic_block:
        log.error("a handler left a transaction open on the database %r: it is rolled back", alias)
    connection.close()
    _used.discard(connection)
    del connections[alias]
