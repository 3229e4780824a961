"""Verbs for one task that is named by its id or its place, and puts that choose their place. Both shells."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar, Unpack

from . import data as json_data
from . import flows
from .base import mirrors
from .borrowed import AsyncConn, Conn
from .calls import Call, Fence, Found, Taken, putting
from .calls import picking as calls
from .calls.picking import TaskStats
from .calls.putting import PutArguments, PutOptions
from .shell import AsyncShell, LoopSignal, Shell
from .task import TaskLike, TaskRecord, from_found, from_placed, from_taken, named, settled

Picked = TypeVar("Picked", bound=TaskRecord)


class _Picking(Generic[Picked]):
    """What both shells make of rows."""

    name: str
    _task_type: type[Picked]

    def _found(self, row: Found | None) -> Picked | None:
        return None if row is None else from_found(self._task_type, row, _queue=self)

    def _taken(self, row: Taken) -> Picked:
        return from_taken(self._task_type, row, _queue=self)


class QueuePicking(_Picking[Picked]):
    _client: Shell

    def take_id(self, task: TaskLike) -> Picked:
        """Take the task of this id, be it ready, delayed or buried; does not wait. As beanstalkd's reserve-job.

        Raises:
            TaskNotFound: it is gone, done, or expired.
            TaskTakenByOther: somebody has it; perhaps it is this client.
            TaskBusy: another task of its lane is taken, or somebody is just changing it.
            ServerError, ClosedError: as for take.
        """
        client = self._client
        id, listener = named(task)[0], client._listener()
        flow = flows.take_id(client._core, listener, threading.Event, id)
        (taken,) = client._made(client._drive(flow), self._taken)
        return taken

    def peek_next(self, state: str = "ready") -> Picked | None:
        """The next task of the queue as it is, without taking it. As beanstalkd's peek-ready, -delayed and -buried.

        Args:
            state: `ready`: the one that a take would get; `delayed`: the one that becomes ready next; `buried`: the one
                that is kicked next.

        Returns:
            The task, or None if there is none.
        """
        return self._found(self._client._run(calls.peek_next(self.name, state)))

    def put_unique(self, data: Any, *, conn: Conn | None = None, **options: Unpack[PutArguments]) -> Picked | None:
        """Put a task unless the queue has one like it that is not done.

        Args:
            data: anything that JSON can hold.
            conn, options: as for put; its key is what makes it unique, by default a digest of the data.

        Returns:
            The task, or None if there was one already.

        Raises:
            PutRefused, ConnectionLost: as put.
        """
        placed = self._placed(data, _unique(self._client._encode(data), options), conn)
        return None if placed.existed else placed

    def urgent(self, data: Any, *, conn: Conn | None = None, **options: Unpack[PutArguments]) -> Picked:
        """Put a task that comes before all that are ready now, whatever their priority.

        Args:
            data: anything that JSON can hold.
            conn, options: as for put, but for the priority, which is 1 below the lowest.

        Raises:
            PutRefused, ConnectionLost: as put.
            ValueError: also where the queue's type has no priority.
        """
        priority = self._client._run(calls.urgent_priority(self.name), conn)
        return self._placed(data, replace(PutOptions.of(options), priority=priority), conn)

    def requeue(self, task: TaskLike, *, conn: Conn | None = None) -> int:
        """Give a task back behind all others of its priority, by its id too, if this client's session holds it.

        The place in a queue is (priority, id), so it has a new id from then on; all else of it stays.

        Returns:
            The new id.

        Raises:
            TakeLost: as for Task.ack.
        """
        return self._requeue(*named(task), conn)[0]

    def delete(self, task: TaskLike, *, strict: bool = False, conn: Conn | None = None) -> None:
        """Remove a task, in whatever state it is.

        Args:
            task: the task, or its id.
            strict: not if somebody else has taken it, as beanstalkd's delete.
            conn: a connection of the caller's, to delete in its transaction; if strict, at READ COMMITTED.

        Raises:
            TaskNotFound: it is gone.
            TaskTakenByOther: if strict.
        """
        id, token = named(task)
        self._client._run(_delete(id, self._client._fence(token), strict), conn)

    def kick(self, n: int = 1, *, delayed: bool = False) -> int:
        """Make up to `n` buried tasks ready, lowest (priority, id) first; returns how many.

        Args:
            n: how many at most.
            delayed: if none is buried, those that are delayed, the next that is due first. As beanstalkd's kick.
        """
        return self._client._run(calls.kick(self.name, n, delayed))

    def kick_task(self, task: TaskLike, *, conn: Conn | None = None) -> bool:
        """Make one task ready that is buried or delayed, as beanstalkd's kick-job; False if it is neither.

        Raises:
            TaskNotFound: it is gone.
        """
        return self._client._run(calls.kick_task(named(task)[0]), conn) is not None

    def task_stats(self, task: TaskLike) -> TaskStats:
        """What happened to a task so far: its age, and how often it was taken, released, buried, kicked.

        Raises:
            TaskNotFound: it is gone.
        """
        return self._client._run(calls.task_stats(named(task)[0]))

    def _placed(self, data: Any, options: PutOptions, conn: Conn | None) -> Picked:
        client = self._client
        client._prepare_put(self.name, conn, in_lanes=options.in_lanes)
        placed = client._run(putting.put(self.name, client._encode(data), options), conn)
        return from_placed(self._task_type, placed, self.name, data, options, _queue=self)

    def _requeue(self, id: int, token: int | None, conn: Conn | None) -> tuple[int, str]:
        return self._client._run(calls.requeue(id, self._client._fence(token)), conn)


@mirrors(QueuePicking)
class AsyncQueuePicking(_Picking[Picked]):
    _client: AsyncShell

    async def take_id(self, task: TaskLike) -> Picked:
        client = self._client
        id, listener = named(task)[0], await client._listener()
        flow = flows.take_id(client._core, listener, LoopSignal, id)
        (taken,) = client._made(await client._drive(flow), self._taken)
        return taken

    async def peek_next(self, state: str = "ready") -> Picked | None:
        return self._found(await self._client._run(calls.peek_next(self.name, state)))

    async def put_unique(
        self, data: Any, *, conn: AsyncConn | None = None, **options: Unpack[PutArguments]
    ) -> Picked | None:
        placed = await self._placed(data, _unique(self._client._encode(data), options), conn)
        return None if placed.existed else placed

    async def urgent(self, data: Any, *, conn: AsyncConn | None = None, **options: Unpack[PutArguments]) -> Picked:
        priority = await self._client._run(calls.urgent_priority(self.name), conn)
        return await self._placed(data, replace(PutOptions.of(options), priority=priority), conn)

    async def requeue(self, task: TaskLike, *, conn: AsyncConn | None = None) -> int:
        return (await self._requeue(*named(task), conn))[0]

    async def delete(self, task: TaskLike, *, strict: bool = False, conn: AsyncConn | None = None) -> None:
        id, token = named(task)
        await self._client._run(_delete(id, self._client._fence(token), strict), conn)

    async def kick(self, n: int = 1, *, delayed: bool = False) -> int:
        return await self._client._run(calls.kick(self.name, n, delayed))

    async def kick_task(self, task: TaskLike, *, conn: AsyncConn | None = None) -> bool:
        return await self._client._run(calls.kick_task(named(task)[0]), conn) is not None

    async def task_stats(self, task: TaskLike) -> TaskStats:
        return await self._client._run(calls.task_stats(named(task)[0]))

    async def _placed(self, data: Any, options: PutOptions, conn: AsyncConn | None) -> Picked:
        client = self._client
        await client._prepare_put(self.name, conn, in_lanes=options.in_lanes)
        placed = await client._run(putting.put(self.name, client._encode(data), options), conn)
        return from_placed(self._task_type, placed, self.name, data, options, _queue=self)

    async def _requeue(self, id: int, token: int | None, conn: AsyncConn | None) -> tuple[int, str]:
        return await self._client._run(calls.requeue(id, self._client._fence(token)), conn)


class TaskPicking(TaskRecord):
    __slots__ = ()
    _queue: QueuePicking[Any]

    def delete(self, *, strict: bool = False) -> None:
        """Remove the task, in whatever state it is; see Queue.delete. Raises TaskNotFound if it is gone."""
        self._queue.delete(self, strict=strict)

    def kick(self) -> bool:
        """Make the task ready, if it is buried or delayed; see Queue.kick_task."""
        return self._queue.kick_task(self)

    def requeue(self, *, conn: Conn | None = None) -> Self:
        """Give the task back behind all others of its priority; see Queue.requeue. Returns it with its new id."""
        return _moved(self, *self._queue._requeue(self.id, self.token, conn))

    def stats(self) -> TaskStats:
        """What happened to the task so far; see Queue.task_stats."""
        return self._queue.task_stats(self)


@mirrors(TaskPicking)
class AsyncTaskPicking(TaskRecord):
    __slots__ = ()
    _queue: AsyncQueuePicking[Any]

    async def delete(self, *, strict: bool = False) -> None:
        await self._queue.delete(self, strict=strict)

    async def kick(self) -> bool:
        return await self._queue.kick_task(self)

    async def requeue(self, *, conn: AsyncConn | None = None) -> Self:
        return _moved(self, *await self._queue._requeue(self.id, self.token, conn))

    async def stats(self) -> TaskStats:
        return await self._queue.task_stats(self)


def _delete(id: int, fence: Fence, strict: bool) -> Call[None]:
    return calls.delete_strict(id, fence) if strict else calls.delete(id)


def _moved(task: Picked, new_id: int, state: str) -> Picked:
    return settled(replace(task, id=new_id), state)


def _unique(text: str, given: PutArguments) -> PutOptions:
    """With a key that is equal for what jsonb calls equal, if none was given: whatever the order of the names."""
    options = replace(PutOptions.of(given), if_exists="ignore")
    if options.key is not None:
        return options
    digest = hashlib.sha256(json.dumps(json_data.decode(text), sort_keys=True).encode()).hexdigest()
    return replace(options, key=digest)
