"""Calls of 5_verbs/queue/queue.sql: the options of a queue, and the operations on a queue as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal, LiteralString, TypedDict, get_args

from .._values import arguments, data
from .._values.arguments import Seconds
from .._values.record import Record
from ..errors import NoQueue
from .call import Call, Rows, call, nothing, query, scalar
from .find import State
from .options import Options, named_options, option, positive_integer, positive_seconds

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


def _type(name: str, value: object) -> object:
    if value not in get_args(QueueType):
        raise ValueError(f"a queue's type is one of {', '.join(get_args(QueueType))}, not {value!r}")
    return value


def _capacity(name: str, value: int | None) -> int | None:
    return arguments.integer(name, value, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(Options):
    """The options of a queue. Checked when made. The first four are the defaults of its puts."""

    priority: int | None = option(
        arguments.integer, None, "priority of a put that names none; the lowest is taken first"
    )
    delay: Seconds | None = option(arguments.seconds, None, "for how long a put without a delay waits")
    ttr: Seconds | None = option(positive_seconds, None, "time to run of a task: after it another worker gets it")
    ttl: Seconds | None = option(positive_seconds, None, "time to live of a task: after it the task expires")
    type: QueueType | None = option(_type, None, "as in Tarantool: its puts cannot use what the type lacks")
    maxlen: int | None = option(positive_integer, None, "the most ready tasks; the oldest beyond are dropped")
    max_takes: int | None = option(
        positive_integer, None, "a task that failed so often is buried, or becomes a dead letter"
    )
    max_size: int | None = option(positive_integer, None, "the largest data of a task, in bytes of JSON")
    capacity: int | None = option(_capacity, None, "the most tasks in all; a put into a full queue waits or is refused")
    keep_done: Seconds | None = option(positive_seconds, None, "for how long done tasks are kept")
    expires: Seconds | None = option(positive_seconds, None, "a queue that is not used for so long is deleted")
    dead_letter: str | None = option(
        arguments.key, None, "the exchange for tasks that are buried, expire, or are dropped"
    )
    dead_letter_key: str | None = option(arguments.key, None, "the key under which it gets them")
    exclusive: bool = option(arguments.flag, False, "only one client may take, and the queue ends with it")
    temporary: bool = option(arguments.flag, False, "the queue ends with the client that created it")
    auto_delete: bool = option(arguments.flag, False, "the queue ends with the last client that took from it")
    listed: bool = option(arguments.flag, False, "its messages can be listed by a marker")
    metadata: Any = option(None, None, "any value of JSON, for the users of the queue")

    @classmethod
    def of(cls, given: QueueArguments) -> QueueOptions:
        return named_options(cls, given, "a queue")

    @property
    def of_session(self) -> bool:
        """Whether the queue is deleted when the session that creates it ends."""
        return self.exclusive or self.temporary


#: What each option is, for the dashboard and the documentation.
MEANINGS: Mapping[str, str] = {one.name: one.metadata["meaning"] for one in fields(QueueOptions)}


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


def create_queue(name: str, options: QueueOptions, if_not_exists: bool, session: int | None = None) -> Call[int]:
    given = {one: getattr(options, one) for one in options.__dataclass_fields__}
    if options.metadata is not None:
        given["metadata"] = data.encode(options.metadata)
    given |= {"if_not_exists": arguments.flag("if_not_exists", if_not_exists), "session": session}
    return call("create_queue", None, scalar, name=arguments.queue_name(name), **given)


def alter_queue(name: str, given: Mapping[str, Any]) -> Call[None]:
    """Change the given options of a queue."""
    if fixed := sorted(given.keys() & set(FIXED)):
        raise ValueError(f"a queue's {fixed[0]} cannot be altered: make another queue")
    options = named_options(QueueOptions, given, "a queue")
    text = data.encode({one: getattr(options, one) for one in given})
    return call("alter_queue", None, nothing, name=name, options=text)


def rename_queue(name: str, new_name: str) -> Call[None]:
    return call("rename_queue", None, nothing, name=name, new_name=arguments.queue_name(new_name))


def delete_queue(name: str, if_empty: bool, if_unused: bool, force: bool) -> Call[int]:
    return call(
        "delete_queue",
        None,
        scalar,
        long=True,
        name=arguments.queue_name(name),
        if_empty=arguments.flag("if_empty", if_empty),
        if_unused=arguments.flag("if_unused", if_unused),
        force=arguments.flag("force", force),
    )


def queues(prefix: str, marker: str | None, limit: int | None) -> Call[list[QueueInfo]]:
    """The queues with names that begin with the prefix and follow the marker."""
    return query(
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

    return query(_INFO + " WHERE name OPERATOR(pg_catalog.=) %s::pg_catalog.text", (name,), read)


def pause_queue(name: str, seconds: Seconds) -> Call[None]:
    duration = arguments.required_seconds("seconds", seconds)
    return call("pause_queue", None, nothing, queue=name, duration=duration)


def drain_queue(name: str, on: bool) -> Call[None]:
    return call("drain_queue", None, nothing, queue=name, enabled=arguments.flag("on", on))


def drain_queues(on: bool) -> Call[None]:
    return call("drain_queues", None, nothing, enabled=arguments.flag("on", on))


def truncate_queue(name: str, n: int | None = None, states: list[State] | None = None) -> Call[int]:
    """Remove all tasks, or at most n; only those in these states."""
    return call("truncate_queue", None, scalar, long=True, queue=name, n=n, states=states)


def release_all(name: str) -> Call[int]:
    return call("release_all", None, scalar, long=True, queue=name)


def state() -> Call[str]:
    """The state of the server. On a standby every transaction is read-only."""
    return query(
        "SELECT CASE WHEN pg_catalog.current_setting('transaction_read_only')::boolean"
        " THEN 'read only' ELSE 'running' END",
        (),
        scalar,
    )


def _info(row: tuple[Any, ...]) -> QueueInfo:
    *values, metadata = row
    values.append(None if metadata is None else data.shown(metadata))
    return QueueInfo(**dict(zip(QueueInfo.__dataclass_fields__, values, strict=True)))
