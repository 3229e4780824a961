"""The options that puts, publishes and queues share. They are checked when they are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from .._values import arguments
from .._values.arguments import Seconds

Kind = TypeVar("Kind", bound="Options")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a put; None is the queue's default. A timedelta becomes a number of seconds."""

    DURATIONS: ClassVar[tuple[tuple[str, bool], ...]] = (("delay", False), ("ttr", True), ("ttl", True))

    priority: int | None = None
    delay: Seconds | None = None
    ttr: Seconds | None = None
    ttl: Seconds | None = None

    def __post_init__(self) -> None:
        arguments.integer("priority", self.priority)
        set_seconds(self, self.DURATIONS)


@dataclass(frozen=True, slots=True)
class TaskOptions(Options):
    """The options of a task: also the time at which the task is ready, instead of a delay."""

    run_at: datetime | None = None

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        arguments.moment("run_at", self.run_at)
        if self.run_at is not None and self.delay is not None:
            raise ValueError(f"a task is put with a delay or a run_at, not both: {self.delay!r}, {self.run_at}")


def set_seconds(options: object, durations: Iterable[tuple[str, bool]]) -> None:
    """Check a frozen record's durations, and convert each timedelta to seconds. True: it must be over 0."""
    for name, positive in durations:
        if (value := getattr(options, name)) is not None:
            object.__setattr__(options, name, arguments.seconds(name, value, positive=positive))


def named_options(kind: type[Kind], given: Mapping[str, Any], what: str) -> Kind:
    """The options from keyword arguments. Raises ValueError for an unknown one."""
    known = [field.name for field in fields(kind)]
    if unknown := sorted(given.keys() - set(known)):
        raise ValueError(f"{what} has no option {unknown[0]!r}: there are {', '.join(known)}")
    return kind(**given)
