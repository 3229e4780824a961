"""Jobs of beanstalkd in the calls of pgqueue: each command's effect, and errors for impossible ones."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import fields

from .. import AsyncClient, AsyncTask
from .._calls import pick
from .._calls.call import Fence
from .._calls.queue import QueueOptions
from ..errors import NoQueue, NotAllowed, QueueInUse, TakeLost, TaskNotFound
from .acks import Acks
from .bodies import data_of

MIDDLE = 2**31  # priorities of beanstalkd are unsigned, those of pgqueue signed
LONGEST = 10**9  # seconds of a delay, a time to run or a pause in pgqueue
MOST = 2**31 - 1  # tasks of one kick
HIGHEST = 2**63 - 1  # id

NOBODYS = Fence(token=0, session=None)  # of no take: a job that another connection has reserved stays

#: Options that a queue has only if they were set. Each is empty, zero or false in a queue that a put made.
_BY_HAND = (*(field.name for field in fields(QueueOptions)), "draining", "paused_until")


class Jobs:
    """The jobs of all tubes, over one client."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._acks = Acks(client)

    async def put(self, tube: str, body: bytes, priority: int, delay: int, ttr: int) -> int:
        """Put a job. Returns its id."""
        task = await self._client.queue(tube).put(
            data_of(body), priority=priority - MIDDLE, delay=min(delay, LONGEST), ttr=min(max(ttr, 1), LONGEST)
        )
        return task.id

    async def reserve(self, tubes: Sequence[str], timeout: float | None) -> AsyncTask | None:
        """Take the most urgent job of the tubes; None if there was none in time."""
        return await self._client.take(tubes, timeout)

    async def reserve_job(self, id: int) -> AsyncTask:
        """Take a job that is ready, delayed or buried. Raises TaskError."""
        return await self._client.queue("default").take_id(existing(id))  # an id is of all queues

    async def ack(self, task: AsyncTask) -> None:
        """Delete a job that is reserved. Raises TakeLost."""
        await self._acks.ack(task)

    async def release(self, task: AsyncTask, priority: int, delay: int) -> None:
        await task.release(min(delay, LONGEST), priority=priority - MIDDLE)

    async def bury(self, task: AsyncTask, priority: int) -> None:
        await task.bury(priority=priority - MIDDLE)

    async def give_back(self, tasks: Sequence[AsyncTask]) -> None:
        """Release jobs of any tubes. If the database does not answer, the client releases them once it does."""
        if tasks:
            with contextlib.suppress(TakeLost):
                await self._client.queue("default").release_many(tasks)

    async def delete(self, id: int) -> None:
        """Remove a job that is not reserved. Raises TaskError."""
        await self._client.shell.run(pick.delete_strict(existing(id), NOBODYS))

    async def peek(self, id: int) -> AsyncTask:
        """Raises TaskNotFound."""
        task = await self._client.peek(existing(id))
        if task.state == "done":
            raise TaskNotFound(f"task {id} is done", id)
        return task

    async def first(self, tube: str, state: str) -> AsyncTask | None:
        """The next job of a tube that is `ready`, `delayed` or `buried`."""
        return await self._client.queue(tube).peek_next(state)

    async def kick(self, tube: str, n: int) -> int:
        """Kick up to n buried jobs, or delayed ones if none is buried. Returns how many."""
        return await self._client.queue(tube).kick(min(n, MOST), delayed=True) if n else 0

    async def kick_job(self, id: int) -> bool:
        """Kick a job, if it is buried or delayed. Raises TaskNotFound."""
        return await self._client.kick(existing(id))

    async def forget(self, tube: str) -> None:
        """Delete the queue of a tube, if it is empty, and as the first put made it."""
        with contextlib.suppress(NoQueue, QueueInUse, NotAllowed):
            if not await self._is_set_up(tube):
                await self._client.delete_queue(tube, if_empty=True)

    async def _is_set_up(self, tube: str) -> bool:
        """Whether the queue has more than a put gives it. A restricted queue may be granted to no role."""
        info = await self._client.queue(tube).info()
        return (
            info.granted_to is not None
            or any(getattr(info, name) for name in _BY_HAND)
            or bool(await self._client.limits.list(tube))
            or bool(await self._client.privileges.list(queue=tube))
        )

    async def pause(self, tube: str, seconds: int) -> None:
        """Pause a tube, which may have no queue yet."""
        queue = self._client.queue(tube)
        try:
            await queue.pause(min(seconds, LONGEST))
        except NoQueue:
            await self._client.create_queue(tube, if_not_exists=True)
            await queue.pause(min(seconds, LONGEST))


def existing(id: int) -> int:
    """An id that a task may have. Raises TaskNotFound."""
    if id > HIGHEST:
        raise TaskNotFound(f"there is no task {id}", id)
    return id
