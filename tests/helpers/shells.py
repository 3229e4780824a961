"""Both shells under one test: written once with `await`, run on the awaiting shell and on the blocking one.

The blocking shell is put behind a wrapper that runs in a thread whatever its mirror awaits. What the wrapper gives out
is wrapped again, so a test cannot tell the two apart, except by cancelling: a thread cannot be cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg

import pgqueue

MIRRORS: dict[type, type] = {
    getattr(module, name): getattr(module, f"Async{name}")
    for module in (pgqueue, pgqueue.types)
    for name in module.__all__
    if f"Async{name}" in module.__all__
} | {psycopg.Connection: psycopg.AsyncConnection, psycopg.Cursor: psycopg.AsyncCursor}


class Awaitable:
    """A blocking object that is used as its awaiting mirror."""

    def __init__(self, thing: Any, threads: ThreadPoolExecutor) -> None:
        self._thing = thing
        self._threads = threads

    def __repr__(self) -> str:
        return repr(self._thing)

    def __eq__(self, other: object) -> bool:
        return bool(self._thing == unwrapped(other))

    def __hash__(self) -> int:
        return hash(self._thing)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        if not inspect.ismethod(value):
            return wrapped(value, self._threads)
        mirror = next(MIRRORS[kind] for kind in type(self._thing).__mro__ if kind in MIRRORS)
        awaited = inspect.iscoroutinefunction(getattr(mirror, name))

        def call(*args: Any, **kwargs: Any) -> Any:
            def work() -> Any:
                return value(*map(unwrapped, args), **{name: unwrapped(arg) for name, arg in kwargs.items()})

            return self._in_thread(work) if awaited else wrapped(work(), self._threads)

        return call

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        # Not asyncio.to_thread: its pool is too small for twenty blocked takes.
        run = partial(contextvars.copy_context().run, work)
        return wrapped(await asyncio.get_running_loop().run_in_executor(self._threads, run), self._threads)

    async def __aenter__(self) -> Any:
        return await self._in_thread(self._thing.__enter__)

    async def __aexit__(self, *exception: object) -> Any:
        return await self._in_thread(lambda: self._thing.__exit__(*exception))

    def __aiter__(self) -> Any:
        return wrapped(iter(self._thing), self._threads)

    async def __anext__(self) -> Any:
        over = object()
        value = await self._in_thread(lambda: next(self._thing, over))
        if value is over:
            raise StopAsyncIteration
        return value


def wrapped(value: Any, threads: ThreadPoolExecutor) -> Any:
    if isinstance(value, tuple(MIRRORS)):
        return Awaitable(value, threads)
    if isinstance(value, list):
        return [wrapped(item, threads) for item in value]
    return value


def unwrapped(value: Any) -> Any:
    if isinstance(value, Awaitable):
        return value._thing
    if isinstance(value, list):
        return [unwrapped(item) for item in value]
    return value


class Shell:
    """One of the two shells: makes clients of it, and a caller's connections to go with them."""

    def __init__(self, name: str, dsn: str, stack: contextlib.AsyncExitStack, threads: ThreadPoolExecutor) -> None:
        self.name = name
        self._dsn = dsn
        self._stack = stack
        self._threads = threads

    def client(self, dsn: str | None = None, **options: Any) -> Any:
        """A new client, closed at the end of the test."""
        options = {"poll": None} | options  # no backstop: a lost wake-up must show
        if self.name == "async":
            client: Any = pgqueue.AsyncClient(dsn or self._dsn, **options)
        else:
            client = Awaitable(pgqueue.Client(dsn or self._dsn, **options), self._threads)
        self._stack.push_async_callback(client.close)
        return client

    def cluster(self, clients: list[Any], **options: Any) -> Any:
        """A cluster of clients that this shell has made."""
        if self.name == "async":
            return pgqueue.AsyncCluster(clients, **options)
        return Awaitable(pgqueue.Cluster(unwrapped(clients), **options), self._threads)

    async def connection(self, dsn: str | None = None, **options: Any) -> Any:
        """A connection of the caller's."""
        if self.name == "async":
            conn: Any = await psycopg.AsyncConnection.connect(dsn or self._dsn, **options)
        else:
            conn = Awaitable(psycopg.connect(dsn or self._dsn, **options), self._threads)
        self._stack.push_async_callback(conn.close)
        return conn
