"""Schedules: tasks that are put at set times, and the clock that does so."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, Unpack, cast

from .._calls import schedules as calls
from .._calls.schedules import Declared, Missed, Plan, ScheduleArguments, ScheduleInfo
from .._engine import clock
from .._engine.awaiting import Conn, Signal
from .._records.puts import Put
from .._values import arguments
from .._values.arguments import Seconds
from .._values.logs import log
from .._values.timetable import read_zone
from .shell import AsyncShell


class AsyncSchedules:
    """Schedules, as `client.schedules`. A worker fires them; so does `pgqueue schedule clock`, and clock().

    Attributes:
        declared: the schedules of declare(), by source and name.
    """

    def __init__(self, shell: AsyncShell) -> None:
        self._shell = shell
        self.declared: dict[str, dict[str, Plan]] = {}

    async def set(
        self,
        name: str,
        cron: str | None,
        queue: str,
        data: Any = None,
        *,
        every: Seconds | None = None,
        tz: str = "UTC",
        missed: Missed = "one",
        conn: Conn | None = None,
        **options: Unpack[ScheduleArguments],
    ) -> str:
        """Make a schedule, or change the one of this name. A paused one stays paused.

        Args:
            name: 1 to 200 characters.
            cron: a cron expression: minute, hour, day of month, month and day of week, as "0 9 * * mon-fri". With six
                fields the first is seconds. Also @hourly, @daily, @weekly, @monthly and @yearly. None with `every`.
            queue: the name of the queue to put into; it is created if it does not exist.
            data: the data of each task; anything that JSON can hold, and bytes.
            every: in place of cron: seconds, at least 1, or a timedelta. The times are its multiples since 1970 in UTC.
            tz: the time zone of the cron expression, as "Europe/Berlin". A time that the clock skips in spring happens
                when the gap is over; one that occurs twice in autumn happens once. Expressions whose minute or hour
                begins with * count elapsed time instead.
            missed: for occurrences at which no process ran to fire them. `one` (the default): one task for all of them;
                `all`: a task for each, the last 100 if there are more; `none`: no task for one that is more than a
                minute old.
            conn: the caller's connection: the schedule is set when its transaction commits.
            priority, delay, ttr, ttl, lane, key, if_exists: of each put; see Queue.put. With a key no task is put while
                the last one is not done.

        Returns:
            `created`, `changed`, or `kept` if it was the same before.

        Raises:
            ValueError: an argument is not valid; of a cron expression, the message names the field.
            ImportError: there is a cron expression, and cronsim is not installed.
            BadData: JSON cannot hold the data.
            NotAllowed: the role may not put into the queue; or another role set the schedule.
            QuotaReached: the role has set as many schedules as it may.
        """
        text = self._shell.encode(data)
        plan = Plan.of(name, cron, every, queue, text, tz, missed, options)
        return await self._shell.run(calls.set_schedule(plan), conn)

    async def list(self) -> builtins.list[ScheduleInfo]:
        """Every schedule, by name, with its next and its last occurrence."""
        return await self._shell.run(calls.list_schedules())

    async def get(self, name: str) -> ScheduleInfo:
        """One schedule. Raises NoSchedule, ValueError."""
        return (await self._shell.run(calls.get_schedule(name)))[0]

    async def next(self, name: str, n: int = 5) -> builtins.list[datetime]:
        """The next n times of a schedule from now on, in its time zone; fewer if there are no more.

        A paused schedule has them too. Occurrences that were missed are not among them.

        Raises:
            NoSchedule: there is none of this name.
            ValueError: an argument is not valid, or the expression or zone of the schedule, set in SQL, is not.
            ImportError: it has a cron expression, and cronsim is not installed.
        """
        arguments.count("n", n)
        schedule, moment = await self._shell.run(calls.get_schedule(name))
        times, found = schedule.timetable(), builtins.list[datetime]()
        zone = read_zone(schedule.tz)
        while len(found) < n and (at := times.after(moment)) is not None:
            found.append(at.astimezone(zone))
            moment = at
        return found

    async def pause(self, name: str, *, conn: Conn | None = None) -> bool:
        """Stop firing it until resume(). Returns False if it is paused already. Raises NoSchedule, NotAllowed."""
        return await self._shell.run(calls.pause_schedule(name), conn)

    async def resume(self, name: str, *, conn: Conn | None = None) -> bool:
        """Go on with a schedule from now on: occurrences during the pause do not count as missed.

        Also after a step of the server's clock: a schedule whose next time is too far in the future starts from now.

        Returns:
            Whether it was paused.

        Raises:
            NoSchedule: there is none of this name.
            NotAllowed: another role set it, and this one may not manage its queue.
        """
        return await self._shell.run(calls.resume_schedule(name), conn)

    async def run_now(self, name: str, *, conn: Conn | None = None) -> int:
        """Put its task now, also while it is paused. Its times stay as they are.

        Returns:
            The id of the task; with a key, of the task that has the key.

        Raises:
            NoSchedule: there is none of this name.
            NotAllowed: as resume; or the role that set it may not put into the queue any more.
            PutRefused: the queue refuses the put.
        """
        return await self._shell.run(calls.run_schedule(name), conn)

    async def delete(self, name: str, *, conn: Conn | None = None) -> None:
        """Remove a schedule. The tasks that it has put stay. Raises NoSchedule, NotAllowed.

        The next start of a worker whose code declares it sets it again.
        """
        await self._shell.run(calls.delete_schedule(name), conn)

    def declare(
        self,
        name: str,
        cron: str | None,
        queue: str,
        data: Any = None,
        *,
        every: Seconds | None = None,
        tz: str = "UTC",
        missed: Missed = "one",
        source: str | None = None,
        **options: Unpack[ScheduleArguments],
    ) -> None:
        """State a schedule in code. A worker of this client sets it when it starts; so does sync(). No I/O.

        Code wins: it overwrites a schedule that was set under the name since then, except a pause. A schedule that the
        code no longer declares is reported, and goes on until it is deleted.

        Args:
            name, cron, queue, data, every, tz, missed, options: as for set().
            source: the program; schedules of other sources are not taken for removed. Default: the top-level package of
                the caller's module, or the name of the file of a script.

        Raises:
            ValueError: as set(); or a schedule of this name is declared already.
            ImportError, BadData: as set().
        """
        plan = Plan.of(name, cron, every, queue, self._shell.encode(data), tz, missed, options)
        taken = next((of for of, plans in self.declared.items() if name in plans), None)
        if taken is not None:
            raise ValueError(f"schedule {name!r} is declared twice: first in {taken}")
        self.declared.setdefault(source or _program(sys._getframe(1).f_globals), {})[name] = plan

    async def sync(self) -> builtins.list[Declared]:
        """Set the declared schedules, and log the outcome of each. Workers call it when they start.

        Returns:
            The name of each, and `created`, `changed`, `kept`; or `removed`: declared before, and no longer.

        Raises:
            NotAllowed, QuotaReached, ValueError: as set(). Then none of that source is set.
        """
        found = builtins.list[Declared]()
        for source, plans in self.declared.items():
            call = calls.declare_schedules(source, builtins.list(plans.values()))
            became: builtins.list[Declared] = await self._shell.run(call)
            found += became
        for name, what in found:
            if what == "removed":
                log.warning(
                    "schedule %r is not declared any more, and goes on: `pgqueue schedule delete` ends it", name
                )
            elif what != "kept":
                log.info("schedule %r was %s", name, what)
        return found

    def clock(self) -> AsyncClock:
        """A clock that fires the schedules of all queues that this role may use; see AsyncClock and Clock."""
        return AsyncClock(self._shell)


class AsyncClock:
    """Fires schedules, from client.schedules.clock(). Any number of them may run, in any number of processes."""

    def __init__(self, shell: AsyncShell) -> None:
        self._shell = shell
        self._clock = clock.Clock(shell.settings.poll)

    async def run(self) -> None:
        """Fire due schedules until stop() is called or the client is closed. Goes on when the server is away.

        Raises:
            ServerError, SchemaError: as the first call of a client.
        """
        await self._shell.drive(self._clock.run(await self._shell.listener(), Signal))

    def stop(self) -> None:
        """Let run() return. May be called in any thread."""
        self._clock.stop()


class Preparable(Protocol):
    """A job: it checks arguments and makes a Put of them."""

    name: str

    def prepare(self, *args: Any, **kwargs: Any) -> Put: ...


def scheduled(function: Any, handlers: Mapping[str, Any], data: Any, args: Mapping[str, Any] | None) -> Put:
    """The Put of a decorated function's schedule: a job's task, or data for the handler of a queue.

    Raises:
        ValueError: it is neither; or a job got data, or a handler arguments.
    """
    if hasattr(function, "prepare"):
        if data is not None:
            raise ValueError(f"job {function.name!r} is scheduled with args, not with data")
        put: Put = cast(Preparable, function).prepare(**(args or {}))
        return put
    queue = next((queue for queue, handler in handlers.items() if handler is function), None)
    if queue is None:
        raise ValueError(
            f"{name_of(function)} is no job and no handler: put @client.cron above @client.job or @client.handler"
        )
    if args is not None:
        raise ValueError(f"the handler {name_of(function)} is scheduled with data, not with args")
    return Put(queue, data)


def name_of(function: Any) -> str:
    """The name of a function or a job, by which its schedule is called."""
    name = getattr(function, "name", None)
    return name if isinstance(name, str) else f"{function.__module__}.{function.__qualname__}"


def options_of(put: Put) -> ScheduleArguments:
    """The options of a put that a schedule has too, without those that it does not give."""
    given = {name: getattr(put.options, name) for name in ScheduleArguments.__annotations__}
    return cast(ScheduleArguments, {name: value for name, value in given.items() if value is not None})


def source_of(function: Any) -> str:
    """The program that a decorated function belongs to."""
    return _program(getattr(inspect.unwrap(function), "__globals__", {"__name__": function.__module__}))


def _program(module: dict[str, Any]) -> str:
    """The program that a module belongs to."""
    name = str(module.get("__name__", "__main__"))
    if name == "__main__" and (file := module.get("__file__")):
        return Path(file).stem
    return name.partition(".")[0]
