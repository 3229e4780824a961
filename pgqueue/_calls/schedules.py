"""Calls of 6_families/schedules.sql and firing.sql."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypedDict, get_args

from .._values import arguments, data
from .._values.arguments import IfExists, Seconds
from .._values.record import Record
from .._values.timetable import Timetable, timetable
from ..errors import NoSchedule
from .call import Call, Rows, call, nothing, query, scalar
from .options import Options, named_options, option

Missed = Literal["none", "one", "all"]  # for occurrences at which no process ran to fire them

CHANNEL = "pgqueue:schedules"  # on which changes of schedules are announced


class ScheduleArguments(TypedDict, total=False):
    """The options of the puts of a schedule; Queue.put explains them."""

    priority: int | None
    delay: Seconds | None
    ttr: Seconds | None
    ttl: Seconds | None
    lane: str | None
    key: str | None
    if_exists: IfExists


@dataclass(frozen=True, slots=True)
class ScheduleOptions(Options):
    """The same, checked."""

    lane: str | None = option(arguments.label)
    key: str | None = option(arguments.label)
    if_exists: IfExists = option(arguments.if_exists, "ignore")

    def as_dict(self) -> dict[str, Any]:
        """Those that differ from the defaults."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in given.items() if value is not None and (name, value) != _USUAL}


_USUAL = ("if_exists", "ignore")


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule as a program states it. `text` is the data as JSON. Checked when made.

    Raises:
        ValueError: an argument is not valid; of a cron expression, the message names the field.
        ImportError: there is a cron expression, and cronsim is not installed.
    """

    name: str
    cron: str | None
    every: float | None
    queue: str
    text: str
    tz: str
    missed: Missed
    options: ScheduleOptions

    @classmethod
    def of(
        cls,
        name: str,
        cron: str | None,
        every: Seconds | None,
        queue: str,
        text: str,
        tz: str,
        missed: Missed,
        options: ScheduleArguments,
    ) -> Plan:
        seconds = arguments.seconds("every", every, positive=True)
        known = named_options(ScheduleOptions, options, "a schedule")
        plan = cls(schedule_name(name), cron, seconds, arguments.queue_name(queue), text, tz, missed, known)
        if missed not in get_args(Missed):
            raise ValueError(f"missed is one of {', '.join(get_args(Missed))}, not {missed!r}")
        try:
            plan.timetable()
        except ValueError as error:
            raise ValueError(f"schedule {name!r}: {error}") from None
        return plan

    def timetable(self) -> Timetable:
        return timetable(self.cron, self.every, self.tz)

    def as_json(self) -> str:
        known = {"name": self.name, "queue": self.queue, "cron": self.cron, "every": self.every, "tz": self.tz}
        rest = json.dumps(known | {"missed": self.missed, "options": self.options.as_dict()})
        return f'{rest[:-1]},"data":{self.text}}}'  # the data is JSON text already


@dataclass(frozen=True, slots=True)
class ScheduleInfo(Record):
    """A schedule; see Schedules.list().

    Attributes:
        name: its name.
        queue: the name of the queue that it puts into.
        cron: its cron expression; None if it has an interval.
        every: its interval in seconds; None if it has a cron expression.
        tz: the time zone of the cron expression.
        missed: none, one or all.
        data: the data of its tasks; None to a role that may not look.
        options: the options of its puts, by name.
        paused: whether it is paused.
        declared: the program whose code declares it; None if it was set by a call.
        removed_at: since when that code does not declare it any more.
        role: the role that set it, with whose rights it puts.
        next_at: the next occurrence; None before a process has found it, or if there is none.
        last_at: the last occurrence that was fired, or the time of the last run_now().
        last_task: the id of the task that was put last.
        last_state: the state of that task's outcome: ready, taken, done, failed, unknown and so on.
        last_error: the error of that task, if there is one.
        error: why the schedule does not fire at present.
    """

    name: str
    queue: str
    cron: str | None
    every: float | None
    tz: str
    missed: str
    data: Any
    options: dict[str, Any]
    paused: bool
    declared: str | None
    removed_at: datetime | None
    role: str
    next_at: datetime | None
    last_at: datetime | None
    last_task: int | None
    last_state: str | None
    last_error: str | None
    error: str | None

    def timetable(self) -> Timetable:
        """When it happens. Raises ValueError, ImportError."""
        return timetable(self.cron, self.every, self.tz)


class Due(NamedTuple):
    """A schedule that is due, or the one that is due next: in `seconds`. `moment` is the server's present time."""

    name: str
    revision: int
    cron: str | None
    every: float | None
    tz: str
    counts_from: datetime
    next_at: datetime | None
    moment: datetime
    seconds: float


