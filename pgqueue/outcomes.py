"""The verbs of queues and tasks that keep what a task came to, or say how far it is. Both shells."""

from __future__ import annotations

from typing import Any, Self

from .base import mirrors
from .borrowed import AsyncConn, Conn
from .calls import statuses as calls
from .calls.statuses import TaskStatus
from .statuses import AsyncStatuses, Statuses
from .task import TaskLike, TaskRecord, named, settled

KEEP = 3600.0  # seconds


class QueueOutcomes:
    _client: Statuses

    def finish(self, task: TaskLike, result: Any = None, *, keep: float = KEEP, conn: Conn | None = None) -> None:
        """Ack a task and keep its result, by its id too, if this client's session holds it; see Task.finish."""
        self._finish(*named(task), result, keep, conn)

    def fail(self, task: TaskLike, error: str | None = None, *, keep: float = KEEP, conn: Conn | None = None) -> None:
        """Bury a task and keep that it failed. By id alone anybody may, as with bury; see Task.fail."""
        self._fail(*named(task), error, keep, conn)

    def _finish(self, id: int, token: int | None, result: Any, keep: float, conn: Conn | None) -> str:
        client = self._client
        return client._run(calls.finish(id, client._fence(token), client._encode(result), keep), conn)

    def _fail(self, id: int, token: int | None, error: str | None, keep: float, conn: Conn | None) -> str:
        return self._client._run(calls.fail(id, self._client._fence(token), error, keep), conn)

    def _progress(self, id: int, token: int | None, value: Any) -> None:
        client = self._client
        client._run(calls.progress(id, client._fence(token), client._encode(value)), relaxed=True)


@mirrors(QueueOutcomes)
class AsyncQueueOutcomes:
    _client: AsyncStatuses

    async def finish(
        self, task: TaskLike, result: Any = None, *, keep: float = KEEP, conn: AsyncConn | None = None
    ) -> None:
        await self._finish(*named(task), result, keep, conn)

    async def fail(
        self, task: TaskLike, error: str | None = None, *, keep: float = KEEP, conn: AsyncConn | None = None
    ) -> None:
        await self._fail(*named(task), error, keep, conn)

    async def _finish(self, id: int, token: int | None, result: Any, keep: float, conn: AsyncConn | None) -> str:
        client = self._client
        return await client._run(calls.finish(id, client._fence(token), client._encode(result), keep), conn)

    async def _fail(self, id: int, token: int | None, error: str | None, keep: float, conn: AsyncConn | None) -> str:
        return await self._client._run(calls.fail(id, self._client._fence(token), error, keep), conn)

    async def _progress(self, id: int, token: int | None, value: Any) -> None:
        client = self._client
        await client._run(calls.progress(id, client._fence(token), client._encode(value)), relaxed=True)


class TaskOutcomes(TaskRecord):
    __slots__ = ()
    _queue: QueueOutcomes

    def status(self) -> TaskStatus:
        """What is known of the task now, also after its end; see Client.task_status."""
        return self._queue._client.task_status(self)

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the task's result, and return it; see Client.result."""
        return self._queue._client.result(self, timeout)

    def finish(self, result: Any = None, *, keep: float = KEEP, conn: Conn | None = None) -> Self:
        """Ack the task and keep its result, both or neither. A worker does so for a handler with keep_result.

        Args:
            result: anything that JSON can hold; what Client.result() returns.
            keep: for how many seconds.
            conn: a connection of the caller's, to finish in its transaction.

        Returns:
            The task, in the state `done`.

        Raises:
            BadData: JSON or jsonb cannot hold the result, or it is over max_data_size.
            ValueError: `keep` is not above 0.
            TakeLost: as for ack; nothing is kept.
        """
        return settled(self, self._queue._finish(self.id, self.token, result, keep, conn))

    def fail(self, error: str | None = None, *, keep: float = KEEP, conn: Conn | None = None) -> Self:
        """Bury the task and keep that it failed for good: who waits for its result gets TaskFailed.

        Args:
            error: why.
            keep: for how many seconds.
            conn: a connection of the caller's, to fail in its transaction.

        Raises:
            ValueError: `keep` is not above 0.
            TakeLost: as for ack.
        """
        return settled(self, self._queue._fail(self.id, self.token, error, keep, conn))

    def progress(self, value: Any) -> None:
        """Say how far the task is, for Client.task_status() and Client.follow(). It shows as long as this take lasts.

        Args:
            value: anything that JSON can hold. Each report is a commit and a notification of its own.

        Raises:
            BadData: JSON or jsonb cannot hold the value, or it is over max_data_size.
            TakeLost: as for ack: a sign to stop working on it.
        """
        self._queue._progress(self.id, self.token, value)


@mirrors(TaskOutcomes)
class AsyncTaskOutcomes(TaskRecord):
    __slots__ = ()
    _queue: AsyncQueueOutcomes

    async def status(self) -> TaskStatus:
        return await self._queue._client.task_status(self)

    async def result(self, timeout: float | None = None) -> Any:
        return await self._queue._client.result(self, timeout)

    async def finish(self, result: Any = None, *, keep: float = KEEP, conn: AsyncConn | None = None) -> Self:
        return settled(self, await self._queue._finish(self.id, self.token, result, keep, conn))

    async def fail(self, error: str | None = None, *, keep: float = KEEP, conn: AsyncConn | None = None) -> Self:
        return settled(self, await self._queue._fail(self.id, self.token, error, keep, conn))

    async def progress(self, value: Any) -> None:
        await self._queue._progress(self.id, self.token, value)
