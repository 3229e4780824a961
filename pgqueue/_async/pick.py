"""Looking at single tasks of a queue, and moving them by hand."""

from __future__ import annotations

from .._calls import cancel as cancel_calls
from .._calls import pick as calls
from .._calls.pick import TaskStats
from .._engine.awaiting import Conn
from .._records.task import TaskLike, from_found, named
from .shell import AsyncShell
from .task import AsyncTask


class AsyncPicking:
    """The verbs of a queue for a task that is named by its id or its place."""

    name: str
    _shell: AsyncShell

    async def peek(self, task: TaskLike) -> AsyncTask:
        """The task as it is now, whether it is taken or not. Raises TaskNotFound if it is gone."""
        return from_found(AsyncTask, await self._shell.run(calls.peek(named(task)[0])), self._shell)

    async def peek_next(self, state: str = "ready") -> AsyncTask | None:
        """The next task of the queue, without taking it. As beanstalkd's peek-ready, -delayed and -buried.

        Args:
            state: `ready`: the one that a take would get; `delayed`: the one that becomes ready next; `buried`: the one
                that is kicked next.

        Returns:
            The task, or None if there is none.
        """
        row = await self._shell.run(calls.peek_next(self.name, state))
        return None if row is None else from_found(AsyncTask, row, self._shell)

    async def kick(self, n: int = 1, *, delayed: bool = False) -> int:
        """Make up to `n` buried tasks ready, lowest (priority, id) first. Returns how many.

        Their attempts count from 0 again; a delayed task keeps its attempts.

        Args:
            n: how many at most.
            delayed: if none is buried, kick delayed ones, by the time at which they are due. As beanstalkd's kick.
        """
        return await self._shell.run(calls.kick(self.name, n, delayed))

    async def kick_task(self, task: TaskLike, *, conn: Conn | None = None) -> bool:
        """Make one buried or delayed task ready, as beanstalkd's kick-job; False if it is neither.

        The attempts of a buried task count from 0 again.

        Raises:
            TaskNotFound: it is gone.
        """
        return await self._shell.run(calls.kick_task(named(task)[0]), conn) is not None

    async def delete(self, task: TaskLike, *, strict: bool = False, conn: Conn | None = None) -> None:
        """Remove a task in any state.

        Args:
            task: the task, or its id.
            strict: refuse if another client has taken it, as beanstalkd's delete.
            conn: the caller's connection, to delete in its transaction; if strict, at READ COMMITTED.

        Raises:
            TaskNotFound: it is gone.
            TaskTakenByOther: if strict.
        """
        id, token = named(task)
        await self._shell.run(calls.delete_one(id, self._shell.fence(token), strict), conn)

    async def cancel(
        self,
        task: TaskLike | None = None,
        *,
        key: str | None = None,
        reason: str | None = None,
        conn: Conn | None = None,
    ) -> str:
        """Cancel a task, by its id or by its key in this queue; see Client.cancel.

        Args:
            task: a task, or its id.
            key: the key that it was put with, in place of the task.
            reason: why; kept as its outcome's error, and shown to its taker.
            conn: the caller's connection, to cancel in its transaction, at READ COMMITTED.

        Returns:
            The state, as Client.cancel; `unknown` also if no task of the queue has the key.

        Raises:
            ValueError: neither a task nor a key was given, or both.
            NoQueue: with a key, if the queue does not exist.
        """
        if (task is None) is (key is None):
            raise ValueError("cancel() needs a task or a key, and not both")
        if key is not None:
            return await self._shell.run(cancel_calls.cancel_key(self.name, key, reason), conn)
        assert task is not None
        return await self._shell.run(cancel_calls.cancel(named(task)[0], reason), conn)

    async def task_stats(self, task: TaskLike) -> TaskStats:
        """The history of a task: its age, and the number of its takes, releases, burials and kicks.

        Raises:
            TaskNotFound: it is gone.
        """
        return await self._shell.run(calls.task_stats(named(task)[0]))
