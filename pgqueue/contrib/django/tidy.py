"""Tidy connections before and after each task, as Django has them for each request.

Otherwise a worker would keep connections after a restart of the server and beyond CONN_MAX_AGE, a handler that leaves a
transaction open would pass it on to the next task, and with DEBUG connection.queries would grow without limit.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper

from ..._values.logs import log
from ...jobs.clients import WithJobs
from ...jobs.signature import is_async

_used: set[BaseDatabaseWrapper] = set()  # by a worker's threads; Django lists only those of the present thread
_left_alone: ContextVar[bool] = ContextVar("pgqueue_left_alone", default=False)


class Tidy:
    """A middleware: tidy connections around the run of a job, in the thread that runs it."""

    @contextmanager
    def run(self, run: object = None) -> Iterator[None]:
        if _left_alone.get():
            yield
            return
        begin()
        try:
            yield
        finally:
            end()

    @asynccontextmanager
    async def arun(self, run: object = None) -> AsyncIterator[None]:
        """Give the task a thread of its own for sync_to_async, which the ORM uses, as ASGIHandler does for a request.

        That thread ends with the task, and so do its connections.
        """
        if _left_alone.get():
            yield
            return
        async with ThreadSensitiveContext():
            try:
                yield
            finally:
                await sync_to_async(_drop_all)()


TIDY = Tidy()


def tidy_jobs(client: WithJobs) -> None:
    """Have the jobs of a client run with tidy connections, outside of all other middleware."""
    if TIDY not in client.middleware:
        client.middleware.insert(0, TIDY)


def tidied(function: Callable[..., Any]) -> Callable[..., Any]:
    """A handler with tidy connections around it. Its parameters stay: a worker checks whether one is `task`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with TIDY.run():
            return function(*args, **kwargs)

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        async with TIDY.arun():
            return await function(*args, **kwargs)

    return call_async if is_async(function) else call


@contextmanager
def left_alone() -> Iterator[None]:
    """Within this block connections stay as they are: for tests, which go on with theirs."""
    token = _left_alone.set(True)
    try:
        yield
    finally:
        _left_alone.reset(token)


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
