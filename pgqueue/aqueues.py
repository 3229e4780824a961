"""A queue and its tasks, as the awaiting shell offers them: the mirror of queues.py.

The names, parameters and docstrings are those of the blocking shell (a test compares them); only the I/O differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack, overload

from . import arguments, calls, queues
from .base import mirrors
from .borrowed import AsyncConn as Conn
from .calls import Return, counting, putting
from .calls.counting import Stats
from .calls.putting import PutArguments, PutManyArguments, PutManyOptions, PutOptions
from .changes import AsyncQueueChanges
from .claims import AsyncQueueClaims
from .handing import AsyncTaskHanding
from .management import AsyncQueueManagement
from .outcomes import AsyncQueueOutcomes, AsyncTaskOutcomes
from .picking import AsyncQueuePicking, AsyncTaskPicking
from .puts import Put
from .queues import SettleMany
from .task import TaskLike, from_found, from_placed, from_popped, named, settled

if TYPE_CHECKING:
    from .aclient import AsyncClient


@mirrors(queues.Task)
@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncTask(AsyncTaskHanding, AsyncTaskOutcomes, AsyncTaskPicking):
    _queue: AsyncQueue = field(repr=False, compare=False)

    async def ack(self, *, put: Sequence[Put] = (), conn: Conn | None = None) -> AsyncTask:
        return settled(self, await self._queue._ack(self.id, self.token, put, conn))

    async def release(
        self,
        delay: float = 0,
        *,
        every: float | None = None,
        priority: int | None = None,
        error: str | None = None,
        conn: Conn | None = None,
    ) -> AsyncTask:
        return settled(
            self, await self._queue._release(self.id, self.token, Return(delay, every, priority, error), conn)
        )

    async def bury(
        self, *, priority: int | None = None, error: str | None = None, conn: Conn | None = None
    ) -> AsyncTask:
        return settled(self, await self._queue._bury(self.id, self.token, priority, error, conn))

    async def touch(self, more: float | None = None, *, conn: Conn | None = None) -> AsyncTask:
        return settled(self, await self._queue._touch(self.id, self.token, more, conn))

    async def peek(self) -> AsyncTask:
        return await self._queue.peek(self.id)


@mirrors(queues.Queue)
class AsyncQueue(
    AsyncQueueOutcomes,
    AsyncQueueClaims[AsyncTask],
    AsyncQueueChanges,
    AsyncQueueManagement,
    AsyncQueuePicking[AsyncTask],
):
    _client: AsyncClient
    _task_type = AsyncTask

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.name = arguments.queue_name(name)
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @overload
    async def put(
        self, data: Any, *, timeout: None = None, conn: Conn | None = None, **options: Unpack[PutArguments]
    ) -> AsyncTask: ...
    @overload
    async def put(
        self, data: Any, *, timeout: float, conn: None = None, **options: Unpack[PutArguments]
    ) -> AsyncTask | None: ...
    async def put(
        self,
        data: Any,
        *,
        timeout: float | None = None,
        conn: Conn | None = None,
        **options: Unpack[PutArguments],
    ) -> AsyncTask | None:
        client, put = self._client, PutOptions.of(options)
        call = putting.put(self.name, client._encode(data), put)
        placed = await client._put(self.name, call, put, conn, timeout)
        if placed.id is None and timeout is not None:
            return None
        return from_placed(AsyncTask, placed, self.name, data, put, _queue=self)

    async def put_many(
        self, items: Iterable[Any], *, conn: Conn | None = None, **options: Unpack[PutManyArguments]
    ) -> list[int]:
        return await self._client._put_many(self.name, items, PutManyOptions.of(options), conn)

    async def take(self, timeout: float | None = None, *, deadline_soon: bool = False) -> AsyncTask | None:
        return next(iter(await self._client._take([self.name], 1, timeout, deadline_soon)), None)

    async def take_many(self, n: int, timeout: float | None = None) -> list[AsyncTask]:
        return await self._client._take([self.name], n, timeout)

    async def pop(self, n: int = 1, *, conn: Conn | None = None) -> list[AsyncTask]:
        call = calls.pop(self.name, n, self._client._fence(None).session)
        rows = await self._client._run(call, conn)
        return [from_popped(AsyncTask, row, self.name, _queue=self) for row in rows]

    async def ack(self, task: TaskLike, *, put: Sequence[Put] = (), conn: Conn | None = None) -> None:
        await self._ack(*named(task), put, conn)

    async def ack_many(self, tasks: Iterable[TaskLike], *, conn: Conn | None = None) -> None:
        await self._settle_many(calls.ack_many, tasks, conn)

    async def release(
        self,
        task: TaskLike,
        delay: float = 0,
        *,
        every: float | None = None,
        priority: int | None = None,
        error: str | None = None,
        conn: Conn | None = None,
    ) -> None:
        await self._release(*named(task), Return(delay, every, priority, error), conn)

    async def release_many(self, tasks: Iterable[TaskLike], *, conn: Conn | None = None) -> None:
        await self._settle_many(calls.release_many, tasks, conn)

    async def bury(
        self, task: TaskLike, *, priority: int | None = None, error: str | None = None, conn: Conn | None = None
    ) -> None:
        await self._bury(*named(task), priority, error, conn)

    async def touch(self, task: TaskLike, more: float | None = None, *, conn: Conn | None = None) -> None:
        await self._touch(*named(task), more, conn)

    async def peek(self, task: TaskLike) -> AsyncTask:
        return from_found(AsyncTask, await self._client._run(calls.peek(named(task)[0])), _queue=self)

    async def stats(self) -> Stats:
        return await self._client._run(counting.stats(self.name))

    # --- shared by the queue's verbs and the task's

    async def _ack(self, id: int, token: int | None, put: Sequence[Put], conn: Conn | None) -> str:
        client = self._client
        call = calls.ack(id, client._fence(token), client._encode_puts(put))
        for one in put:
            await client._prepare_put(one.queue, conn, in_lanes=one.options.in_lanes)
        return await client._run(call, conn)

    async def _release(self, id: int, token: int | None, how: Return, conn: Conn | None) -> str:
        return await self._client._run(calls.release(id, self._client._fence(token), how), conn, relaxed=True)

    async def _bury(
        self, id: int, token: int | None, priority: int | None, error: str | None, conn: Conn | None
    ) -> str:
        return await self._client._run(calls.bury(id, self._client._fence(token), error, priority), conn)

    async def _touch(self, id: int, token: int | None, more: float | None, conn: Conn | None) -> str:
        return await self._client._run(calls.touch(id, self._client._fence(token), more), conn, relaxed=True)

    async def _settle_many(self, make: SettleMany, tasks: Iterable[TaskLike], conn: Conn | None) -> None:
        fence = self._client._fence(None)
        call = make([named(task) for task in tasks], fence)
        calls.insist(await self._client._run(call, conn), fence)
