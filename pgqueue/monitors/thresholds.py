"""The thresholds of alerts, and the alerts that reach them. No I/O; the caller passes the time.

Theory of operation
-------------------
A queue's length says little by itself: a thousand tasks are an outage in one application and normal in another. So the
length is compared with the queue's own average until now. This average must not follow an outage faster than the outage
grows, or no threshold would ever be reached. Hence

- the average is exponential, with a half-life much longer than an outage may go unnoticed;
- a length counts as CAP times the average at most, so that the average can at most double in a half-life. A queue that
  grows faster reaches every threshold; a queue that stays at a new length has it as its average after some half-lives;
- an average below a minimum counts as the minimum. Otherwise a queue that is mostly empty would alarm at its first
  tasks.

An alarm rings when its value reaches the threshold. It is armed again once the value is clearly below, at REARM of the
threshold, so a value that varies around the threshold rings once. A check of pgqueue.health rings when it turns bad.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .._calls.health import Check
from .._calls.stats import Stats
from .._values import arguments, printable

CAP = 2.0
REARM = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A value that reached its threshold.

    Attributes:
        kind: `length`: a queue's length, compared with its average; `age`: the age of its oldest ready task; `health`:
            a bad check of the view pgqueue.health.
        name: the name of the queue or the check.
        value: the length in tasks, or the age in seconds; for a check, the value in the view.
        threshold: the threshold that was reached, in tasks or in seconds. None for a check.
        factor: for a length, the threshold as a multiple of the average.
        average: for a length, the average until now, or the minimum if that is more.
        at: the time, in seconds since 1970.
        text: a sentence for people.
    """

    kind: Literal["length", "age", "health"]
    name: str
    value: float
    threshold: float | None = None
    factor: float | None = None
    average: float | None = None
    at: float
    text: str

    def as_dict(self) -> dict[str, Any]:
        """The attributes by their names, for JSON. Infinity becomes None, since JSON has no infinity."""
        return asdict(self) | ({} if math.isfinite(self.value) else {"value": None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The thresholds; Monitor's docstring explains them. Checked when made."""

    factors: Sequence[float] = (5.0, 10.0, 20.0)
    age: float | None = None
    half_life: float = 86400.0
    minimum_average: float = 10.0

    def __post_init__(self) -> None:
        for factor in self.factors:
            if _number("factors", factor) <= CAP:
                raise ValueError(f"each factor must be over {CAP:g}, not {factor!r}: the average would follow it")
        arguments.seconds("age", self.age, positive=True)
        arguments.seconds("half_life", self.half_life, positive=True)
        if _number("minimum_average", self.minimum_average) == 0:
            raise ValueError(f"minimum_average must be over 0, not {self.minimum_average!r}")


class Average:
    """A moving average of lengths that come at any time."""

    def __init__(self, half_life: float, minimum: float, length: float, at: float) -> None:
        self._half_life = half_life
        self._minimum = minimum
        self._value = length
        self._at = at

    @property
    def value(self) -> float:
        """The average, or the minimum if that is more."""
        return max(self._value, self._minimum)

    def add(self, length: float, at: float) -> None:
        old = 0.5 ** (max(0.0, at - self._at) / self._half_life)  # a clock may be set back
        self._value = old * self._value + (1 - old) * min(length, CAP * self.value)
        self._at = at


class Alarm:
    """One threshold of one value."""

    def __init__(self) -> None:
        self._on = False

    def rings(self, value: float, threshold: float) -> bool:
        """Whether the value reaches the threshold with this call."""
        before, self._on = self._on, value >= threshold * (REARM if self._on else 1.0)
        return self._on and not before


class Watched:
    """A queue, its average length, and its alarms."""

    def __init__(self, queue: str, thresholds: Thresholds, usual: float, at: float) -> None:
        self._queue = queue
        self._age = thresholds.age
        self._average = Average(thresholds.half_life, thresholds.minimum_average, usual, at)
        self._lengths = {factor: Alarm() for factor in sorted(set(thresholds.factors))}
        self._aging = Alarm()

    def look(self, stats: Stats, at: float) -> list[Alert]:
        found = [*self._long(stats["total"], at), *self._old(stats["oldest_ready_age"] or 0.0, at)]
        self._average.add(stats["total"], at)
        return found

    def _long(self, length: int, at: float) -> list[Alert]:
        average = self._average.value
        return [
            Alert(
                kind="length",
                name=self._queue,
                value=length,
                threshold=factor * average,
                factor=factor,
                average=average,
                at=at,
                text=f"queue {self._queue!r} has {length} tasks, over {factor:g} times its average of {average:.0f}",
            )
            for factor, alarm in self._lengths.items()
            if alarm.rings(length, factor * average)
        ]

    def _old(self, age: float, at: float) -> list[Alert]:
        if self._age is None or not self._aging.rings(age, self._age):
            return []
        text = f"queue {self._queue!r} has a task that is ready for {age:.0f} s, over {self._age:g} s"
        return [Alert(kind="age", name=self._queue, value=age, threshold=self._age, at=at, text=text)]


class Watcher:
    """All queues, also those that are created and deleted meanwhile, and the checks of the database."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._watched: dict[str, Watched] | None = None
        self._bad: set[str] = set()

    def look(self, found: Mapping[str, Stats], checks: Sequence[Check], at: float) -> list[Alert]:
        """The alerts since the last look.

        The first look takes the lengths that it finds as averages. A queue that appears later begins with an empty
        average.
        """
        known, self._watched = self._watched, {}
        alerts = []
        for name, stats in found.items():
            usual = stats["total"] if known is None else 0.0
            watched = (known or {}).get(name) or Watched(name, self._thresholds, usual, at)
            alerts += watched.look(stats, at)
            self._watched[name] = watched
        return alerts + self._unhealthy(checks, at)

    def _unhealthy(self, checks: Sequence[Check], at: float) -> list[Alert]:
        known, self._bad = self._bad, {check.name for check in checks if check.status == "bad"}
        return [
            Alert(kind="health", name=check.name, value=check.value, at=at, text=_described(check))
            for check in checks
            if check.name in self._bad - known
        ]


def _described(check: Check) -> str:
    found = f"{check.value:.10g} {check.unit}"
    return printable.line(f"the check {check.name} is bad: {found}" + (f", {check.detail}" if check.detail else ""))


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a number from 0, not {value!r}")
    return float(value)
