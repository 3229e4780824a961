"""Tidy connections before and after each task, as Django has them for each request.

Otherwise a worker would keep connections after a restart of the server and beyond CONN_MAX_AGE, a handler that leaves a
transaction open would pass it on to the next task, and with DEBUG connection.queries would grow without limit.
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

_used: set[BaseDatabaseWrapper] = set()  # by a worker's threads; Django lists only those of the present thread


def tidied(function: Callable[..., Any]) -> Callable[..., Any]:
    """The handler with tidy connections around it, in the thread that runs it."""
    tidy: Any = _tidied_async(function) if is_async(function) else _tidied(function)
    tidy.untidied = function
    return cast(Callable[..., Any], tidy)


def untidied(function: Callable[..., Any]) -> Callable[..., Any]:
    """The handler itself, for callers that tidy the connections themselves."""
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
    """Give the task a thread of its own for sync_to_async, which the ORM uses, as ASGIHandler does for a request.

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
    """Tidy up before a task, as the signal request_started does."""
    reset_queries()
    close_old_connections()


def end() -> None:
    """Tidy up after a task, as request_finished does. A transaction that was left open is not passed on."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            _drop(connection.alias)
        else:
            _used.add(connection)
    close_old_connections()


def end_all() -> None:
    """After the last task, when its threads have ended: close the connections that CONN_MAX_AGE kept open."""
    while _used:
        connection = _used.pop()
        connection.inc_thread_sharing()
        connection.close()


def _drop_all() -> None:
    for connection in connections.all(initialized_only=True):
        _drop(connection.alias)


def _drop(alias: str) -> None:
    """Drop a connection, which would stay inside its atomic block. The next use makes a new one."""
    connection = connections[alias]
    if connection.in_atomic_block:
        log.error("a handler left a transaction open on the database %r: it is rolled back", alias)
    connection.close()
    _used.discard(connection)
    del connections[alias]
