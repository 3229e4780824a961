"""Limits of tasks: how many run at once over all workers, and how many begin in a time."""

from __future__ import annotations

import builtins

from .._calls import limits as calls
from .._calls.limits import Declared, Limit, Terms
from .._values.arguments import Seconds
from .shell import AsyncShell


class AsyncLimits:
    """Limits of tasks, as `client.limits`: for all workers together, in any language."""

    def __init__(self, shell: AsyncShell) -> None:
        self._shell = shell

    async def set(
        self,
        queue: str,
        job: str | None = None,
        *,
        concurrency: int | None = None,
        rate: int | None = None,
        per: Seconds = 1,
        burst: int | None = None,
        argument: str | None = None,
        home: int | None = None,
    ) -> None:
        """Limit the tasks of a job, or of a queue. An earlier limit of the same job is replaced; running tasks go on.

        Tasks beyond the limit wait, in the state `waiting`, and keep their places. The limit holds for tasks that are
        in the queue already, too.

        Args:
            queue: the name of a queue that exists.
            job: the job's name; None for all tasks of the queue whose job has no limit of its own.
            concurrency: how many of the tasks may be taken at once, from 1 to 100,000; None for any number.
            rate: how many of the tasks may begin in each period, from 1 to 1,000,000; None for any number. Each
                attempt counts.
            per: the period of the rate: seconds, or a timedelta.
            burst: how many may begin at once after a pause, and how many more than `rate` in one period. None for a
                tenth of the rate, and at least 1.
            argument: the limit counts for each value of this argument of the job by itself, for example "customer".
                Tasks without it, or where it is null, are counted together. None, the default, counts all tasks
                together.
            home: of several servers that each have this limit, the number of the one that alone gets new tasks of it:
                the others refuse them with LimitElsewhere. None, the default: each server gets some, and counts its
                own. Cluster.limits.set() calls this on each server.

        Raises:
            NoQueue: there is no such queue.
            NotAllowed: the role may not manage the queue.
            ValueError: an argument is not valid, or there is neither a concurrency nor a rate.
        """
        terms = Terms(concurrency=concurrency, rate=rate, per=per, burst=burst, argument=argument)
        await self._shell.run(calls.set_limit(queue, job, terms, home))

    async def drop(self, queue: str, job: str | None = None) -> bool:
        """Remove the limit of a job, or with None that of the queue. The tasks that wait for it become ready.

        Returns whether there was one.

        Raises:
            NoQueue: there is no such queue.
            NotAllowed: the role may not manage the queue.
            ValueError: an argument is not valid.
        """
        return await self._shell.run(calls.drop_limit(queue, job))

    async def declare(
        self,
        queue: str,
        job: str,
        *,
        concurrency: int | None = None,
        rate: int | None = None,
        per: Seconds = 1,
        burst: int | None = None,
        argument: str | None = None,
    ) -> Declared:
        """State the limit that the code of a job has, if any; workers do so at their start. Arguments as for set().

        A limit that was declared before is replaced, or dropped if there is neither a concurrency nor a rate. A limit
        that was set by hand stays, until it is dropped by hand. The queue is created if it does not exist.

        Returns:
            "set" or "dropped"; "same" if nothing had to be changed, which needs no right to manage the queue; "kept"
            if another limit was set by hand.

        Raises:
            NotAllowed: the role may not take from the queue, or not manage it, and the limit would have to be changed.
            ValueError: an argument is not valid.
        """
        terms = Terms(concurrency=concurrency, rate=rate, per=per, burst=burst, argument=argument)
        return await self._shell.run(calls.declare_limit(queue, job, terms))

    async def list(self, queue: str | None = None) -> builtins.list[Limit]:
        """All limits, with the number of tasks that run and wait; or those of one queue.

        It counts the tasks one by one, so with 100,000 that wait it takes some 20 ms.

        Raises:
            ValueError: the name is not valid.
        """
        return await self._shell.run(calls.list_limits(queue))
