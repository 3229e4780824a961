"""Status by key; a task's status for its whole life, its result and its progress. Both shells.

Everything that is waited for here is announced at commit (statuses.sql): a first look, and where that is not enough,
LISTEN, look, wait, look (waits.until). What announces nothing, as the end of a task whose result is not kept, is
found out every POLL seconds.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from . import arguments, data, waits
from .base import mirrors
from .borrowed import AsyncConn, Conn
from .calls import Call
from .calls import statuses as calls
from .calls.statuses import TaskStatus
from .errors import ConnectionLost, ResultUnknown, TaskFailed
from .flows import Flow, Run
from .shell import AsyncShell, LoopSignal, Shell
from .task import TaskLike, named
from .waits import TimeLeft

Holds = Callable[[Any], bool]
Look = Callable[[], Flow[Any]]

POLL = 2.0  # seconds


class Statuses(Shell):
    def set_status(self, key: str, value: Any, *, ttl: float | None = None, conn: Conn | None = None) -> None:
        """Set the status of a key, and wake who waits for it. Any key will do; that of a page may be its URL's md5.

        Args:
            key: 1 to 200 characters.
            value: anything that JSON can hold, but not None.
            ttl: seconds after which the key has no status any more; None for never.
            conn: a connection of the caller's: the status is set and told when its transaction commits. Until then
                others who set the same key wait.

        Raises:
            BadData: JSON or jsonb cannot hold the value, or it is over max_data_size.
            ValueError: the key or the ttl cannot be.
        """
        self._run(calls.set_status(key, self._encode(value), ttl), conn)

    def get_status(self, key: str) -> Any:
        """The status of a key, or None if it has none, or none any more. Raises ValueError for a key that cannot be."""
        return self._run(calls.get_status(key))

    def delete_status(self, key: str, *, conn: Conn | None = None) -> bool:
        """Remove the status of a key; tells whether there was one. Nobody is woken by it."""
        return self._run(calls.delete_status(key), conn)

    def wait_status(self, key: str, until: Any = None, timeout: float | None = None) -> Any:
        """Wait for the status of a key, and return it.

        Args:
            key: as for set_status.
            until: the status to wait for, or a function that is given a status and says whether it is the one. None
                is content with any.
            timeout: seconds to wait; 0 only looks, None waits for ever.

        Nothing that is set after the call is missed, but it is the newest that counts: of two that are set one after
        the other at once, only the second may be seen.

        Raises:
            TimeoutError: it did not come in time.
            BadData: JSON cannot hold what is waited for, so it would never come.
            ValueError: the key or the timeout cannot be.
            ClosedError: the client is closed, also meanwhile.
        """
        channel, left, look = calls.status_channel(key), TimeLeft(arguments.timeout(timeout)), _status(key, until)
        found = self._drive(look())
        if found is None and not left.over():
            poll = self._core.settings.poll or float("inf")
            flow = waits.until(self._listener(), threading.Event, channel, look, left.seconds(), poll)
            found = self._drive(flow)
        return _in_time(found, f"the status of {key!r}", timeout)

    def task_status(self, task: TaskLike) -> TaskStatus:
        """What is known of a task, also after its end. A task that nobody can tell about has the state `unknown`.

        Raises:
            TaskIdRequired: the id is not an int or a string of digits.
        """
        return self._run(calls.task_status(named(task)[0]))

    def result(self, task: TaskLike, timeout: float | None = None) -> Any:
        """Wait for the result of a task, and return it. Only a kept one can be had: see handler() and Task.finish().

        Args:
            task: a task, or its id. It must have been committed.
            timeout: seconds to wait; 0 only looks, None waits for ever.

        Raises:
            TaskFailed: it has failed for good (.error says why).
            ResultUnknown: it is gone, and no result is kept. When that happens meanwhile it is noticed within 2 s.
            TimeoutError: it was not done in time.
            TaskIdRequired, ValueError: the id or the timeout cannot be.
            ClosedError: the client is closed, also meanwhile.
        """
        id, left = named(task)[0], TimeLeft(arguments.timeout(timeout))
        look = _ended(id)
        status = self._drive(look())
        if status is None and not left.over():
            channel = calls.task_channel(id)
            flow = waits.until(self._listener(), threading.Event, channel, look, left.seconds(), POLL)
            status = self._drive(flow)
        return _outcome(_in_time(status, f"the result of task {id}", timeout))

    def follow(self, task: TaskLike, timeout: float | None = None) -> Iterator[TaskStatus]:
        """A task's status now, and again at each change, until it is done, failed or unknown; that is the last.

        Progress and kept results come at once; that it was taken, given back or buried, or is gone, within 2 s. What
        changes several times in between comes once.

        Args:
            task: a task, or its id.
            timeout: seconds for all of it; None for as long as it takes.

        Raises:
            TimeoutError: the time was over before the task ended.
            TaskIdRequired, ValueError: the id or the timeout cannot be.
            ClosedError: the client is closed, also meanwhile.
        """
        return self._follow(named(task)[0], arguments.timeout(timeout))

    def _follow(self, id: int, timeout: float | None) -> Iterator[TaskStatus]:
        left, channel = TimeLeft(timeout), calls.task_channel(id)
        yield (status := self._run(calls.task_status(id)))
        while not status.ended:
            look = _other_than(status)
            flow = waits.until(self._listener(), threading.Event, channel, look, left.seconds(), POLL)
            yield (status := _in_time(self._drive(flow), f"the end of task {id}", timeout))


@mirrors(Statuses)
class AsyncStatuses(AsyncShell):
    async def set_status(
        self, key: str, value: Any, *, ttl: float | None = None, conn: AsyncConn | None = None
    ) -> None:
        await self._run(calls.set_status(key, self._encode(value), ttl), conn)

    async def get_status(self, key: str) -> Any:
        return await self._run(calls.get_status(key))

    async def delete_status(self, key: str, *, conn: AsyncConn | None = None) -> bool:
        return await self._run(calls.delete_status(key), conn)

    async def wait_status(self, key: str, until: Any = None, timeout: float | None = None) -> Any:
        channel, left, look = calls.status_channel(key), TimeLeft(arguments.timeout(timeout)), _status(key, until)
        found = await self._drive(look())
        if found is None and not left.over():
            poll = self._core.settings.poll or float("inf")
            flow = waits.until(await self._listener(), LoopSignal, channel, look, left.seconds(), poll)
            found = await self._drive(flow)
        return _in_time(found, f"the status of {key!r}", timeout)

    async def task_status(self, task: TaskLike) -> TaskStatus:
        return await self._run(calls.task_status(named(task)[0]))

    async def result(self, task: TaskLike, timeout: float | None = None) -> Any:
        id, left = named(task)[0], TimeLeft(arguments.timeout(timeout))
        look = _ended(id)
        status = await self._drive(look())
        if status is None and not left.over():
            channel = calls.task_channel(id)
            flow = waits.until(await self._listener(), LoopSignal, channel, look, left.seconds(), POLL)
            status = await self._drive(flow)
        return _outcome(_in_time(status, f"the result of task {id}", timeout))

    def follow(self, task: TaskLike, timeout: float | None = None) -> AsyncIterator[TaskStatus]:
        return self._follow(named(task)[0], arguments.timeout(timeout))

    async def _follow(self, id: int, timeout: float | None) -> AsyncIterator[TaskStatus]:
        left, channel = TimeLeft(timeout), calls.task_channel(id)
        yield (status := await self._run(calls.task_status(id)))
        while not status.ended:
            look = _other_than(status)
            flow = waits.until(await self._listener(), LoopSignal, channel, look, left.seconds(), POLL)
            yield (status := _in_time(await self._drive(flow), f"the end of task {id}", timeout))


# --- looking, as flows


def _status(key: str, until: Any) -> Look:
    """Finds the status of a key, if it is what is waited for."""
    if inspect.iscoroutinefunction(until):
        raise ValueError("until must be a value or a plain function: one that awaits cannot be asked here")
    holds: Holds = until if callable(until) else _is(until)
    call = calls.get_status(key)

    def look() -> Flow[Any]:
        value = yield from _read(call)
        return value if value is not None and holds(value) else None

    return look


def _is(wanted: Any) -> Holds:
    if wanted is None:
        return lambda value: True
    as_stored = data.decode(data.encode(wanted))  # a tuple comes back as a list
    return lambda value: bool(value == as_stored)


def _ended(id: int) -> Look:
    """Finds the status of a task that has ended."""
    call = calls.task_status(id)

    def look() -> Flow[Any]:
        status = yield from _read(call)
        return status if status.ended else None

    return look


def _other_than(known: TaskStatus) -> Look:
    """Finds a status of a task that is not this one."""
    call = calls.task_status(known.id)

    def look() -> Flow[Any]:
        status = yield from _read(call)
        return status if status != known else None

    return look


def _read(call: Call[Any]) -> Flow[Any]:
    """A read whose connection broke is sent again: it changes nothing, and the server may be restarting."""
    while True:
        try:
            return (yield Run(call))
        except ConnectionLost:
            pass


def _in_time(found: Any, what: str, timeout: float | None) -> Any:
    if found is None:
        raise TimeoutError(f"{what} did not come within {timeout} s")
    return found


def _outcome(status: TaskStatus) -> Any:
    if status.state == "failed":
        raise TaskFailed(status.id, status.error or "")
    if status.state == "unknown":
        raise ResultUnknown(f"task {status.id} is gone, or never was, and no result of it is kept", status.id)
    return status.result
