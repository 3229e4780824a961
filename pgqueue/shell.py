"""How the two shells run calls and flows: Shell blocks, AsyncShell awaits. What both offer is built on these.

A Call is run on a connection of ours or of the caller's; a flow (flows.py) is driven step by step, in ten lines each.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar, cast

from . import borrowed
from .base import ClientBase
from .borrowed import AsyncConn, Conn
from .calls import Call, putting
from .connections import AsyncConnections, Connections
from .flows import Flow, Run, Step
from .listener import Listener

S = TypeVar("S")
T = TypeVar("T")


class Shell(ClientBase):
    def _open(self) -> None:
        self._connections = Connections(self._core)

    def _listener(self) -> Listener:
        return self._core.listener()

    def _run(self, call: Call[T], conn: Conn | None = None, *, relaxed: bool = False) -> T:
        if conn is not None:
            return borrowed.run(conn, call)
        return self._connections.run(call, relaxed=relaxed)

    def _prepare_put(self, queue: str, conn: Conn | None, *, in_lanes: bool = False) -> None:
        """Make what would keep others waiting if it were made in the caller's transaction: the queue, its lanes."""
        if conn is not None and queue not in self._core.queue_ids:
            ids = self._connections.run(putting.queue_ids([queue]))
            self._core.queue_ids.update(ids)
        if in_lanes and queue not in self._core.queues_with_lanes:
            self._connections.run(putting.allow_lanes(queue))
            self._core.queues_with_lanes.add(queue)

    def _drive(self, flow: Flow[T]) -> T:
        return drive(flow, self._perform)

    def _perform(self, step: Step) -> object:
        if isinstance(step, Run):
            return self._connections.run(step.call, relaxed=step.relaxed)
        return cast(threading.Event, step.signal).wait(step.seconds)


class AsyncShell(ClientBase):
    def _open(self) -> None:
        self._connections = AsyncConnections(self._core)

    async def _listener(self) -> Listener:
        listener = self._core.running_listener
        if listener is None:  # connects, and perhaps starts a server
            listener = await asyncio.to_thread(self._core.listener)
        return listener

    async def _run(self, call: Call[T], conn: AsyncConn | None = None, *, relaxed: bool = False) -> T:
        if conn is not None:
            return await borrowed.run_async(conn, call)
        return await self._connections.run(call, relaxed=relaxed)

    async def _prepare_put(self, queue: str, conn: AsyncConn | None, *, in_lanes: bool = False) -> None:
        if conn is not None and queue not in self._core.queue_ids:
            ids = await self._connections.run(putting.queue_ids([queue]))
            self._core.queue_ids.update(ids)
        if in_lanes and queue not in self._core.queues_with_lanes:
            await self._connections.run(putting.allow_lanes(queue))
            self._core.queues_with_lanes.add(queue)

    async def _drive(self, flow: Flow[T]) -> T:
        return await drive_async(flow, self._perform)

    async def _perform(self, step: Step) -> object:
        if isinstance(step, Run):
            return await self._connections.run(step.call, relaxed=step.relaxed)
        return await cast(LoopSignal, step.signal).wait(step.seconds)


def drive(flow: Generator[S, Any, T], perform: Callable[[S], object]) -> T:
    """Perform a flow's steps one after another, and give it what comes of each, be it an error; returns its result."""
    try:
        step = next(flow)
        while True:
            try:
                answer = perform(step)
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


async def drive_async(flow: Generator[S, Any, T], perform: Callable[[S], Awaitable[object]]) -> T:
    """The same, awaiting."""
    try:
        step = next(flow)
        while True:
            try:
                answer = await perform(step)
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


class LoopSignal:
    """An event that any thread may set, and the loop it was made in waits for."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._set = False

    def set(self) -> None:
        self._set = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)

    def is_set(self) -> bool:
        return self._set

    async def wait(self, seconds: float | None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._event.wait()
        except TimeoutError:
            return self._set
