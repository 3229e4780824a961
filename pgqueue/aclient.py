"""The awaiting shell: AsyncClient, AsyncQueue and AsyncTask, the mirror of client.py.

The names, parameters and docstrings are those of the blocking shell (a test compares them); only the I/O differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import psycopg

from . import arguments, calls, client, flows
from .base import mirrors
from .calls import Options
from .calls.routes import QueueOptions, create_queue
from .channels import AsyncChannels
from .client import SettleMany
from .locks import AsyncLocking
from .nodes import AsyncNodes
from .outcomes import AsyncQueueOutcomes, AsyncTaskOutcomes
from .routing import AsyncRouting
from .shell import LoopSignal
from .statuses import AsyncStatuses
from .task import Stats, TaskLike, from_found, from_popped, from_taken, named, settled

Conn = psycopg.AsyncConnection[Any]


@mirrors(client.Task)
@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncTask(AsyncTaskOutcomes):
    _queue: AsyncQueue = field(repr=False, compare=False)

    async def ack(self, *, conn: Conn | None = None) -> AsyncTask:
        return settled(self, await self._queue._ack(self.id, self.token, conn))

    async def release(self, delay: float = 0, *, error: str | None = None, conn: Conn | None = None) -> AsyncTask:
        return settled(self, await self._queue._release(self.id, self.token, delay, error, conn))

    async def bury(self, *, error: str | None = None, conn: Conn | None = None) -> AsyncTask:
        return settled(self, await self._queue._bury(self.id, self.token, error, conn))

    async def touch(self, more: float | None = None, *, conn: Conn | None = None) -> AsyncTask:
        return settled(self, await self._queue._touch(self.id, self.token, more, conn))

    async def peek(self) -> AsyncTask:
        return await self._queue.peek(self.id)

    async def delete(self) -> None:
        await self._queue.delete(self.id)


@mirrors(client.Queue)
class AsyncQueue(AsyncQueueOutcomes):
    _client: AsyncClient

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.name = arguments.queue_name(name)
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def put(
        self,
        data: Any,
        *,
        priority: int | None = None,
        delay: float | None = None,
        ttr: float | None = None,
        ttl: float | None = None,
        conn: Conn | None = None,
    ) -> AsyncTask:
        client = self._client
        text = client._encode(data)
        options = Options(priority, delay, ttr, ttl)
        id, state = await client._put(self.name, calls.put(self.name, text, options), conn)
        return AsyncTask(id=id, queue=self.name, state=state, data=data, _queue=self)

    async def put_many(
        self,
        items: Iterable[Any],
        *,
        priority: int | None = None,
        delay: float | None = None,
        ttr: float | None = None,
        ttl: float | None = None,
        conn: Conn | None = None,
    ) -> list[int]:
        options = Options(priority, delay, ttr, ttl)
        client = self._client
        if conn is not None:
            return await client._put(self.name, calls.put_many(self.name, client._encode_many(items), options), conn)
        many = (calls.put_many(self.name, text, options) for text in client._encode_chunks(items))
        return [id for ids in await client._connections.run_all(many) for id in ids]

    async def take(self, timeout: float | None = None) -> AsyncTask | None:
        return next(iter(await self._client._take([self.name], 1, timeout)), None)

    async def take_many(self, n: int, timeout: float | None = None) -> list[AsyncTask]:
        return await self._client._take([self.name], n, timeout)

    async def pop(self, n: int = 1, *, conn: Conn | None = None) -> list[AsyncTask]:
        call = calls.pop(self.name, n, self._client._fence(None).session)
        rows = await self._client._run(call, conn)
        return [from_popped(AsyncTask, row, self.name, _queue=self) for row in rows]

    async def ack(self, task: TaskLike, *, conn: Conn | None = None) -> None:
        await self._ack(*named(task), conn)

    async def ack_many(self, tasks: Iterable[TaskLike], *, conn: Conn | None = None) -> None:
        await self._settle_many(calls.ack_many, tasks, conn)

    async def release(
        self, task: TaskLike, delay: float = 0, *, error: str | None = None, conn: Conn | None = None
    ) -> None:
        await self._release(*named(task), delay, error, conn)

    async def release_many(self, tasks: Iterable[TaskLike], *, conn: Conn | None = None) -> None:
        await self._settle_many(calls.release_many, tasks, conn)

    async def bury(self, task: TaskLike, *, error: str | None = None, conn: Conn | None = None) -> None:
        await self._bury(*named(task), error, conn)

    async def touch(self, task: TaskLike, more: float | None = None, *, conn: Conn | None = None) -> None:
        await self._touch(*named(task), more, conn)

    async def peek(self, task: TaskLike) -> AsyncTask:
        return from_found(AsyncTask, await self._client._run(calls.peek(named(task)[0])), _queue=self)

    async def delete(self, task: TaskLike, *, conn: Conn | None = None) -> None:
        await self._client._run(calls.delete(named(task)[0]), conn)

    async def kick(self, n: int = 1) -> int:
        return await self._client._run(calls.kick(self.name, n))

    async def stats(self) -> Stats:
        return await self._client._run(calls.stats(self.name))

    # --- shared by the queue's verbs and the task's

    async def _ack(self, id: int, token: int | None, conn: Conn | None) -> str:
        return await self._client._run(calls.ack(id, self._client._fence(token)), conn)

    async def _release(self, id: int, token: int | None, delay: float, error: str | None, conn: Conn | None) -> str:
        call = calls.release(id, self._client._fence(token), delay, error)
        return await self._client._run(call, conn, relaxed=True)

    async def _bury(self, id: int, token: int | None, error: str | None, conn: Conn | None) -> str:
        return await self._client._run(calls.bury(id, self._client._fence(token), error), conn)

    async def _touch(self, id: int, token: int | None, more: float | None, conn: Conn | None) -> str:
        return await self._client._run(calls.touch(id, self._client._fence(token), more), conn, relaxed=True)

    async def _settle_many(self, make: SettleMany, tasks: Iterable[TaskLike], conn: Conn | None) -> None:
        fence = self._client._fence(None)
        call = make([named(task) for task in tasks], fence)
        calls.insist(await self._client._run(call, conn), fence)


@mirrors(client.Client)
class AsyncClient(AsyncChannels, AsyncLocking, AsyncNodes, AsyncRouting, AsyncStatuses):
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def queue(self, name: str) -> AsyncQueue:
        return AsyncQueue(self, name)

    async def create_queue(
        self,
        name: str,
        *,
        priority: int | None = None,
        delay: float | None = None,
        ttr: float | None = None,
        ttl: float | None = None,
        maxlen: int | None = None,
        max_takes: int | None = None,
        dead_letter: str | None = None,
        dead_letter_key: str | None = None,
        exclusive: bool = False,
        auto_delete: bool = False,
    ) -> AsyncQueue:
        queue = AsyncQueue(self, name)
        options = QueueOptions(
            priority=priority,
            delay=delay,
            ttr=ttr,
            ttl=ttl,
            maxlen=maxlen,
            max_takes=max_takes,
            dead_letter=dead_letter,
            dead_letter_key=dead_letter_key,
            exclusive=exclusive,
            auto_delete=auto_delete,
        )
        call = create_queue(name, options)
        await (self._on_session(call) if exclusive else self._run(call))
        return queue

    async def take(self, queues: Sequence[str], timeout: float | None = None) -> AsyncTask | None:
        return next(iter(await self._take(arguments.queue_names(queues), 1, timeout)), None)

    async def take_many(self, queues: Sequence[str], n: int, timeout: float | None = None) -> list[AsyncTask]:
        return await self._take(arguments.queue_names(queues), n, timeout)

    async def close(self) -> None:
        await asyncio.to_thread(self._core.close)
        await self._connections.close()

    async def _take(self, queues: list[str], n: int, timeout: float | None) -> list[AsyncTask]:
        n, timeout = arguments.count("n", n), arguments.timeout(timeout)
        flow = flows.take(self._core, await self._listener(), LoopSignal, queues, n, timeout)
        rows = await self._drive(flow)
        return self._made(rows, lambda row: from_taken(AsyncTask, row, _queue=AsyncQueue(self, row.queue)))
