"""The times of a schedule, from a cron expression in a time zone, or from an interval. No clock: the caller has one.

Theory of operation
-------------------
The occurrences of a timetable are a set of moments, which depends only on the expression, the zone and its rules: each
process finds the same. `after(moment)` is the first one after a moment, and `between` the last ones of a span. So a
process that was stopped for an hour needs no memory of its own.

cronsim reads the expression and walks over naive local times, each of which becomes a moment. Daylight saving is
decided here, as Debian's cron decides it:

- Minute and hour are given ("30 2 * * *"): by the wall clock. A time that the clock skips happens at the first moment
  after the gap; one that occurs twice happens the first time only. From the second pass of an hour the walk would lead
  back into the first: such times are not after the moment, and are dropped.
- Minute or hour begins with * ("*/15 * * * *"): by elapsed time, every 15 minutes, also within the hour that occurs
  twice. A time that the clock skips does not happen.

cronsim has these rules as well, but for five fields only: with seconds, a time in the gap would not happen that day.
And it treats each change as one of whole hours: on Lord Howe, where it is half an hour, it loses times.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Protocol
from zoneinfo import ZoneInfo

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELDS = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
LONGEST = 255  # bytes of an expression, and of a zone's name; as in sql/1_tables/schedules.sql
SHORTEST = 1.0  # seconds of an interval
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Timetable(Protocol):
    """When something happens. All moments are aware, and those returned are in UTC."""

    def after(self, moment: datetime) -> datetime | None:
        """The first occurrence after a moment; None if there is none."""


class Interval:
    """The multiples of a time since 1970, in UTC: each process finds the same, without a beginning to remember."""

    def __init__(self, seconds: float) -> None:
        self._every = timedelta(seconds=seconds)

    def after(self, moment: datetime) -> datetime | None:
        try:
            return EPOCH + ((moment - EPOCH) // self._every + 1) * self._every
        except OverflowError:
            return None


class Cron:
    """The times of a cron expression in a zone.

    Raises:
        ValueError: the expression or the zone is not valid; the message names the field.
        ImportError: cronsim is not installed.
    """

    def __init__(self, expression: str, zone: str) -> None:
        self._zone = read_zone(zone)
        self._expression, fields = _read(expression)
        self._by_wall = not any(field.startswith("*") for field in fields[-5:-3])
        if not self._occurs():
            raise ValueError(f"the cron expression {expression!r} never occurs: no month has such a day")

    def after(self, moment: datetime) -> datetime | None:
        try:
            return self._by_clock(moment) if self._by_wall else self._by_passed_time(moment)
        except OverflowError:  # beyond the year 9999
            return None

    def _by_clock(self, moment: datetime) -> datetime | None:
        for found in _walk(self._expression, moment.astimezone(self._zone).replace(tzinfo=None)):
            if (at := _first_real(found, self._zone).astimezone(UTC)) > moment:
                return at
        return None

    def _by_passed_time(self, moment: datetime) -> datetime | None:
        local = moment.astimezone(self._zone)
        at = self._next_real(local.replace(tzinfo=None), moment)
        twice = _repeats_after(local)
        if at is None or not twice or _repeats_after(at.astimezone(self._zone)):
            return at
        # The first pass has no time left. The second one begins with local times before the present one.
        again = self._next_real(local.replace(tzinfo=None) - twice, moment)
        return at if again is None else min(at, again)

    def _next_real(self, start: datetime, moment: datetime) -> datetime | None:
        """The first moment after `moment` of the local times after `start`. A time in a gap has none."""
        for found in _walk(self._expression, start):
            for fold in (0, 1):
                at = found.replace(tzinfo=self._zone, fold=fold).astimezone(UTC)
                if at > moment and at.astimezone(self._zone).replace(tzinfo=None) == found:
                    return at
        return None

    def _occurs(self) -> bool:
        try:
            return self.after(EPOCH) is not None
        except _simulator_error():
            return False


def timetable(cron: str | None, every: float | None, zone: str) -> Timetable:
    """The timetable of a schedule, which has a cron expression or an interval. Raises as Cron, and for an interval."""
    if (cron is None) == (every is None):
        raise ValueError("a schedule needs a cron expression or a time for every, and not both")
    read_zone(zone)
    if cron is not None:
        return _cron(_text(cron), zone)
    assert every is not None
    if not every >= SHORTEST or math.isinf(every):
        raise ValueError(f"every must be at least {SHORTEST:g} second, not {every!r}")
    return Interval(every)


@lru_cache(1024)
def _cron(expression: str, zone: str) -> Cron:
    return Cron(expression, zone)


def between(times: Timetable, start: datetime, end: datetime, most: int) -> list[datetime]:
    """The occurrences after `start`, and not after `end`: the last `most` of them, in their order.

    It looks at the end of the span first, and further back until it has enough. A year of seconds costs no more than
    some hundreds of them.
    """
    span = timedelta(seconds=most)
    while end - span > start:
        if len(found := _all(times, end - span, end, most)) == most:
            return found
        span *= 8
    return _all(times, start, end, most)


def read_zone(name: str) -> tzinfo:
    """A time zone. UTC needs no database of zones. Raises ValueError."""
    if name == "UTC":
        return UTC
    try:
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= LONGEST:
            raise ValueError("it has 1 to 255 bytes")
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # not found; not a key; the name of a folder
        raise ValueError(
            f"there is no time zone {name!r}: names are as Europe/Berlin or UTC. A system without time zones needs the"
            " package tzdata"
        ) from error


def _read(expression: str) -> tuple[str, list[str]]:
    """The expression and its fields, checked one by one, so that an error can name the field."""
    whole = MACROS.get(_text(expression).strip().lower(), expression)
    fields = whole.split()
    if len(fields) not in (5, 6):
        raise ValueError(
            "a cron expression has 5 fields (minute hour day-of-month month day-of-week), or 6 with seconds first, or"
            f" is one of {', '.join(MACROS)}; {expression!r} has {len(fields)}"
        )
    for place, field in enumerate(fields, start=6 - len(fields)):
        if not _is_field(field, place):
            raise ValueError(f"the {FIELDS[place]} {field!r} of the cron expression {expression!r} is not valid")
    return whole, fields


def _text(expression: object) -> str:
    if not isinstance(expression, str) or len(expression.encode()) > LONGEST:
        raise ValueError(f"a cron expression is a string of at most {LONGEST} bytes, not {repr(expression)[:100]}")
    return expression


def _is_field(field: str, place: int) -> bool:
    alone = ["*"] * 6
    alone[place] = field
    simulator = _simulator()
    try:
        simulator(" ".join(alone), EPOCH)
    except (_simulator_error(), ValueError, AssertionError):
        return False
    return field.isascii()


def _walk(expression: str, start: datetime) -> Iterator[datetime]:
    found: Iterator[datetime] = _simulator()(expression, start)
    return found


def _repeats_after(local: datetime) -> timedelta:
    """How much later this local time occurs again, in the second pass; zero: it does not."""
    later = local.replace(fold=1).astimezone(UTC) - local.replace(fold=0).astimezone(UTC)
    return timedelta() if local.fold else max(timedelta(), later)


def _first_real(local: datetime, zone: tzinfo) -> datetime:
    """A local time as a moment; if the clock skips it, the first moment after the gap."""
    at = local.replace(tzinfo=zone)
    while at != at.astimezone(UTC).astimezone(zone):
        local = (local + timedelta(minutes=1)).replace(second=0)
        at = local.replace(tzinfo=zone)
    return at


def _all(times: Timetable, start: datetime, end: datetime, most: int) -> list[datetime]:
    found: deque[datetime] = deque(maxlen=most)
    at = times.after(start)
    while at is not None and at <= end:
        found.append(at)
        at = times.after(at)
    return list(found)


def _simulator() -> Any:
    try:
        from cronsim import CronSim
    except ImportError:
        raise ImportError(
            "cron expressions need cronsim: run `pip install '.[cron]'` in a checkout of pgqueue"
        ) from None
    return CronSim


def _simulator_error() -> type[Exception]:
    from cronsim import CronSimError

    return CronSimError
