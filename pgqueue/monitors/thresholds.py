"""The thresholds of alerts, and the alerts that reach them. No I/O; watcher.py compares.

A threshold is absolute, a number that the user knows or a default, or learnt: a multiple of a queue's own average until
now (averages.py). A length alone means little: a thousand tasks are an outage in one application and normal in another.

An alert fires when its value reaches the threshold. It is resolved once the value is clearly below, at REARM of the
threshold, so a value that varies around the threshold fires once. A check of pgqueue.health fires when it turns bad.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from .._values import arguments
from .._values.arguments import Seconds
from .averages import CAP

REARM = 0.8
LENGTH = 10_000.0  # tasks
AGE = 300.0  # seconds
FAILURES = 30.0  # in a minute
UNTAKEN = 60.0  # seconds
SNAPSHOT = 1800.0  # seconds
LATE = 60.0  # seconds

Kind = Literal["length", "growth", "age", "failures", "untaken", "late_schedule", "snapshot", "health"]
EachNumber: TypeAlias = float | Mapping[str | None, float | None] | None
EachSeconds: TypeAlias = Seconds | Mapping[str | None, Seconds | None] | None


class Key(NamedTuple):
    """The subject of an alert: alerts with one key follow each other, and each is resolved before the next fires."""

    kind: Kind
    queue: str | None
    name: str
    factor: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A value that reached its threshold, or is below it again.

    Attributes:
        state: `firing`, or `resolved`: an alert is sent once with each, in this order.
        kind: `length`: the ready tasks of a queue; `growth`: its tasks, compared with their average; `age`: of its
            oldest ready task; `failures`: its failed attempts in a minute; `untaken`: for how long nothing has taken
            its ready tasks; `late_schedule`: an occurrence that is not fired; `snapshot`: the age of the oldest one
            that keeps dead rows; `health`: a bad check of the view pgqueue.health.
        name: the name of the queue, the schedule or the check; for a snapshot, "".
        queue: the name of the queue; None for a check and a snapshot.
        value: the number of tasks or failures, or seconds; for a check, the value in the view.
        threshold: the threshold that was reached. None for a check.
        factor: for `growth`, the threshold as a multiple of the average.
        average: for `growth`, the average until now, or the minimum if that is more.
        since: when it began to fire, in seconds since 1970.
        at: the time of the look, in seconds since 1970.
        text: a sentence for people.
    """

    state: Literal["firing", "resolved"] = "firing"
    kind: Kind
    name: str
    queue: str | None = None
    value: float
    threshold: float | None = None
    factor: float | None = None
    average: float | None = None
    since: float
    at: float
    text: str

    def as_dict(self) -> dict[str, Any]:
        """The attributes by their names, for JSON. Infinity becomes None, since JSON has no infinity."""
        return asdict(self) | ({} if math.isfinite(self.value) else {"value": None})


class PerQueue:
    """A threshold of each queue: one for all, or those of some queues by their names, and under None that of the
    others, by default the usual one. None: off."""

    def __init__(self, name: str, value: EachSeconds, usual: float) -> None:
        given = dict(value) if isinstance(value, Mapping) else {None: value}
        found = {queue: _limit(name, one) for queue, one in given.items()}
        self._others = found.pop(None, usual)
        self._named = {arguments.queue_name(queue): one for queue, one in found.items()}

    def of(self, queue: str) -> float | None:
        return self._named.get(queue, self._others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The thresholds; Monitor's docstring explains them. Checked when made."""

    length: EachNumber = LENGTH
    age: EachSeconds = AGE
    failures: EachNumber = FAILURES
    untaken: EachSeconds = UNTAKEN
    late_schedule: EachSeconds = LATE
    snapshot: Seconds | None = SNAPSHOT
    factors: Sequence[float] = (5.0, 10.0, 20.0)
    half_life: float = 86400.0
    minimum_average: float = 10.0
    limits: dict[str, PerQueue] = field(init=False)

    def __post_init__(self) -> None:
        for factor in self.factors:
            if _number("factors", factor) <= CAP:
                raise ValueError(f"each factor must be over {CAP:g}, not {factor!r}: the average would follow it")
        arguments.seconds("snapshot", self.snapshot, positive=True)
        arguments.seconds("half_life", self.half_life, positive=True)
        if _number("minimum_average", self.minimum_average) == 0:
            raise ValueError(f"minimum_average must be over 0, not {self.minimum_average!r}")
        usual = {"length": LENGTH, "age": AGE, "failures": FAILURES, "untaken": UNTAKEN, "late_schedule": LATE}
        limits = {name: PerQueue(name, getattr(self, name), value) for name, value in usual.items()}
        object.__setattr__(self, "limits", limits)


def _limit(name: str, value: Seconds | None) -> float | None:
    if value is not None and name in ("length", "failures"):
        if _number(name, value) == 0:
            raise ValueError(f"{name} must be over 0, not {value!r}")
        return _number(name, value)
    return arguments.seconds(name, value, positive=True)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a number from 0, not {value!r}")
    return float(value)
