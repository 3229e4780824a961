"""The options that puts, publishes, schedules and queues share. They are checked when they are made.

An option is declared once, as the field of a record: its name, type, default, check and meaning. put_options.py has
those of a put.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

from .._values import arguments
from .._values.arguments import Seconds

Kind = TypeVar("Kind", bound="Options")
Check = Callable[[str, Any], Any]


def option(check: Check | None, default: Any = None, meaning: str = "") -> Any:
    """A field of a record.

    Args:
        check: gets its name and a value other than the default, and returns the value to keep. None: any value is kept.
        default: its value if it is not given.
        meaning: what it is, in a few words, for a page that shows the options.
    """
    return field(default=default, metadata={"check": check, "meaning": meaning})


def check(options: Any) -> None:
    """Check each option of a frozen record, and convert it. Raises ValueError."""
    kind: Any = type(options)
    values, checks = _checks(kind)
    for value, (name, default, check_one) in zip(values(options), checks, strict=True):
        if value is not default:
            object.__setattr__(options, name, check_one(name, value))


def positive_seconds(name: str, value: Seconds | None) -> float | None:
    return arguments.seconds(name, value, positive=True)


def positive_integer(name: str, value: int | None) -> int | None:
    return arguments.integer(name, value, 1)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a put; None is the queue's default. A timedelta becomes a number of seconds."""

    priority: int | None = option(arguments.integer)
    delay: Seconds | None = option(arguments.seconds)
    ttr: Seconds | None = option(positive_seconds)
    ttl: Seconds | None = option(positive_seconds)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class TaskOptions(Options):
    """The options of a task: also the time at which the task is ready, instead of a delay."""

    run_at: datetime | None = option(arguments.moment)

    def __post_init__(self) -> None:
        check(self)
        if self.run_at is not None and self.delay is not None:
            raise ValueError(f"a task is put with a delay or a run_at, not both: {self.delay!r}, {self.run_at}")


def named_options(kind: type[Kind], given: Mapping[str, Any], what: str) -> Kind:
    """The options from keyword arguments. Raises ValueError for an unknown one."""
    known = kind.__dataclass_fields__
    if not given.keys() <= known.keys():
        unknown = min(given.keys() - known.keys())
        raise ValueError(f"{what} has no option {unknown!r}: there are {', '.join(known)}")
    return kind(**given)


@cache
def _checks(kind: type[Any]) -> tuple[Callable[[object], tuple[Any, ...]], list[tuple[str, Any, Check]]]:
    """All values of a record in one step, and of each the name, the default and the check."""
    checked = [one for one in fields(kind) if one.metadata.get("check")]
    return (
        attrgetter(*(one.name for one in checked)),
        [(one.name, one.default, one.metadata["check"]) for one in checked],
    )
