"""The verbs of a client for queues: making and deleting them, and taking from several at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from .._calls import history as history_calls
from .._calls import queue as calls
from .._calls import stats as stats_calls
from .._calls import tallies
from .._calls import workers as worker_calls
from .._calls.history import HOUR, QueuePeriod
from .._calls.queue import QueueArguments, QueueInfo, QueueOptions
from .._calls.stats import Stats
from .._calls.tallies import JobStats
from .._calls.workers import WorkerInfo
from .._values import arguments
from .._values.arguments import Seconds
from .consumer import AsyncConsumer
from .queue import AsyncQueue
from .shell import AsyncShell
from .take import pop, take
from .task import AsyncTask


class AsyncQueues:
    """The verbs of a client for queues."""

    shell: AsyncShell

    def queue(self, name: str) -> AsyncQueue:
        """The queue of this name. Sends nothing to the database. Raises ValueError for a name that is not valid."""
        return AsyncQueue(self.shell, name)

    async def create_queue(
        self, name: str, *, if_not_exists: bool = False, **options: Unpack[QueueArguments]
    ) -> AsyncQueue:
        """Make a queue with options; see the guides "Queues" and "Exchanges".

        Args:
            name: 1 to 200 characters.
            if_not_exists: accept a queue that exists, with the options that it has.
            type: as in Tarantool's queue: fifo, fifottl, utube, utubettl or limfifottl. Its puts cannot use options
                that a queue of this type lacks. None: they can use all.
            priority: default priority of its tasks.
            delay: default delay, in seconds or as a timedelta.
            ttr: default time to run, in seconds or as a timedelta.
            ttl: default time to live, in seconds or as a timedelta.
            capacity: how many tasks it holds in all, in any state; a put into a full one waits or is refused. 0 is
                unlimited, as None.
            maxlen: how many ready tasks it keeps; beyond that the oldest are dropped.
            max_size: the largest data of a task, in bytes of JSON.
            max_takes: a task that was given back this number of times, as a failed attempt, is moved or buried. Takes
                are not counted.
            keep_done: seconds, or a timedelta, for which acked tasks are kept; None: not at all.
            expires: seconds, or a timedelta, without use after which it is deleted with its tasks; at least 30 seconds.
                Takes, takers that wait, consumers and workers use it, and so does create_queue; puts do not. As
                RabbitMQ's x-expires. None: never.
            dead_letter: the exchange that gets the tasks that are buried, expire, or are dropped by maxlen or
                max_takes; "" is the default one.
            dead_letter_key: the key under which it gets them; default the task's own. With "" the name of a queue,
                which is created if it does not exist.
            exclusive: only this client may take from it, and it ends with this client.
            temporary: it ends with this client.
            auto_delete: it is deleted when the last client that took from it has ended.
            listed: its tasks can be listed by queue.messages.list().
            metadata: anything that JSON can hold, for the users of the queue.

        Raises:
            QueueExists: there is one of this name.
            QueueExclusive: with `if_not_exists`: there is an exclusive one of this name, of another client that lives.
            NoExchange: there is no such exchange for dead letters.
            ValueError: the name or an option is not valid, there is no such option, or the type lacks it.
        """
        queue, checked = AsyncQueue(self.shell, name), QueueOptions.of(options)
        if checked.of_session:
            await self.shell.for_session(lambda own: calls.create_queue(name, checked, if_not_exists, own), None)
        else:
            own = self.shell.fence().session  # if there is one: an exclusive queue that exists may be its own
            await self.shell.run(calls.create_queue(name, checked, if_not_exists, own))
        return queue

    async def delete_queue(
        self, name: str, *, if_empty: bool = False, if_unused: bool = False, force: bool = False
    ) -> int:
        """Remove a queue with its tasks and its bindings. As AMQP's queue.delete and Tarantool's drop.

        It is refused while a task of the queue is taken.

        Args:
            name: the queue's name. A put makes a new one of the same name.
            if_empty: refuse while it holds tasks, in any state.
            if_unused: refuse while a task of it is taken, or a client waits for one.
            force: remove it also while tasks of it are taken; the acks and other calls of their holders then fail.

        Returns:
            How many tasks were removed.

        Raises:
            NoQueue: it does not exist.
            QueueInUse: a task of it is taken and `force` is not set, or another refusal that was asked for.
        """
        return await self.shell.run(calls.delete_queue(name, if_empty, if_unused, force))

    async def queues(self, *, prefix: str = "", marker: str | None = None, limit: int | None = None) -> list[QueueInfo]:
        """All queues with their options, by name.

        Args:
            prefix: only queues with names that begin with this.
            marker: only queues with names after this one: the last name of the page before, as in Zaqar.
            limit: the most queues to return; None for all.
        """
        return await self.shell.run(calls.queues(prefix, marker, limit))

    async def stats(self) -> dict[str, Stats]:
        """The statistics of every queue, by its name; see Queue.stats."""
        return await self.shell.run(stats_calls.every_stats())

    async def history(
        self, queues: Sequence[str] | None = None, since: Seconds = HOUR, every: Seconds | None = None
    ) -> list[QueuePeriod]:
        """The history of these queues, or of all, by queue and time; see Queue.history."""
        return await self.shell.run(history_calls.history(queues, since, every))

    async def job_stats(self) -> list[JobStats]:
        """How the runs of each job ended in the last hour, how long tasks waited and runs took, by queue and job."""
        return await self.shell.run(tallies.job_stats())

    async def workers(self) -> list[WorkerInfo]:
        """The workers that run, of this role; for a monitor, of all roles."""
        return await self.shell.run(worker_calls.workers())

    async def drain(self, on: bool = True) -> None:
        """Refuse puts into all queues: a put raises QueueDraining. As beanstalkd's drain mode.

        Tasks are taken as before. Queues that are made in the meantime are draining too. `drain(False)` ends it for all
        queues, also for those that were drained one by one.
        """
        await self.shell.run(calls.drain_queues(on))

    async def take(
        self, queues: Sequence[str], timeout: Seconds | None = None, *, deadline_soon: bool = False
    ) -> AsyncTask | None:
        """Take the next task of several queues: the lowest (priority, id) of all. As beanstalkd's reserve.

        Otherwise as Queue.take; task.queue names the task's queue.
        """
        tasks = await take(self.shell, arguments.queue_names(queues), 1, timeout, deadline_soon)
        return tasks[0] if tasks else None

    async def take_many(self, queues: Sequence[str], n: int, timeout: Seconds | None = None) -> list[AsyncTask]:
        """Take up to `n` tasks of several queues, beginning with the queue that has the lowest next task.

        Otherwise as Queue.take_many.
        """
        return await take(self.shell, arguments.queue_names(queues), n, timeout)

    async def consumer(self, queues: Sequence[str] = (), prefetch: int | None = 200) -> AsyncConsumer:
        """A consumer, which takes tasks ahead and acks them in batches, and has a descriptor for an event loop.

        Args:
            queues: the names of the queues from which it takes, the lowest (priority, id) of all first.
            prefetch: how many tasks it holds at most; 0: it takes none; None: any number.

        Raises:
            ValueError: a name or the number is not valid.
            ServerError: the server could not be reached within connect_timeout.
        """
        return AsyncConsumer(self.shell, await self.shell.listener(), queues, prefetch)

    async def pop(self, queues: Sequence[str], n: int = 1, timeout: Seconds | None = 0) -> list[AsyncTask]:
        """Take and ack up to `n` tasks of several queues, as soon as there is one. As Redis' BLPOP.

        The queue with the lowest next task by (priority, id) serves first, as in take_many; task.queue names the queue.
        Otherwise as Queue.pop.
        """
        return await pop(self.shell, arguments.queue_names(queues), n, timeout)
