"""Acks of several connections share a statement, and with it a commit.

One statement is under way at a time. Acks that arrive during it wait for their turn, and the first of them then sends
them all. So a single connection waits for nothing, and each of a hundred waits for two statements.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import psycopg

from .. import AsyncClient, AsyncTask
from .._calls import ack as calls
from ..errors import ConnectionLost, Error, LockBlocked, ServerError, refusal

OPEN = (ConnectionLost, ServerError, LockBlocked)  # after these a take may still be held


@dataclass(eq=False, slots=True)
class Ack:
    """An ack, and its outcome."""

    task: AsyncTask
    ended: bool = False
    error: Exception | None = None


class Acks:
    """The acks of all connections."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._turn = asyncio.Lock()
        self._next: list[Ack] = []

    async def ack(self, task: AsyncTask) -> None:
        """Ack a task. Raises as Task.ack."""
        own = Ack(task)
        self._next.append(own)
        async with self._turn:
            while not own.ended:
                batch = self._batch()
                try:
                    await self._send(batch)
                finally:
                    for ack in batch:
                        if not ack.ended:  # the server ends
                            ack.error, ack.ended = ConnectionLost("whether the task was acked is unknown"), True
        if own.error is not None:
            raise own.error

    def _batch(self) -> list[Ack]:
        """The acks that are sent next. Of a task that was reserved again after its time only the first."""
        first = {ack.task.id: ack for ack in reversed(self._next)}
        self._next = [ack for ack in self._next if first[ack.task.id] is not ack]
        return list(first.values())

    async def _send(self, batch: list[Ack]) -> None:
        """Ack the tasks, and give each ack its answer."""
        if len(batch) == 1:
            await self._send_one(batch[0])
            return
        shell, takes = self._client.shell, [(ack.task.id, ack.task.token) for ack in batch]
        fence = shell.fence()
        try:
            refused = {one.id: one for one in await shell.run(calls.ack_many(takes, fence))}
        except OPEN as error:
            shell.left(takes)
            for ack in batch:
                ack.error, ack.ended = error, True
        except (Error, psycopg.Error):  # of one of them: all others are acked
            for ack in batch:
                await self._send_one(ack)
        else:
            for ack in batch:
                if (one := refused.get(ack.task.id)) is not None:
                    ack.error = refusal(one.id, one.state, one.problem, one.holder, fence.me)
                ack.ended = True

    async def _send_one(self, ack: Ack) -> None:
        try:
            await ack.task.ack()
        except (Error, psycopg.Error) as error:
            ack.error = error
        ack.ended = True
