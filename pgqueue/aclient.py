"""The awaiting client: the mirror of client.py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Self, Unpack

from . import arguments, client, flows, room
from .aqueues import AsyncQueue, AsyncTask
from .base import mirrors
from .borrowed import AsyncConn as Conn
from .calls import Call, putting
from .calls.management import QueueArguments
from .calls.putting import Placed, PutManyOptions, PutOptions
from .changes import AsyncChanges
from .channels import AsyncChannels
from .locks import AsyncLocking
from .management import AsyncManagement
from .nodes import AsyncNodes
from .shell import LoopSignal
from .statuses import AsyncStatuses
from .task import from_taken


@mirrors(client.Client)
class AsyncClient(AsyncChannels, AsyncLocking, AsyncNodes, AsyncStatuses, AsyncChanges, AsyncManagement):
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def queue(self, name: str) -> AsyncQueue:
        return AsyncQueue(self, name)

    async def create_queue(
        self, name: str, *, if_not_exists: bool = False, **options: Unpack[QueueArguments]
    ) -> AsyncQueue:
        queue = AsyncQueue(self, name)
        await self._create_queue(name, options, if_not_exists)
        return queue

    async def take(
        self, queues: Sequence[str], timeout: float | None = None, *, deadline_soon: bool = False
    ) -> AsyncTask | None:
        return next(iter(await self._take(arguments.queue_names(queues), 1, timeout, deadline_soon)), None)

    async def take_many(self, queues: Sequence[str], n: int, timeout: float | None = None) -> list[AsyncTask]:
        return await self._take(arguments.queue_names(queues), n, timeout)

    async def close(self) -> None:
        await asyncio.to_thread(self._core.close)
        await self._connections.close()

    async def _put(
        self, queue: str, call: Call[Placed], options: PutOptions, conn: Conn | None, timeout: float | None
    ) -> Placed:
        timeout = room.check(timeout, in_transaction=conn is not None)
        await self._prepare_put(queue, conn, in_lanes=options.in_lanes)
        if timeout is None or timeout == 0:
            return await self._run(call, conn)
        return await self._drive(room.put(self._core, await self._listener(), LoopSignal, queue, call, timeout))

    async def _put_many(
        self, queue: str, items: Iterable[Any], options: PutManyOptions, conn: Conn | None
    ) -> list[int]:
        await self._prepare_put(queue, conn, in_lanes=options.in_lanes)
        if conn is not None or options.whole:
            return await self._run(putting.put_many(queue, self._encode_many(items), options), conn)
        many = (putting.put_many(queue, text, options) for text in self._encode_chunks(items))
        return [id for ids in await self._connections.run_all(many) for id in ids]

    async def _take(
        self, queues: list[str], n: int, timeout: float | None, deadline_soon: bool = False
    ) -> list[AsyncTask]:
        n, timeout = arguments.count("n", n), arguments.timeout(timeout)
        listener = await self._listener()
        flow = flows.take(self._core, listener, LoopSignal, queues, n, timeout, deadline_soon=deadline_soon)
        rows = await self._drive(flow)
        return self._made(rows, lambda row: from_taken(AsyncTask, row, _queue=AsyncQueue(self, row.queue)))