class Fired(NamedTuple):
    """The outcome of an occurrence: fired, lost, busy, early or refused; see fire_schedule."""

    outcome: str
    ids: list[int]
    problem: str | None


class Declared(NamedTuple):
    """The outcome of a declared schedule: created, changed, kept; or removed: the code no longer declares it."""

    name: str
    what: str


def set_schedule(plan: Plan) -> Call[str]:
    return call(
        "set_schedule",
        None,
        scalar,
        name=plan.name,
        queue=plan.queue,
        data=plan.text,
        cron=plan.cron,
        every=plan.every,
        tz=plan.tz,
        missed=plan.missed,
        options=json.dumps(plan.options.as_dict()),
    )


def declare_schedules(source: str, plans: Sequence[Plan]) -> Call[list[Declared]]:
    items = f"[{','.join(plan.as_json() for plan in plans)}]"
    return call(
        "declare_schedules", "name, what", lambda rows: [Declared(*row) for row in rows], source=source, items=items
    )


def pause_schedule(name: str) -> Call[bool]:
    return call("pause_schedule", None, scalar, name=schedule_name(name))


def resume_schedule(name: str) -> Call[bool]:
    return call("resume_schedule", None, scalar, name=schedule_name(name))


def run_schedule(name: str) -> Call[int]:
    return call("run_schedule", None, scalar, name=schedule_name(name))


def delete_schedule(name: str) -> Call[None]:
    return call("delete_schedule", None, nothing, name=schedule_name(name))


_COLUMNS = (
    "name, queue, cron, extract(epoch FROM every)::float, tz, missed, data::pg_catalog.text,"
    " options::pg_catalog.text, paused, declared, removed_at, role, next_at, last_at, last_task, last_state,"
    " last_error, error"
)


def list_schedules() -> Call[list[ScheduleInfo]]:
    """By name."""
    return query(
        f"SELECT {_COLUMNS} FROM pgqueue.schedules ORDER BY name", (), lambda rows: [_info(row) for row in rows]
    )


def get_schedule(name: str) -> Call[tuple[ScheduleInfo, datetime]]:
    """The schedule, and the server's present time. Raises NoSchedule."""

    def read(rows: Rows) -> tuple[ScheduleInfo, datetime]:
        if not rows:
            raise NoSchedule(f"there is no schedule {name!r}")
        return _info(rows[0][:-1]), rows[0][-1]

    return query(
        f"SELECT {_COLUMNS}, pg_catalog.clock_timestamp() FROM pgqueue.schedules"
        " WHERE name OPERATOR(pg_catalog.=) %s::pg_catalog.text",
        (schedule_name(name),),
        read,
    )


def due_schedules(except_for: Sequence[str]) -> Call[list[Due]]:
    return call(
        "due_schedules",
        "name, revision, cron, extract(epoch FROM every)::float, tz, counts_from, next_at, moment, seconds",
        lambda rows: [Due(*row) for row in rows],
        except_for=list(except_for),
    )


def fire_schedule(due: Due, occurrences: Sequence[datetime], next_at: datetime | None) -> Call[Fired]:
    return _fire(due, occurrences, next_at, None)


def refuse_schedule(due: Due, error: str) -> Call[Fired]:
    """Note why its occurrences cannot be found."""
    return _fire(due, [], None, error)


def _fire(due: Due, occurrences: Sequence[datetime], next_at: datetime | None, error: str | None) -> Call[Fired]:
    return call(
        "fire_schedule",
        "outcome, ids, problem",
        lambda rows: Fired(*rows[0]),
        name=due.name,
        revision=due.revision,
        expected=due.next_at,
        occurrences=list(occurrences),
        next_at=next_at,
        error=error,
    )


def schedule_name(value: object) -> str:
    """A schedule's name: 1 to 200 characters, none of them NUL. Raises ValueError."""
    if not isinstance(value, str) or not 1 <= len(value) <= 200:
        raise ValueError(f"a schedule's name is a string of 1 to 200 characters, not {repr(value)[:220]}")
    return arguments.text(value, "a schedule's name")


def _info(row: tuple[Any, ...]) -> ScheduleInfo:
    name, queue, cron, every, tz, missed, text, options, *rest = row
    known = data.decode_if_any(options) or {}
    value = None if text is None else data.shown(text)
    return ScheduleInfo(name, queue, cron, every, tz, missed, value, known, *rest)
