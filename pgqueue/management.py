"""Managing queues: their options, and what is done to one as a whole. Both shells."""

from __future__ import annotations

from typing import Unpack

from .base import mirrors
from .calls import management as calls
from .calls.management import AlterArguments, QueueArguments, QueueInfo, QueueOptions
from .routing import AsyncRouting, Routing


class Management(Routing):
    def queues(self, *, prefix: str = "", marker: str | None = None, limit: int | None = None) -> list[QueueInfo]:
        """The queues that there are, with their options, by name.

        Args:
            prefix: only those whose names begin so.
            marker: only those whose names come after this one: the last of the page before, as in Zaqar.
            limit: how many at most; None for all.
        """
        return self._run(calls.queues(prefix, marker, limit))

    def delete_queue(self, name: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Remove a queue with its tasks, whoever holds them, and its bindings. As AMQP's queue.delete.

        Args:
            name: the queue's name. A put makes a new one of the same name.
            if_empty: refuse while it holds tasks, in whatever state.
            if_unused: refuse while somebody holds a task of it, or waits for one. As Tarantool's drop.

        Returns:
            How many tasks were removed.

        Raises:
            NoQueue: it is not there.
            QueueInUse: as was asked for.
        """
        return self._run(calls.delete_queue(name, if_empty, if_unused))

    def drain(self, on: bool = True) -> None:
        """Let nothing be put any more, into any queue: a put raises QueueDraining. As beanstalkd's drain mode.

        What is there is taken as ever. Queues that are made meanwhile are draining too. `drain(False)` ends it for all
        of them, also for those that were drained by themselves.
        """
        self._run(calls.drain_queues(on))

    def state(self) -> str:
        """`running`; or `read only`, on a standby for example: there calls raise NotRunning."""
        return self._run(calls.state())

    def _create_queue(self, name: str, given: QueueArguments, if_not_exists: bool) -> None:
        options = QueueOptions.of(given)
        call = calls.create_queue(name, options, if_not_exists)
        self._on_session(call) if options.of_session else self._run(call)


@mirrors(Management)
class AsyncManagement(AsyncRouting):
    async def queues(self, *, prefix: str = "", marker: str | None = None, limit: int | None = None) -> list[QueueInfo]:
        return await self._run(calls.queues(prefix, marker, limit))

    async def delete_queue(self, name: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        return await self._run(calls.delete_queue(name, if_empty, if_unused))

    async def drain(self, on: bool = True) -> None:
        await self._run(calls.drain_queues(on))

    async def state(self) -> str:
        return await self._run(calls.state())

    async def _create_queue(self, name: str, given: QueueArguments, if_not_exists: bool) -> None:
        options = QueueOptions.of(given)
        call = calls.create_queue(name, options, if_not_exists)
        await (self._on_session(call) if options.of_session else self._run(call))


class QueueManagement:
    _client: Management
    name: str

    def info(self) -> QueueInfo:
        """The queue with all its options. Raises NoQueue: nobody has made it, not even by a put."""
        return self._client._run(calls.queue(self.name))

    def alter(self, **options: Unpack[AlterArguments]) -> None:
        """Change options of the queue, and leave the others. Tasks that are there keep what they were put with.

        Args:
            options: those of Client.create_queue, but for type, exclusive, temporary and listed. None is the default.

        Raises:
            NoQueue: it is not there.
            NoExchange: there is no such exchange for dead letters.
            ValueError: an option cannot be, or not be altered, or the queue's type lacks it.
        """
        self._client._run(calls.alter_queue(self.name, options))

    def rename(self, name: str) -> None:
        """Give the queue, and this handle, another name. Its tasks, who holds them, and its bindings stay.

        Whoever still uses the old name makes a new queue of it.

        Raises:
            NoQueue: it is not there.
            QueueExists: there is one of this name.
            ValueError: the name cannot be.
        """
        self._client._run(calls.rename_queue(self.name, name))
        self.name = name

    def pause(self, seconds: float) -> None:
        """Let nothing be taken for so many seconds; 0 ends a pause. As beanstalkd's pause-tube.

        Puts go on, and so do those who hold tasks. Waiting takes are served when the pause is over. Only take_id takes
        from a paused queue.

        Raises:
            ValueError: the time is negative, NaN or not a number.
        """
        self._client._run(calls.pause_queue(self.name, seconds))

    def drain(self, on: bool = True) -> None:
        """Let nothing be put into the queue any more, until `drain(False)`: a put raises QueueDraining."""
        self._client._run(calls.drain_queue(self.name, on))

    def truncate(self) -> int:
        """Remove all tasks of the queue, in whatever state, whoever holds them; returns how many.

        One that somebody is taking or settling at this very moment is left to them. As Tarantool's truncate and
        Zaqar's purge.

        Raises:
            NoQueue: it is not there.
        """
        return self._client._run(calls.truncate_queue(self.name))

    def release_all(self) -> int:
        """Give back all tasks of the queue that are taken, whoever holds them; returns how many. Raises NoQueue."""
        return self._client._run(calls.release_all(self.name))


@mirrors(QueueManagement)
class AsyncQueueManagement:
    _client: AsyncManagement
    name: str

    async def info(self) -> QueueInfo:
        return await self._client._run(calls.queue(self.name))

    async def alter(self, **options: Unpack[AlterArguments]) -> None:
        await self._client._run(calls.alter_queue(self.name, options))

    async def rename(self, name: str) -> None:
        await self._client._run(calls.rename_queue(self.name, name))
        self.name = name

    async def pause(self, seconds: float) -> None:
        await self._client._run(calls.pause_queue(self.name, seconds))

    async def drain(self, on: bool = True) -> None:
        await self._client._run(calls.drain_queue(self.name, on))

    async def truncate(self) -> int:
        return await self._client._run(calls.truncate_queue(self.name))

    async def release_all(self) -> int:
        return await self._client._run(calls.release_all(self.name))
