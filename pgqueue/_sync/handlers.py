# Generated from pgqueue/_async/handlers.py by tools/blocking.py: edit that file, not this one.

"""The functions that a client registers for a Worker: handlers of queues, and tasks that schedules put for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack, cast

from .._calls.schedules import Missed, ScheduleArguments
from .._values import arguments
from .._values.arguments import Seconds
from .schedules import Schedules, name_of, options_of, scheduled, source_of

F = TypeVar("F", bound=Callable[..., Any])


class Handlers:
    """The verbs of a client that register functions. They send nothing to the database."""

    schedules: Schedules
    handlers: dict[str, Callable[..., Any]]
    keep_results: dict[str, float]  # seconds, for the queues with kept results

    def _begin_handlers(self) -> None:
        self.handlers = {}
        self.keep_results = {}

    def handler(self, queue: str, *, keep_result: Seconds | None = None) -> Callable[[F], F]:
        """Register a function as the handler of a queue's tasks, for a Worker. The function stays callable by itself.

        The function may be sync or async, and is called with a task's data; see Worker.

        Args:
            queue: the queue's name.
            keep_result: seconds, or a timedelta, for which to keep the handler's result, or the error of a task that
                failed for good, for results.get(). A result that JSON cannot hold is a failure. None keeps nothing.

        Raises:
            ValueError: the name or the time is not valid.
        """
        arguments.queue_name(queue)
        keep = arguments.seconds("keep_result", keep_result, positive=True)

        def register(function: F) -> F:
            self.handlers[queue] = function
            self.keep_results.pop(queue, None)
            if keep is not None:
                self.keep_results[queue] = keep
            return function

        return register

    def cron(
        self,
        cron: str | None = None,
        *,
        every: Seconds | None = None,
        tz: str = "UTC",
        missed: Missed = "one",
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        data: Any = None,
        source: str | None = None,
        **options: Unpack[ScheduleArguments],
    ) -> Callable[[F], F]:
        """Schedule a job, or the handler of a queue: a decorator, above @client.job or @client.handler.

        The schedule is declared, and a worker sets it when it starts; see schedules.declare(). May be used several
        times, with different names.

        Args:
            cron, every, tz, missed: as for schedules.set().
            name: the name of the schedule; default the job's name, or the module and name of the function.
            args: the arguments of a job, by name.
            data: the data of a handler's tasks.
            source: as for schedules.declare(); default the function's program.
            options: priority, delay, ttr, ttl, lane, key and if_exists, in place of the job's.

        Raises:
            ValueError: as schedules.declare(); or the function is neither a job nor a handler.
            BadData, ImportError: as schedules.set().
        """

        def register(function: F) -> F:
            put = scheduled(function, self.handlers, data, args)
            every_put = cast(ScheduleArguments, {**options_of(put), **options})
            self.schedules.declare(
                name or name_of(function),
                cron,
                put.queue,
                put.data,
                every=every,
                tz=tz,
                missed=missed,
                source=source or source_of(function),
                **every_put,
            )
            return function

        return register
