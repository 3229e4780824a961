"""The clients and clusters of applications: those of _sync and _async, with jobs.

They are here and not in _sync, since a job of either client has puts of both kinds.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Unpack, cast, overload

from .._async import client as awaiting
from .._async import cluster as awaiting_cluster
from .._async.members import AsyncMembers
from .._async.queue import AsyncQueue
from .._async.shell import AsyncShell
from .._engine.awaiting import in_thread
from .._sync import client as blocking
from .._sync import cluster as blocking_cluster
from .._sync.members import Members
from .._sync.queue import Queue
from .._sync.shell import Shell
from .._values import arguments
from .job import Job
from .options import DEFAULTS, BatchHandler, JobPolicies, Policies, Settings
from .registering import Register, registering
from .registry import Registry
from .setups import ChildSetup, no_setup
from .starts import AnyStart, LoopStart, Start, made

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class WithJobs:
    """The part of both clients for jobs.

    Attributes:
        jobs: the jobs, by name.
        middleware: objects that are called around the put and the run of every job, the first one outside.
        starts: the hooks of on_start(), in their order.
        registries: of queues whose jobs another framework knows: by queue, its jobs by name. A worker asks for a name
            when a task has it, and looks into `jobs` first.
        child_setup: a worker calls it for the setup of its child processes; for integrations. It may raise ValueError.
    """

    jobs: Registry
    middleware: list[Any]
    batch_handlers: dict[str, BatchHandler]
    starts: list[AnyStart]
    registries: dict[str, Mapping[str, Job[..., Any]]]
    child_setup: Callable[[], ChildSetup | None]

    def _begin_jobs(self) -> None:
        self.jobs = Registry()
        self.middleware = []
        self.batch_handlers = {}
        self.starts = []
        self.registries = {}
        self.child_setup = no_setup
        self._queues: dict[str, Queue] = {}
        self._awaiting_queues: dict[str, AsyncQueue] = {}

    def share_jobs(self, other: WithJobs) -> None:
        """Have the jobs, the middleware and the hooks of another client, from now on. For integrations."""
        self.jobs, self.middleware, self.batch_handlers = other.jobs, other.middleware, other.batch_handlers
        self.starts, self.registries, self.child_setup = other.starts, other.registries, other.child_setup

    def job(
        self,
        queue: str | None = None,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        **policies: Unpack[JobPolicies],
    ) -> Register:
        """Make a function a job: `send.put(...)` puts a task, and a Worker of this client runs it.

        The function may be sync or async. Its parameters are the arguments of a task, by name; a parameter named `task`
        gets the Task (an AsyncTask if the function is async) and is no argument. Its annotations are the types of the
        arguments: JSON's types, and with pydantic installed (the extra `jobs`) models, dataclasses, enums, datetimes,
        UUIDs, Decimals, bytes and so on. They are checked when a task is put, and again before it runs.

        Args:
            queue: the name of the queue for its tasks; several jobs may share it. Default: that of job_defaults(), else
                `default`.
            name: its name in the tasks; default `module.qualname`.
            aliases: former names, under which tasks may still wait.
            retry: when a failed task is tried again; default the worker's policy.
            keep_result: seconds, or a timedelta, for which to keep the function's result, or the error of a task that
                failed for good, for Task.result(). Default 0: not kept.
            timeout: seconds, or a timedelta, after which an attempt is ended and has failed. Default: the worker's
                time_limit, else none.
            soft_timeout: seconds, or a timedelta, after which SoftTimeLimit is raised in the function: at its `await`,
                in a process at once, in a thread at its next checkpoint(). Default: the worker's soft_time_limit, else
                none.
            isolation: "process": it runs in a child process of the worker, which a timeout or a cancel can kill; it
                must be at the top level of a module. Default "thread": in a thread of the worker, or in its event loop
                if the function is async.
            priority, ttl, ttr: of its tasks; see Queue.put.
            unique_data: True: while a task is not done, a put with the same arguments puts nothing, and returns that
                task, with `existed` set. For a put with a key only the key counts. Default False.
            unique_for: seconds, or a timedelta, in which a task with the same arguments (or key) is put once, also
                if it is done by then. Default: no such time. See Queue.put.
            concurrency: how many of its tasks run at once, over all workers, from 1 to 100,000; the others wait in the
                database. None, the default, for any number. A worker declares it when it starts; see Limits.declare.
            rate: a Rate: how many of its tasks begin in a time, over all workers. None, the default, for any number.
            limit_by: the name of a parameter: concurrency and rate count for each of its values by itself. A put that
                leaves this argument out stores its default. None, the default, counts all tasks together.
            middleware: called inside the client's middleware.

        A policy of None means no policy, even if job_defaults() sets one; a policy that is left out is that of
        job_defaults().

        Raises:
            TypeError: there is no such option.
            ValueError: an option is not valid; or, when the decorator is applied: another job has this name, the
                function has *args, **kwargs or positional-only parameters, is a method or a generator function, an
                annotation or a default cannot be used, or concurrency, rate or limit_by is not valid. Names the place
                in the code.
        """
        return registering(self, queue, name, aliases, policies)

    def batch_handler(self, queue: str, n: int = 100) -> Callable[[F], F]:
        """Register a function that handles up to `n` tasks of a queue at once, for a Worker.

        It is called with a list of Tasks, or AsyncTasks if it is async. Tasks that it has settled itself, for example
        by `task.bury()`, stay so. It may return a dict of task ids and exceptions (or texts): these tasks have failed,
        by the worker's policy. All others are acked. If it raises, all tasks that it has not settled have failed.

        Args:
            queue: the queue's name.
            n: the most tasks in a call. It gets the tasks that are ready and does not wait for more.

        Raises:
            ValueError: the name or the number is not valid.
        """
        arguments.queue_name(queue)
        arguments.count("n", n)

        def register(function: F) -> F:
            self.batch_handlers[queue] = BatchHandler(function, n)
            return function

        return register

    def job_defaults(self, *, queue: str | None = None, **policies: Unpack[Policies]) -> None:
        """Set policies for the jobs of this client that leave them open; those registered before, too.

        Args:
            queue, policies: as for job(), without the limits, since each belongs to one job.

        Raises:
            ValueError: one of them is not valid.
            TypeError: there is no such policy, or it is a limit.
        """
        self.jobs.defaults = Settings.of(DEFAULTS, queue, policies)

    @overload
    def on_start(self, function: Callable[[], AsyncIterator[T]], /) -> LoopStart[T]: ...
    @overload
    def on_start(self, function: Callable[[], Iterator[T]], /) -> Start[T]: ...
    def on_start(self, function: Callable[[], Any], /) -> AnyStart:
        """Register a generator function as a hook of workers: a decorator. A handler calls it for the yielded object.

        A worker runs the function to its `yield` before its first task, and to its end after its last one: a generator
        function once in each process, child processes included; an async generator function once in each event loop.
        Hooks begin in the order of their registration, and end in the reverse order.

        Raises:
            ValueError: it is not a generator function without parameters.
        """
        hook: AnyStart = made(function)
        self.starts.append(hook)
        return hook

    def blocking_queue(self, name: str) -> Queue:
        """The queue to put into from blocking code."""
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = cast(Queue, self._blocking.queue(name))  # a cluster's has its puts
        return found

    def awaiting_queue(self, name: str) -> AsyncQueue:
        """The queue to put into from async code."""
        found = self._awaiting_queues.get(name)
        if found is None:
            found = self._awaiting_queues[name] = cast(AsyncQueue, self._awaiting.queue(name))
        return found

    @property
    def _blocking(self) -> blocking.Client | blocking_cluster.Cluster:
        """The client for blocking code: each class below has one."""
        raise NotImplementedError

    @property
    def _awaiting(self) -> awaiting.AsyncClient | awaiting_cluster.AsyncCluster:
        """The client for async code, likewise."""
        raise NotImplementedError


class AsyncClient(WithJobs, awaiting.AsyncClient):
    __doc__ = awaiting.AsyncClient.__doc__

    def _begin(self, shell: AsyncShell) -> None:
        super()._begin(shell)
        self._begin_jobs()

    @functools.cached_property
    def _blocking(self) -> blocking.Client:
        """Puts of blocking code: the same session, with connections of its own."""
        return blocking.Client.over(Shell(self.shell.core))

    @property
    def _awaiting(self) -> awaiting.AsyncClient:
        return self

    async def close(self) -> None:
        """Give back every task that was taken and not settled; blocked takes return None. May be called twice."""
        await super().close()
        if "_blocking" in vars(self):
            await in_thread(self._blocking.close)


class Client(WithJobs, blocking.Client):
    __doc__ = blocking.Client.__doc__

    def _begin(self, shell: Shell) -> None:
        super()._begin(shell)
        self._begin_jobs()

    @property
    def _blocking(self) -> blocking.Client:
        return self

    @property
    def _awaiting(self) -> awaiting.AsyncClient:
        return self.aio

    @functools.cached_property
    def aio(self) -> AsyncClient:
        """The same client for asyncio: it shares listener, session, jobs and schedules, and has connections of its own.

        `await client.aio.close()` closes both.
        """
        made = AsyncClient.over(AsyncShell(self.shell.core))
        made.share_jobs(self)
        made.handlers, made.keep_results = self.handlers, self.keep_results
        made.schedules.declared = self.schedules.declared
        return made


class AsyncCluster(WithJobs, awaiting_cluster.AsyncCluster):
    __doc__ = awaiting_cluster.AsyncCluster.__doc__
    _origin: Cluster | None = None  # of which this one is the `aio`

    def _begin(self) -> None:
        super()._begin()
        self._begin_jobs()

    @functools.cached_property
    def _blocking(self) -> blocking_cluster.Cluster:
        """Puts of blocking code: the same servers and sessions, with connections of their own."""
        members = Members([], self._members.retry)
        members.mirror(self._members, lambda client: blocking.Client.over(Shell(client.shell.core)))
        return blocking_cluster.Cluster.over(members)

    @property
    def _awaiting(self) -> awaiting_cluster.AsyncCluster:
        return self

    async def close(self) -> None:
        """Close the clients that were made here, as Client.close(). May be called twice."""
        if "_blocking" in vars(self):
            for client in self._blocking.clients:
                await in_thread(client.shell.connections.close)
        await super().close()
        if self._origin is not None:
            await in_thread(self._origin.close)

    def _made_here(self) -> list[awaiting.AsyncClient]:
        return super()._made_here() if self._origin is None else [one.aio for one in self._origin._made_here()]


class Cluster(WithJobs, blocking_cluster.Cluster):
    __doc__ = blocking_cluster.Cluster.__doc__

    def _begin(self) -> None:
        super()._begin()
        self._begin_jobs()

    @property
    def _blocking(self) -> blocking_cluster.Cluster:
        return self

    @property
    def _awaiting(self) -> awaiting_cluster.AsyncCluster:
        return self.aio

    @functools.cached_property
    def aio(self) -> AsyncCluster:
        """The same cluster for asyncio: it shares servers, listeners, sessions, jobs and schedules.

        `await cluster.aio.close()` closes both.
        """
        members = AsyncMembers([], self._members.retry)
        members.mirror(self._members, lambda client: client.aio)
        made = AsyncCluster.over(members)
        made._origin = self
        made.share_jobs(self)
        made.handlers, made.keep_results = self.handlers, self.keep_results
        made.schedules.declared = self.schedules.declared
        return made


AnyClient = Client | AsyncClient | Cluster | AsyncCluster
