"""Taking tasks: from one queue, and from several at once."""

from __future__ import annotations

from collections.abc import Callable

from .._calls import pop as calls
from .._engine import flows
from .._engine.awaiting import Conn, Signal
from .._engine.waits import MakeSignal
from .._records.task import TaskLike, from_popped, from_taken, named
from .._values import arguments
from .._values.arguments import Seconds
from .shell import AsyncShell
from .task import AsyncTask


async def take(
    shell: AsyncShell,
    queues: list[str],
    n: int,
    timeout: Seconds | None,
    deadline_soon: bool = False,
    *,
    stopped: Callable[[], bool] = lambda: False,
    make_signal: MakeSignal = Signal,
) -> list[AsyncTask]:
    """Up to n tasks of several queues, as soon as there is one; see flows.take."""
    n, seconds = arguments.count("n", n), arguments.timeout(timeout)
    listener = await shell.listener()
    flow = flows.take(shell.core, listener, make_signal, queues, n, seconds, stopped, deadline_soon=deadline_soon)
    return shell.made(await shell.drive(flow), lambda row: from_taken(AsyncTask, row, shell))


class AsyncTaking:
    """The verbs of a queue that take."""

    name: str
    _shell: AsyncShell

    async def take(self, timeout: Seconds | None = None, *, deadline_soon: bool = False) -> AsyncTask | None:
        """Take the next task: the lowest (priority, id) that is ready. As Tarantool's take and beanstalkd's reserve.

        Args:
            timeout: seconds to wait for one, or a timedelta; None waits without limit, 0 does not wait. It limits the
                waiting only: a task that was claimed is returned, however late.
            deadline_soon: do not wait while a task that this client holds already has to be settled within a second.

        Returns:
            The task; None when none came in time, or when the client is closed while waiting.

        Raises:
            DeadlineSoon: if asked for, instead of waiting on. As beanstalkd's DEADLINE_SOON.
            ServerError: the server cannot be reached, for longer than both timeout and connect_timeout.
            ClosedError: the client is closed.
        """
        return next(iter(await take(self._shell, [self.name], 1, timeout, deadline_soon)), None)

    async def take_many(self, n: int, timeout: Seconds | None = None) -> list[AsyncTask]:
        """Take up to `n` tasks at once, as soon as there is one; otherwise as take. An empty list if none came."""
        return await take(self._shell, [self.name], n, timeout)

    async def take_id(self, task: TaskLike) -> AsyncTask:
        """Take the task of this id, whether it is ready, delayed or buried; does not wait. As beanstalkd's reserve-job.

        Raises:
            TaskNotFound: it is gone, done, or expired.
            TaskTakenByOther: it is taken, perhaps by this client.
            TaskBusy: another task of its lane is taken, or another transaction is changing the task.
            ServerError, ClosedError: as for take.
        """
        shell, id = self._shell, named(task)[0]
        flow = flows.take_id(shell.core, await shell.listener(), Signal, id)
        (taken,) = shell.made(await shell.drive(flow), lambda row: from_taken(AsyncTask, row, shell))
        return taken

    async def pop(self, n: int = 1, *, conn: Conn | None = None) -> list[AsyncTask]:
        """Take and ack up to `n` tasks in one step; does not wait.

        In the caller's transaction this is exactly once: the tasks are gone when it commits and back when it rolls
        back. On a connection of ours it is at most once, as Redis' LPOP.
        """
        call = calls.pop(self.name, n, self._shell.fence().session)
        rows = await self._shell.run(call, conn)
        return [from_popped(AsyncTask, row, self.name, self._shell) for row in rows]
