"""Taking tasks: from one queue, and from several at once."""

from __future__ import annotations

from collections.abc import Callable

from .._calls import pop as calls
from .._engine import picks, pops, takes
from .._engine.awaiting import Conn, Signal
from .._engine.waits import MakeSignal
from .._records.task import TaskLike, from_popped, from_taken, named
from .._values import arguments
from .._values.arguments import Seconds
from .shell import AsyncShell
from .task import AsyncTask

IN_TRANSACTION = (
    "a pop with conn cannot wait, nor be of several queues: wait outside of the transaction, or pop again in another"
)


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
    """Up to n tasks of several queues, as soon as there is one; see takes.take."""
    n, seconds = arguments.count("n", n), arguments.timeout(timeout)
    listener = await shell.listener()
    claim = takes.take(shell.core, listener, make_signal, queues, n, seconds, stopped, deadline_soon=deadline_soon)
    return await shell.claimed(claim, lambda row: from_taken(AsyncTask, row, shell))


async def pop(shell: AsyncShell, queues: list[str], n: int, timeout: Seconds | None) -> list[AsyncTask]:
    """Up to n tasks of several queues, taken and acked, as soon as there is one; see pops.pop."""
    n, seconds = arguments.count("n", n), arguments.timeout(timeout)
    if shell.joined(waiting=True) is not None:  # a rollback would not bring back what another connection pops
        raise ValueError(IN_TRANSACTION)
    flow = pops.pop(shell.core, await shell.listener(), Signal, queues, n, seconds)
    return [from_popped(AsyncTask, row, row.queue, shell) for row in await shell.drive(flow)]


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
            The task; None if no task was ready in time, or when the client is closed while waiting.

        Raises:
            DeadlineSoon: if asked for, instead of waiting on. As beanstalkd's DEADLINE_SOON.
            ServerError: the server cannot be reached, for longer than both timeout and connect_timeout.
            LockBlocked: another backend kept this client from taking, until the timeout was over and for a second more.
            ClosedError: the client is closed.
        """
        tasks = await take(self._shell, [self.name], 1, timeout, deadline_soon)
        return tasks[0] if tasks else None  # without a call, at whose end Ctrl-C could interrupt

    async def take_many(self, n: int, timeout: Seconds | None = None) -> list[AsyncTask]:
        """Take up to `n` tasks at once, as soon as one is ready; otherwise as take. An empty list if none is."""
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
        claim = picks.take_id(shell.core, await shell.listener(), Signal, id)
        (taken,) = await shell.claimed(claim, lambda row: from_taken(AsyncTask, row, shell))
        return taken

    async def pop(self, n: int = 1, timeout: Seconds | None = 0, *, conn: Conn | None = None) -> list[AsyncTask]:
        """Take and ack up to `n` tasks in one step, as soon as there is one.

        In the caller's transaction this is exactly once: the tasks are gone when it commits and back when it rolls
        back. On a pool's connection it is at most once, as Redis' LPOP and BLPOP: if this process ends, or the answer
        is lost, popped tasks are not delivered again.

        Args:
            n: how many at most.
            timeout: seconds to wait for the first, or a timedelta; None waits without limit, 0, the default, does not
                wait.
            conn: the caller's connection, to pop in its transaction. Then the pop cannot wait.

        Returns:
            The tasks, in the state `done`. An empty list if no task was ready in time, or when the client is closed.

        Raises:
            ValueError: `n` is below 1, or there is a `timeout` with a `conn`, or inside Django's atomic().
            ConnectionLost: whether tasks were popped is unknown.
            ServerError: the server cannot be reached, for longer than both timeout and connect_timeout.
            LockBlocked: another backend kept this client from taking, until the timeout was over and for a second more.
        """
        shell = self._shell
        if arguments.timeout(timeout) != 0:
            if conn is not None:
                raise ValueError(IN_TRANSACTION)
            return await pop(shell, [self.name], n, timeout)
        rows = await shell.run(calls.pop(self.name, n, shell.fence().session), conn)
        return [from_popped(AsyncTask, row, self.name, shell) for row in rows]
