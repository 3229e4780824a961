"""Calls of 3_tasks/queue.sql: the options of a queue, and the operations on a queue as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal, LiteralString, TypedDict, get_args

from .._values import arguments, data
from .._values.arguments import Seconds
from .._values.record import Record
from ..errors import NoQueue
from .call import Call, Rows, nothing, scalar
from .find import State
from .options import Options, named_options

QueueType = Literal["fifo", "fifottl", "utube", "utubettl", "limfifottl"]

PART = 50_000  # tasks that one transaction removes: acks of them wait for it, and each is a row of the audit trail
FIXED = ("type", "exclusive", "temporary")  # from its creation on


class AlterArguments(TypedDict, total=False):
    """The options of a queue that may change; Client.create_queue explains them."""

    priority: int | None
    delay: Seconds | None
    ttr: Seconds | None
    ttl: Seconds | None
    maxlen: int | None
    max_takes: int | None
    max_size: int | None
    capacity: int | None
    keep_done: Seconds | None
    expires: Seconds | None
    dead_letter: str | None
    dead_letter_key: str | None
    auto_delete: bool
    listed: bool
    metadata: Any


class QueueArguments(AlterArguments, total=False):
    """All options of a queue; Client.create_queue explains them."""

    type: QueueType | None
    exclusive: bool
    temporary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(Options):
    """The options of a queue. Checked when made."""

    DURATIONS: ClassVar[tuple[tuple[str, bool], ...]] = (*Options.DURATIONS, ("keep_done", True), ("expires", True))

    type: QueueType | None = None
    maxlen: int | None = None
    max_takes: int | None = None
    max_size: int | None = None
    capacity: int | None = None
    keep_done: Seconds | None = None
    expires: Seconds | None = None
    dead_letter: str | None = None
    dead_letter_key: str | None = None
    exclusive: bool = False
    temporary: bool = False
    auto_delete: bool = False
    listed: bool = False
    metadata: Any = None

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if self.type is not None and self.type not in get_args(QueueType):
            raise ValueError(f"a queue's type is one of {', '.join(get_args(QueueType))}, not {self.type!r}")
        for name in ("maxlen", "max_takes", "max_size"):
            arguments.integer(name, getattr(self, name), 1)
        arguments.integer("capacity", self.capacity, 0)
        for name in ("dead_letter", "dead_letter_key"):
            if getattr(self, name) is not None:
                arguments.key(name, getattr(self, name))
        for name in ("exclusive", "temporary", "auto_delete", "listed"):
            arguments.flag(name, getattr(self, name))

    @classmethod
    def of(cls, given: QueueArguments) -> QueueOptions:
        return named_options(cls, given, "a queue")

    @property
    def of_session(self) -> bool:
        """Whether the queue is deleted when the session that creates it ends."""
        return self.exclusive or self.temporary


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo(Record):
    """A queue and its options, at the moment of the call. Times are in seconds.

    Attributes:
        name: its name.
        type, priority, delay, ttr, ttl, maxlen, max_takes, max_size, capacity, keep_done, expires, dead_letter,
            dead_letter_key, exclusive, temporary, auto_delete, listed, metadata: as for Client.create_queue.
        draining: whether it refuses puts.
        paused_until: no task is taken until then; None if it is not paused.
        granted_to: of a restricted queue, the roles that were granted it; None: it is open to privileges by pattern.
        role: the role that created it.
        created_at: when it was created.
    """

    name: str
    type: QueueType | None
    priority: int
    delay: float
    ttr: float | None
    ttl: float | None
    maxlen: int | None
    max_takes: int | None
    max_size: int | None
    capacity: int | None
    keep_done: float | None
    expires: float | None
    dead_letter: str | None
    dead_letter_key: str | None
    exclusive: bool
    temporary: bool
    auto_delete: bool
    listed: bool
    draining: bool
    paused_until: datetime | None
    granted_to: list[str] | None
    role: str
    created_at: datetime
    metadata: Any


_INFO: LiteralString = (
    "SELECT name, type, priority, extract(epoch FROM delay)::float, extract(epoch FROM ttr)::float,"
    " extract(epoch FROM ttl)::float, maxlen, max_takes, max_size, capacity, extract(epoch FROM keep_done)::float,"
    " extract(epoch FROM expires)::float, dead_letter,"
    " dead_letter_key, exclusive, temporary, auto_delete, listed, draining, paused_until, granted_to,"
    " role, created_at, metadata::pg_catalog.text FROM pgqueue.queues"
)


def create_queue(name: str, options: QueueOptions, if_not_exists: bool) -> Call[int]:
    return Call(
        "SELECT pgqueue.create_queue(name => %s::pg_catalog.text, type => %s::pg_catalog.text, priority => %s::int,"
        " delay => pg_catalog.make_interval(secs => %s::float), ttr => pg_catalog.make_interval(secs => %s::float),"
        " ttl => pg_catalog.make_interval(secs => %s::float), maxlen => %s::int, max_takes => %s::int,"
        " max_size => %s::int, capacity => %s::int, keep_done => pg_catalog.make_interval(secs => %s::float),"
        " expires => pg_catalog.make_interval(secs => %s::float), dead_letter => %s::pg_catalog.text,"
        " dead_letter_key => %s::pg_catalog.text, exclusive => %s::boolean, temporary => %s::boolean,"
        " auto_delete => %s::boolean,"
        " listed => %s::boolean, metadata => %s::pg_catalog.jsonb, if_not_exists => %s::boolean)",
        (
            arguments.queue_name(name),
            options.type,
            options.priority,
            options.delay,
            options.ttr,
            options.ttl,
            options.maxlen,
            options.max_takes,
            options.max_size,
            options.capacity,
            options.keep_done,
            options.expires,
            options.dead_letter,
            options.dead_letter_key,
            options.exclusive,
            options.temporary,
            options.auto_delete,
            options.listed,
            None if options.metadata is None else data.encode(options.metadata),
            arguments.flag("if_not_exists", if_not_exists),
        ),
        scalar,
    )


def alter_queue(name: str, given: Mapping[str, Any]) -> Call[None]:
    """Change the given options of a queue."""
    if fixed := sorted(given.keys() & set(FIXED)):
        raise ValueError(f"a queue's {fixed[0]} cannot be altered: make another queue")
    options = named_options(QueueOptions, given, "a queue")
    return Call(
        "SELECT pgqueue.alter_queue(name => %s::pg_catalog.text, options => %s::pg_catalog.jsonb)",
        (name, data.encode({option: getattr(options, option) for option in given})),
        nothing,
    )


def rename_queue(name: str, new_name: str) -> Call[None]:
    return Call(
        "SELECT pgqueue.rename_queue(name => %s::pg_catalog.text, new_name => %s::pg_catalog.text)",
        (name, arguments.queue_name(new_name)),
        nothing,
    )


def delete_queue(name: str, if_empty: bool, if_unused: bool, force: bool) -> Call[int]:
    return Call(
        "SELECT pgqueue.delete_queue(name => %s::pg_catalog.text, if_empty => %s::boolean, if_unused => %s::boolean,"
        " force => %s::boolean)",
        (
            arguments.queue_name(name),
            arguments.flag("if_empty", if_empty),
            arguments.flag("if_unused", if_unused),
            arguments.flag("force", force),
        ),
        scalar,
        long=True,
    )


def queues(prefix: str, marker: str | None, limit: int | None) -> Call[list[QueueInfo]]:
    """The queues with names that begin with the prefix and follow the marker."""
    return Call(
        _INFO + " WHERE pg_catalog.starts_with(name, %s::pg_catalog.text)"
        " AND (%s::pg_catalog.text IS NULL OR name OPERATOR(pg_catalog.>) %s::pg_catalog.text)"
        " ORDER BY name LIMIT %s::int",
        (arguments.text(prefix, "a prefix"), marker, marker, arguments.integer("limit", limit, 1)),
        lambda rows: [_info(row) for row in rows],
    )


def queue(name: str) -> Call[QueueInfo]:
    def read(rows: Rows) -> QueueInfo:
        if not rows:
            raise NoQueue(f"there is no queue {name!r}")
        return _info(rows[0])

    return Call(_INFO + " WHERE name OPERATOR(pg_catalog.=) %s::pg_catalog.text", (name,), read)


def pause_queue(name: str, seconds: Seconds) -> Call[None]:
    return Call(
        "SELECT pgqueue.pause_queue(queue => %s::pg_catalog.text,"
        " duration => pg_catalog.make_interval(secs => %s::float))",
        (name, arguments.required_seconds("seconds", seconds)),
        nothing,
    )


def drain_queue(name: str, on: bool) -> Call[None]:
    return Call(
        "SELECT pgqueue.drain_queue(queue => %s::pg_catalog.text, enabled => %s::boolean)",
        (name, arguments.flag("on", on)),
        nothing,
    )


def drain_queues(on: bool) -> Call[None]:
    return Call("SELECT pgqueue.drain_queues(enabled => %s::boolean)", (arguments.flag("on", on),), nothing)


def truncate_queue(name: str, n: int | None = None, states: list[State] | None = None) -> Call[int]:
    """Remove all tasks, or at most n; only those in these states."""
    return Call(
        "SELECT pgqueue.truncate_queue(queue => %s::pg_catalog.text, n => %s::int, states => %s::pg_catalog.text[])",
        (name, n, states),
        scalar,
        long=True,
    )


def release_all(name: str) -> Call[int]:
    return Call("SELECT pgqueue.release_all(queue => %s::pg_catalog.text)", (name,), scalar, long=True)


def state() -> Call[str]:
    """The state of the server. On a standby every transaction is read-only."""
    return Call(
        "SELECT CASE WHEN pg_catalog.current_setting('transaction_read_only')::boolean"
        " THEN 'read only' ELSE 'running' END",
        (),
        scalar,
    )


def _info(row: tuple[Any, ...]) -> QueueInfo:
    *values, metadata = row
    values.append(None if metadata is None else data.shown(metadata))
    return QueueInfo(**dict(zip(QueueInfo.__dataclass_fields__, values, strict=True)))
