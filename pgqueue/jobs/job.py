"""A job: a function with a name, a queue and policies, and its puts."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeAlias, TypeVar, Unpack, cast

from .._async.queue import AsyncQueue
from .._async.task import AsyncTask
from .._calls.put_options import PutArguments, PutManyArguments
from .._records.puts import Put
from .._records.task import AnyTask, without_result
from .._sync.queue import Queue
from .._sync.task import Task
from ..errors import BadArguments
from .codec import codec
from .limits import LIMIT, limit_of
from .middleware import Order, around_aput, around_put, checked, headed
from .options import PLAIN, QUEUE, JobPutArguments, Options, Settings
from .own import read
from .setups import Finder
from .signature import Signature, is_async

P = ParamSpec("P")
R = TypeVar("R")

#: The arguments of one task in put_many: positional ones as a tuple, or named ones as a mapping.
Arguments: TypeAlias = tuple[Any, ...] | Mapping[str, Any]
Upgrade: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


class Jobs(Protocol):
    """The registry as a job needs it: the policies of jobs that leave them open."""

    @property
    def defaults(self) -> Settings: ...


class Home(Protocol):
    """The client as a job needs it: the registry, and queues to put into, of both kinds."""

    @property
    def jobs(self) -> Jobs: ...
    @property
    def middleware(self) -> list[Any]: ...
    def blocking_queue(self, name: str) -> Queue: ...
    def awaiting_queue(self, name: str) -> AsyncQueue: ...


class Job(Generic[P, R]):
    """A function that runs as the tasks of a queue, made by client.job(). Called, it is the function itself.

    Attributes:
        name: its name in the tasks' data.
        function: the function.
        aliases: former names, under which tasks may still wait.
        signature: its parameters.
        limit: how many of its tasks run at once, or begin in a time; empty: any number.
        codec: checks and converts its arguments.
        is_async: whether it is a coroutine function.
        finder: how a child process finds it, if not by the name of its function; for integrations.
    """

    def __init__(
        self,
        home: Home,
        function: Callable[..., R],
        name: str,
        own: Settings,
        aliases: tuple[str, ...] = (),
        local_names: Mapping[str, Any] | None = None,
        limit: Mapping[str, Any] | None = None,
        *,
        plain: bool = False,
    ) -> None:
        functools.update_wrapper(self, function)
        self.name = name
        self.function = function
        self.aliases = aliases
        self.is_async = is_async(function)
        self.signature = Signature(function, name, local_names)
        self._home = home
        self._own = own
        self._settings: tuple[Settings, Settings] | None = None
        self.limit = limit_of(self.signature, function, **(limit or dict.fromkeys(LIMIT)))
        self.codec = codec(self.signature, function, keeps_result=bool(self.settings.keep_result), plain=plain)
        self.upgrades: Upgrade | None = None
        self.finder: Finder | None = None

    def __repr__(self) -> str:
        return f"<Job {self.name} of {self.queue}>"

    def __reduce__(self) -> str:
        """Pickled by its place in its module, as a function is."""
        return str(getattr(self, "__qualname__", self.name))  # update_wrapper sets it

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @functools.cached_property
    def version(self) -> str:
        """A digest of its signature, put with each task: by that a worker tells arguments for other code from wrong
        ones."""
        return hashlib.sha256(self.codec.schema().encode()).hexdigest()[:8]

    @property
    def settings(self) -> Settings:
        """Its policies, with the client's defaults for those that it leaves open."""
        defaults = self._home.jobs.defaults
        if self._settings is None or self._settings[0] is not defaults:
            self._settings = defaults, self._own.over(defaults)
        return self._settings[1]

    @property
    def middleware(self) -> tuple[Any, ...]:
        """The middleware of its puts and runs: the client's, then its own. Empty for most jobs."""
        return (*checked(self._home.middleware), *self.settings.middleware)

    @property
    def queue(self) -> str:
        """The name of the queue for its tasks."""
        return self.settings.queue or QUEUE

    def limited(self, named: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a put, with the one by which its limit counts: the database does not know its default."""
        if (by := self.limit.argument) is not None and by not in named:
            named[by] = self.signature.parameters[by].default
        return named

    def limited_json(self, args: Any, loaded: dict[str, Any]) -> Any:
        """The same for arguments that are JSON values already. `loaded`: as the function gets them."""
        if (by := self.limit.argument) is None or by in args:
            return args
        return args | {by: self.codec.dump(self.limited(loaded))[by]}

    def put(self, *args: P.args, **kwargs: P.kwargs) -> Task:
        """Put a task that calls the function with these arguments.

        Returns:
            The task, as Queue.put: of a job with unique_data or unique_for the task that now has the key, and `existed`
            says whether that was in the queue before.

        Raises:
            BadArguments: an argument is missing, unknown or of the wrong type, or JSON cannot hold it.
            BadData, PutRefused, ConnectionLost: as Queue.put.
        """
        return BoundJob(self, PLAIN).put(*args, **kwargs)

    async def aput(self, *args: P.args, **kwargs: P.kwargs) -> AsyncTask:
        """As put, for asyncio."""
        return await BoundJob(self, PLAIN).aput(*args, **kwargs)

    def put_many(self, items: Iterable[Arguments]) -> list[int]:
        """Put many tasks in one transaction. Returns their ids; see BoundJob.put_many."""
        return BoundJob(self, PLAIN).put_many(items)

    async def aput_many(self, items: Iterable[Arguments]) -> list[int]:
        """As put_many, for asyncio."""
        return await BoundJob(self, PLAIN).aput_many(items)

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Put:
        """The task as a Put, for `task.ack(put=[...])`: checked now, put then. Raises BadArguments."""
        return BoundJob(self, PLAIN).prepare(*args, **kwargs)

    def options(self, **options: Unpack[JobPutArguments]) -> BoundJob[P]:
        """The job with options for its next put: `send.options(delay=60).put("ada")`.

        Args:
            priority, delay, run_at, ttr, ttl, lane, key, if_exists, sender: those of Queue.put.
            unique_data, unique_for: those of Queue.put, in place of the job's: unique_data=False, or unique_for=None,
                puts also where there is such a task.
            after, on_failure: the tasks and batches that must have ended first, and the action if one has failed; see
                Queue.put.
            batch: an open batch, to which the task belongs; see Client.batch.
            conn: the caller's connection. The task then exists if and when the caller's transaction commits. An open
                connection of psycopg, or for aput an async one; see Queue.put.
            queue: the queue to put into, in place of the job's own. Any worker that has this job and serves that queue
                runs the task.
            headers: strings that are stored with the task, for middleware.
            attempts: after this number of failed attempts the task is buried, in place of the Retry's attempts.
            retry: a Retry of this task, in place of the job's. Without on, never and choose: those of the job apply.
            timeout, keep_result: of this task, in seconds or as a timedelta, in place of the job's.

        Raises:
            ValueError: an option is out of range, or there is none of that name; or a job with a limit is put into a
                lane.
        """
        if options.get("lane") is not None and not self.limit.empty:
            raise ValueError(
                f"job {self.name} has a limit, and a task in a lane cannot have one: leave out the lane, or the job's"
                " concurrency and rate"
            )
        return BoundJob(self, Options.of(options))

    def at(self, home: Home) -> Self:
        """The same job with the queues, the defaults and the middleware of another home. For integrations."""
        return self._changed(_home=home)

    def varied(self, own: Mapping[str, Any]) -> Self:
        """The same job with the policies that one task's data has. Raises ValueError, TypeError: they are none."""
        return self._changed(_own=replace(self._own, **read(own, self.settings.retry)))

    def _changed(self, **attributes: Any) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, _settings=None, **attributes)
        return made

    def upgrade(self, function: Upgrade) -> Upgrade:
        """Register a function for tasks whose arguments do not fit any more: a decorator.

        It gets the arguments of such a task as JSON values, by name, and returns those for the present signature. If
        those do not fit either, or without such a function, the task is buried with the difference.
        """
        self.upgrades = function
        return function


