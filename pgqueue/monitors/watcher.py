"""Which alerts fire, and which are resolved: looks at all queues, also new and deleted ones, and at the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from .._calls.health import Check, Conditions
from .._calls.stats import Stats
from .._values import arguments, printable
from .averages import Average, Minute, Untaken
from .thresholds import REARM, Alert, Key, Kind, Thresholds


class Level(NamedTuple):
    """A value beside its threshold. `what`: a text about the value; `over`: the text after it if the alert fires."""

    key: Key
    value: float
    threshold: float | None  # of a check: None
    what: str
    over: str
    average: float | None = None

    def is_over(self, fires: bool) -> bool:
        """Whether an alert fires at it, that `fires` already or not yet."""
        return self.threshold is None or self.value >= self.threshold * (REARM if fires else 1.0)


class Watcher:
    """Compares each look with the look before.

    Attributes:
        firing: the alerts that fire now, as they began.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._snapshot = arguments.seconds("snapshot", thresholds.snapshot)
        self._queues: dict[str, Watched] | None = None
        self.firing: dict[Key, Alert] = {}

    def look(
        self, found: Mapping[str, Stats], checks: Sequence[Check], conditions: Conditions, at: float
    ) -> list[Alert]:
        """The alerts since the last look, those that begin to fire first.

        The first look takes the lengths that it finds as averages. A queue that appears later begins with an empty
        average.
        """
        known, self._queues = self._queues, {}
        levels: dict[Key, Level] = {}
        for name, stats in found.items():
            usual = stats["total"] if known is None else 0.0
            watched = (known or {}).get(name) or Watched(name, self._thresholds, usual, at)
            for level in watched.look(stats, conditions, at, self.firing):
                levels[level.key] = level
            self._queues[name] = watched
        for level in (*self._late(conditions), *self._held(conditions), *_bad(checks)):
            levels[level.key] = level
        return [*self._begun(levels, at), *self._ended(levels, at)]

    def _begun(self, levels: Mapping[Key, Level], at: float) -> list[Alert]:
        alerts = [
            Alert(
                kind=key.kind,
                name=key.name,
                queue=key.queue,
                value=level.value,
                threshold=level.threshold,
                factor=key.factor,
                average=level.average,
                since=at,
                at=at,
                text=printable.line(level.what + level.over),
            )
            for key, level in levels.items()
            if key not in self.firing and level.is_over(fires=False)
        ]
        self.firing.update((_key(alert), alert) for alert in alerts)
        return alerts

    def _ended(self, levels: Mapping[Key, Level], at: float) -> list[Alert]:
        ended = [key for key in self.firing if (level := levels.get(key)) is None or not level.is_over(fires=True)]
        return [_resolved(self.firing.pop(key), levels.get(key), at) for key in ended]

    def _late(self, conditions: Conditions) -> Iterator[Level]:
        for name, queue, late in conditions.late:
            threshold = self._thresholds.limits["late_schedule"].of(queue)
            if threshold is not None:
                what = f"schedule {name!r} of queue {queue!r} is late by {late:.0f} s"
                yield Level(Key("late_schedule", queue, name), late, threshold, what, f", over {threshold:g} s")

    def _held(self, conditions: Conditions) -> Iterator[Level]:
        threshold = self._snapshot
        if threshold is not None and conditions.snapshot is not None:
            holder, age = conditions.snapshot
            what = f"a snapshot is held for {age:.0f} s by {holder}"
            over = f", over {threshold:g} s: dead rows stay, and tables grow"
            yield Level(Key("snapshot", None, ""), age, threshold, what, over)


class Watched:
    """A queue, and its past values."""

    def __init__(self, queue: str, thresholds: Thresholds, usual: float, at: float) -> None:
        self._queue = queue
        self._limits = {name: limit.of(queue) for name, limit in thresholds.limits.items()}
        self._average = Average(thresholds.half_life, thresholds.minimum_average, usual, at)
        self._factors = sorted(set(thresholds.factors))
        self._failed, self._broken = Minute(), Minute()
        self._untaken = Untaken()

    def look(self, stats: Stats, conditions: Conditions, at: float, firing: Mapping[Key, Alert]) -> Iterator[Level]:
        """The values that reach the threshold, or whose alerts fire: of thousands of queues most have none."""
        age = stats["oldest_ready_age"] or 0.0
        calls = stats["calls"]
        # Workers count the runs that fail; other takers bury the task, or let its time to run end. A worker's failed
        # run may bury its task too, so the larger number is the one that counts none twice. Releases are no failures: a
        # worker that ends releases the tasks that it has not begun.
        failures = max(
            self._failed.add(conditions.failed.get(self._queue, 0), at),
            self._broken.add(calls["bury"] + calls["ttr"], at),
        )
        busy = stats["taken"] > 0 or self._queue in conditions.paused
        untaken = self._untaken.add(calls["take"], age if stats["ready"] else 0.0, busy, at)

        def level(kind: Kind, value: float, what: Callable[[], str], over: str) -> Iterator[Level]:
            threshold = self._limits[kind]
            key = Key(kind, self._queue, self._queue)
            if threshold is not None and (value >= threshold or key in firing):
                yield Level(key, value, threshold, f"queue {self._queue!r} {what()}", over.format(threshold))

        waits = lambda: f"has a task that is ready for {age:.0f} s" if age else "has no ready task"  # noqa: E731
        nothing = f", and nothing has taken one for {untaken:.0f} s"
        yield from level("length", stats["ready"], lambda: f"has {stats['ready']} ready tasks", ", over {:g}")
        yield from self._grown(stats["total"], firing)
        yield from level("age", age, waits, ", over {:g} s")
        yield from level("failures", failures, lambda: f"had {failures:.0f} failures in a minute", ", over {:g}")
        yield from level("untaken", untaken, lambda: f"has {stats['ready']} ready tasks", nothing)
        self._average.add(stats["total"], at)

    def _grown(self, length: int, firing: Mapping[Key, Alert]) -> Iterator[Level]:
        average = self._average.value
        for factor in self._factors:
            key = Key("growth", self._queue, self._queue, factor)
            if length >= factor * average or key in firing:
                what = f"queue {self._queue!r} has {length} tasks"
                over = f", over {factor:g} times its average of {average:.0f}"
                yield Level(key, length, factor * average, what, over, average)


def _bad(checks: Sequence[Check]) -> Iterator[Level]:
    for check in checks:
        if check.status == "bad":
            found = f"{check.value:.10g} {check.unit}" + (f", {check.detail}" if check.detail else "")
            yield Level(
                Key("health", None, check.name), check.value, None, f"the check {check.name} is bad: {found}", ""
            )


def _key(alert: Alert) -> Key:
    return Key(alert.kind, alert.queue, alert.name, alert.factor)


def _resolved(alert: Alert, level: Level | None, at: float) -> Alert:
    if level is not None:
        what, value = level.what, level.value
    else:
        what, value = _gone(alert), 0.0
    return replace(alert, state="resolved", value=value, at=at, text=printable.line(f"resolved: {what}"))


def _gone(alert: Alert) -> str:
    """The text of an alert without a value: its queue, schedule or check no longer exists."""
    if alert.kind == "health":
        return f"the check {alert.name} is not bad any more"
    if alert.kind == "snapshot":
        return "no old snapshot is held"
    if alert.kind == "late_schedule":
        return f"schedule {alert.name!r} is not late any more"
    return f"queue {alert.name!r} is gone"
