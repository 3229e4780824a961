"""The options of a put: each is declared once, as a field of PutOptions.

From the fields come the checks, the names in error messages, and the arguments that put.py sends; casts.py has the SQL
type of each. PutManyOptions differs in `lane` and `key`. The types of keyword arguments stand in PutArguments again, so
that editors and mypy know them, and Queue.put explains each option; tests/values/test_put_options.py compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal, Protocol, TypedDict, get_args
from uuid import UUID

from .._values import arguments
from .._values.arguments import IfExists, Seconds
from .options import TaskOptions, named_options, option, positive_seconds


class Deferred:
    """The base of a task that is not put yet, which another one in the same call can be put after: a Put."""

    __slots__ = ()


class HasId(Protocol):
    """A task, or a batch."""

    @property
    def id(self) -> int: ...


After = Sequence[HasId | Deferred | int | str] | HasId | Deferred | int | str
OnFailure = Literal["wait", "bury", "run"]


class SharedArguments(TypedDict, total=False):
    """The keyword arguments of both put and put_many; Queue.put explains them."""

    priority: int | None
    delay: Seconds | None
    run_at: datetime | None
    ttr: Seconds | None
    ttl: Seconds | None
    if_exists: IfExists
    sender: UUID | str | None
    unique_data: bool
    unique_for: Seconds | None
    after: After | None
    on_failure: OnFailure | None
    batch: HasId | int | None


class PutArguments(SharedArguments, total=False):
    """The keyword arguments of a put."""

    lane: str | None
    key: str | None


class PutManyArguments(SharedArguments, total=False):
    """The keyword arguments of put_many."""

    lane: str | Sequence[str | None] | None
    key: Sequence[str | None] | None


def _id(given: Any) -> int:
    return arguments.task_id(getattr(given, "id", given))


def _after(name: str, value: Any) -> tuple[Any, ...] | None:
    """Ids, and puts that are not put yet."""
    if value is None:
        return None
    given = value if isinstance(value, list | tuple) else (value,)
    arguments.elements(name, len(given))
    return tuple(one if isinstance(one, Deferred) else _id(one) for one in given) or None


def _on_failure(name: str, value: str | None) -> str | None:
    if value is not None and value not in get_args(OnFailure):
        raise ValueError(f"on_failure must be wait, bury or run, not {value!r}")
    return value


def _batch(name: str, value: Any) -> int | None:
    return None if value is None else _id(value)


def _sender(name: str, value: UUID | str | None) -> str | None:
    return None if value is None else str(arguments.uuid(name, value))


def _lanes(name: str, value: str | Sequence[str | None] | None) -> list[str | None] | str | None:
    if value is None or isinstance(value, str):
        return arguments.label(name, value)
    return [arguments.label(name, one) for one in value]


def _keys(name: str, value: Sequence[str | None] | None) -> list[str | None] | None:
    if isinstance(value, str):
        raise ValueError(f"put_many needs a key for each task, not {value!r} for all")
    return None if value is None else [arguments.label(name, one) for one in value]


@dataclass(frozen=True, slots=True)
class SharedOptions(TaskOptions):
    """The options of put and put_many. Checked when made."""

    after: tuple[Any, ...] | None = option(_after)
    on_failure: OnFailure | None = option(_on_failure)
    batch: Any = option(_batch)
    lane: Any = None
    key: Any = None
    if_exists: IfExists = option(arguments.if_exists, "ignore")
    sender: UUID | str | None = option(_sender)
    unique_data: bool = option(arguments.flag, False)
    unique_for: Seconds | None = option(positive_seconds)

    def __post_init__(self) -> None:
        TaskOptions.__post_init__(self)
        if self.unique_data and self.key is not None:
            raise ValueError(f"a put is unique by its data or by a key, not both: the key is {self.key!r}")
        if self.unique_for is None:
            return
        if self.in_flow:
            raise ValueError("a put that waits for others, or belongs to a batch, cannot be unique for a time")
        if self.if_exists == "replace":
            raise ValueError("a put that replaces a task cannot be unique for a time")

    @property
    def waits(self) -> bool:
        """Whether the task waits for others."""
        return self.after is not None

    @property
    def in_flow(self) -> bool:
        """Whether the task waits for others, or belongs to a batch."""
        return self.after is not None or self.batch is not None

    @property
    def ids(self) -> list[int]:
        """The ids of the tasks and batches that it waits for. Raises ValueError for a task that is not put yet."""
        for one in self.after or ():
            if isinstance(one, Deferred):
                raise ValueError("a Put in `after` is not put yet: put both in one call, by put_graph")
        return list(self.after or ())


@dataclass(frozen=True, slots=True)
class PutOptions(SharedOptions):
    """The options of a put. Checked when made."""

    lane: str | None = option(arguments.label)
    key: str | None = option(arguments.label)

    @classmethod
    def of(cls, given: PutArguments) -> PutOptions:
        return named_options(cls, given, "a put") if given else PLAIN

    @property
    def in_lanes(self) -> bool:
        return self.lane is not None

    @property
    def usual(self) -> bool:
        """Whether tasks with these options differ in their data only."""
        return bool(_special(self) == _UNSAID)


PLAIN = PutOptions()  # of a put that gives no options
USUAL = ("priority", "delay", "ttr", "ttl")  # each of these is also a default of a queue
NO_MATTER = ("if_exists", "on_failure")  # without a key, or `after`
_special = attrgetter(*(name for name in PutOptions.__dataclass_fields__ if name not in (*USUAL, *NO_MATTER)))
_UNSAID = _special(PLAIN)


@dataclass(frozen=True, slots=True)
class PutManyOptions(SharedOptions):
    """The options of put_many: one lane for all tasks or one for each, and a key for each. Checked when made."""

    lane: str | list[str | None] | None = option(_lanes)
    key: list[str | None] | None = option(_keys)

    @classmethod
    def of(cls, given: PutManyArguments) -> PutManyOptions:
        return named_options(cls, given, "put_many")

    @property
    def lanes(self) -> list[str | None] | None:
        return [self.lane] if isinstance(self.lane, str) else self.lane

    @property
    def in_lanes(self) -> bool:
        return any(name is not None for name in self.lanes or ())

    @property
    def whole(self) -> bool:
        """Whether each task has a lane or key of its own, so that all tasks have to go in one statement."""
        return self.key is not None or self.unique_data or self.unique_for is not None or isinstance(self.lane, list)
