"""Handing a task on to another queue, the relay of several workers. Both shells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, Unpack

from .base import mirrors
from .borrowed import AsyncConn, Conn
from .calls.putting import PutArguments
from .puts import Put
from .task import TaskRecord, settled


class _Acking(Protocol):
    def _ack(self, id: int, token: int | None, put: Sequence[Put], conn: Conn | None) -> str: ...


class _AsyncAcking(Protocol):
    async def _ack(self, id: int, token: int | None, put: Sequence[Put], conn: AsyncConn | None) -> str: ...


class TaskHanding(TaskRecord):
    __slots__ = ()
    _queue: _Acking

    def forward(
        self, queue: str, data: Any = None, *, conn: Conn | None = None, **options: Unpack[PutArguments]
    ) -> Self:
        """Hand the task on: it is acked here and put there in one statement, so it is never in both nor in neither.

        Args:
            queue: the name of the queue that gets it, as a new task. May be the task's own.
            data: of the new task; None, the default, is this task's data. (`ack(put=[Put(queue, None)])` puts a null.)
            options: those of Queue.put. None of them is taken over from this task.
            conn: a connection of the caller's, to hand on in its transaction.

        Returns:
            The task, in the state `done`.

        Raises:
            TakeLost: as for ack; nothing is put.
            BadData, ValueError, PutRefused: as for Queue.put; the task is still taken.
        """
        put = Put(queue, self.data if data is None else data, **options)
        return settled(self, self._queue._ack(self.id, self.token, [put], conn))


@mirrors(TaskHanding)
class AsyncTaskHanding(TaskRecord):
    __slots__ = ()
    _queue: _AsyncAcking

    async def forward(
        self, queue: str, data: Any = None, *, conn: AsyncConn | None = None, **options: Unpack[PutArguments]
    ) -> Self:
        put = Put(queue, self.data if data is None else data, **options)
        return settled(self, await self._queue._ack(self.id, self.token, [put], conn))
