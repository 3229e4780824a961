"""Managing a queue as a whole: its options, its statistics, and the callback for its changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

from .._calls import find as find_calls
from .._calls import history as history_calls
from .._calls import queue as calls
from .._calls import stats as stats_calls
from .._calls.find import State
from .._calls.history import HOUR, QueuePeriod
from .._calls.queue import AlterArguments, QueueInfo
from .._calls.stats import Stats
from .._engine import changes
from .._engine.awaiting import Signal, relay
from .._engine.changes import OnChange
from .._values.arguments import Seconds
from .shell import AsyncShell


class AsyncManaging:
    """The verbs of a queue as a whole."""

    name: str
    _shell: AsyncShell

    async def info(self) -> QueueInfo:
        """The queue with all its options. Raises NoQueue if no call and no put has created it."""
        return await self._shell.run(calls.queue(self.name))

    async def stats(self) -> Stats:
        """The number of tasks in each state, and of calls of each verb. The backlog does not slow it down.

        Returns:
            A dict. Tasks by state: total (all unfinished ones), ready, delayed, taken (with those that are cancelling),
            buried, blocked (with those that are waiting); and kept, the done ones that are still stored (see
            keep_done). done: how many were acked or deleted, or expired, in all.
            oldest_ready_age: for how many seconds the oldest ready task has been ready: since its put, or the end of
            its delay, or a kick; None if nothing is ready.
            calls: a dict of how many tasks each verb was called for: put, take, ack, release, bury, kick, delete,
            touch; and delay, ttr and ttl, which count the tasks that reached that end. As Tarantool's queue counts: an
            ack is no delete, and a task that expires counts as ttl and as delete. After a crash of the server done and
            calls count from 0. All zero for a queue that does not exist.
        """
        return await self._shell.run(stats_calls.stats(self.name))

    async def history(self, since: Seconds = HOUR, every: Seconds | None = None) -> list[QueuePeriod]:
        """The calls of the queue, and its length, period by period.

        Clients write it at the end of each minute. It has minutes for a day, hours for a month, days for a year.

        Args:
            since: how long ago it begins, in seconds or as a timedelta; at most 366 days.
            every: the length of a period, in seconds or as a timedelta: a multiple of a minute for up to a day, of an
                hour for up to 31 days, of a day beyond that. None: a length that gives up to a hundred periods.

        Returns:
            The periods, the oldest first. A period in which the queue was empty and had no call is left out, and so is
            one in which no client ran: its calls are counted in the next one.

        Raises:
            ValueError: since or every is not valid.
        """
        return await self._shell.run(history_calls.history([self.name], since, every))

    async def alter(self, **options: Unpack[AlterArguments]) -> None:
        """Change options of the queue, and leave the others. Tasks in the queue keep the options of their put.

        `listed=True` also holds for tasks in the queue, and for puts that are under way: messages.list() shows them
        within a few ticks (each of a second or less) of a running client.

        Args:
            options: those of Client.create_queue, except type, exclusive and temporary. None is the default.

        Raises:
            NoQueue: it does not exist.
            NoExchange: there is no such exchange for dead letters.
            ValueError: an option is not valid, cannot be altered, or the queue's type lacks it.
        """
        await self._shell.run(calls.alter_queue(self.name, options))

    async def rename(self, name: str) -> None:
        """Give the queue, and this handle, another name. Its tasks, their takes, and its bindings stay.

        A put under the old name makes a new queue of that name.

        Raises:
            NoQueue: it does not exist.
            QueueExists: there is one of this name.
            ValueError: the name is not valid.
        """
        await self._shell.run(calls.rename_queue(self.name, name))
        self.name = name

    async def pause(self, seconds: Seconds) -> None:
        """Let no task be taken for a number of seconds, or a timedelta; 0 ends a pause. As beanstalkd's pause-tube.

        Puts work as before, and tasks that are taken can be settled. Waiting takes are served when the pause is over.
        Only take_id takes from a paused queue.

        Raises:
            NoQueue: the queue does not exist.
            ValueError: the time is negative, NaN or not a duration.
        """
        await self._shell.run(calls.pause_queue(self.name, seconds))

    async def drain(self, on: bool = True) -> None:
        """Let nothing be put into the queue any more, until `drain(False)`: a put raises QueueDraining.

        Raises:
            NoQueue: the queue does not exist.
        """
        await self._shell.run(calls.drain_queue(self.name, on))

    async def truncate(
        self, *, states: Sequence[State] | None = None, on_progress: Callable[[int], object] | None = None
    ) -> int:
        """Remove all tasks of the queue, or those in some states. Returns their number.

        By default tasks in any state are removed, also taken ones. `states=["ready", "delayed"]` leaves the tasks that
        are taken to their takers, as the purge of AMQP does.

        A task that another transaction is taking or settling at this moment is left alone. It commits after each 50,000
        tasks, since acks of removed tasks wait for the transaction: after an error, those that were removed before stay
        removed. As Tarantool's truncate and Zaqar's purge.

        Args:
            states: remove only tasks that are in one of these states, as tasks() has them. A task that enters one of
                them during the call may be removed too, for example one that was blocked behind a removed task of its
                lane. None: tasks in any state.
            on_progress: called after each commit, with the number of tasks so far. Default: none.

        Raises:
            NoQueue: it does not exist.
            ValueError: there is no such state.
        """
        total, chosen = 0, find_calls.states(states)
        while True:
            removed = await self._shell.run(calls.truncate_queue(self.name, calls.PART, chosen))
            total += removed
            if on_progress is not None:
                on_progress(total)
            if removed < calls.PART:
                return total

    async def on_task_change(self, callback: OnChange | None) -> OnChange | None:
        """Call a function with every Change of this queue's tasks from now on, in any client. As Tarantool's.

        A change is announced once its transaction has committed, in the order of the commits. Changes that are made
        while the connection is lost are missed, with a warning in the log; so are those of a queue that was deleted and
        created again. Each change of an observed queue is a NOTIFY; a queue without observers pays nothing.

        Args:
            callback: a plain function. It is called in the client's listener thread, for asyncio in this event loop,
                and must return soon, since it holds up everything else there. An exception in it is logged. None: no
                more calls.

        Returns:
            The callback that this client had for the queue before, or None.

        Raises:
            ValueError: it is not a function, or an `async` one.
            ConnectionLost: nothing was changed; call it again.
            psycopg.Error: LockNotAvailable, if an open transaction has had the queue's row for ten seconds.
            ClosedError: the client is closed.
        """
        changes.checked(callback)
        core = self._shell.core
        if callback is not None:
            listener = await self._shell.listener()
            flow = changes.observe(core, listener, Signal, self.name, callback, relay(changes.run))
        elif self.name in core.observers:
            flow = changes.unobserve(core, await self._shell.listener(), Signal, self.name)
        else:
            return None
        return await self._shell.drive(flow)