class JobWithTask(Job[P, R]):
    """A job whose first parameter is its Task: a type for the checkers, to which the Task is no argument of put()."""

    def __call__(self, task: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]  # one parameter more than put
        return self.function(task, *args, **kwargs)


class BoundJob(Generic[P]):
    """A job with the options of a put, from Job.options()."""

    __slots__ = ("_job", "_options")

    def __init__(self, job: Job[P, Any], options: Options) -> None:
        self._job = job
        self._options = options

    def put(self, *args: P.args, **kwargs: P.kwargs) -> Task:
        """As Job.put, with these options."""
        return self._told(self._put(self._data(args, kwargs)))

    async def aput(self, *args: P.args, **kwargs: P.kwargs) -> AsyncTask:
        """As Job.aput, with these options."""
        return self._told(await self._aput(self._data(args, kwargs)))

    def put_many(self, items: Iterable[Arguments]) -> list[int]:
        """Put many tasks in one transaction: all of them or none.

        Args:
            items: the arguments of each task: positional ones as a tuple, or named ones as a mapping.

        Returns:
            The ids, in the order of the items.

        Raises:
            BadArguments: for one of the items; nothing is put.
            ValueError, PutRefused, ConnectionLost: as Queue.put_many.
        """
        name, put = self._place()
        queue, many = self._job._home.blocking_queue(name), self._many(items)
        if not (middleware := self._job.middleware):
            return queue.put_many(many, conn=self._options.conn, **_of_many(put))
        every = list(many)
        order = self._order(name, every)

        def send() -> list[int]:
            found = [headed(data, order) for data in every]
            order.ids = queue.put_many(found, conn=self._options.conn, **_of_many(put))
            return order.ids

        return around_put(middleware, order, send)

    async def aput_many(self, items: Iterable[Arguments]) -> list[int]:
        """As put_many, for asyncio."""
        name, put = self._place()
        queue, many = self._job._home.awaiting_queue(name), self._many(items)
        if not (middleware := self._job.middleware):
            return await queue.put_many(many, conn=self._options.conn, **_of_many(put))
        every = list(many)
        order = self._order(name, every)

        async def send() -> list[int]:
            found = [headed(data, order) for data in every]
            order.ids = await queue.put_many(found, conn=self._options.conn, **_of_many(put))
            return order.ids

        return await around_aput(middleware, order, send)

    def put_json(self, args: Any) -> Task:
        """Put a task with arguments that are JSON values already, by name: as SQL could put it, but checked.

        Raises:
            BadArguments: as the worker would refuse them.
        """
        return self._put(self._json_data(args))

    async def aput_json(self, args: Any) -> AsyncTask:
        """As put_json, for asyncio."""
        return await self._aput(self._json_data(args))

    def _put(self, data: dict[str, Any]) -> Task:
        name, put = self._place()
        queue = self._job._home.blocking_queue(name)
        if not (middleware := self._job.middleware):
            return queue.put(data, conn=self._options.conn, **put)
        order = self._order(name, [data])

        def send() -> Task:
            task = queue.put(headed(data, order), conn=self._options.conn, **put)
            order.ids = [task.id]
            return task

        return around_put(middleware, order, send)

    async def _aput(self, data: dict[str, Any]) -> AsyncTask:
        name, put = self._place()
        queue = self._job._home.awaiting_queue(name)
        if not (middleware := self._job.middleware):
            return await queue.put(data, conn=self._options.conn, **put)
        order = self._order(name, [data])

        async def send() -> AsyncTask:
            task = await queue.put(headed(data, order), conn=self._options.conn, **put)
            order.ids = [task.id]
            return task

        return await around_aput(middleware, order, send)

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Put:
        """As Job.prepare, with these options."""
        name, put = self._place()
        data = self._data(args, kwargs)
        if middleware := self._job.middleware:
            order = self._order(name, [data])
            data = around_put(middleware, order, lambda: headed(data, order))
        return Put(name, data, **put)

    def _told(self, task: AnyTask) -> AnyTask:
        """The task, which knows if no result of it is kept. A function that gets its Task may keep one itself."""
        job = self._job
        if self._options.own.get("keep_result", job.settings.keep_result) or job.signature.wants_task:
            return task
        return without_result(task, job.name)

    def _order(self, queue: str, every: list[dict[str, Any]]) -> Order:
        return Order(self._job.name, queue, [data["args"] for data in every], dict(self._options.headers or {}))

    def _place(self) -> tuple[str, PutArguments]:
        """The queue, and the options of Queue.put."""
        settings, given = self._job.settings, self._options
        put: PutArguments = {}
        if settings.priority is not None:
            put["priority"] = settings.priority
        if settings.ttl is not None:
            put["ttl"] = settings.ttl
        if settings.ttr is not None:
            put["ttr"] = settings.ttr
        if settings.unique_data and given.put.get("key") is None:
            put["unique_data"] = True
        if settings.unique_for is not None:
            put["unique_for"] = settings.unique_for
        put.update(given.put)
        return given.queue or settings.queue or QUEUE, put

    def _data(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        job = self._job
        return self._enveloped(job.codec.dump(job.limited(job.signature.named(args, kwargs))))

    def _json_data(self, args: Any) -> dict[str, Any]:
        return self._enveloped(self._job.limited_json(args, self._job.codec.load_args(args)))

    def _enveloped(self, args: dict[str, Any]) -> dict[str, Any]:
        options = self._options
        data: dict[str, Any] = {"job": self._job.name, "sig": self._job.version, "args": args}
        if options.own:
            data["own"] = dict(options.own)
        if options.headers:
            data["headers"] = dict(options.headers)
        if options.attempts is not None:
            data["attempts"] = options.attempts
        return data

    def _many(self, items: Iterable[Arguments]) -> Iterable[dict[str, Any]]:
        for index, item in enumerate(items):
            args, kwargs = ((), dict(item)) if isinstance(item, Mapping) else (item, {})
            if not isinstance(args, tuple):
                raise ValueError(f"the arguments of a task are a tuple or a mapping, not {item!r}")
            try:
                yield self._data(args, kwargs)
            except BadArguments as error:
                raise BadArguments(error.job, f"[{index}]{error.path}", error.reason) from None


def _of_many(put: PutArguments) -> PutManyArguments:
    return cast(PutManyArguments, put)  # put_many itself refuses a key for all
