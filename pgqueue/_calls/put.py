"""Calls of 3_tasks/put.sql."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple, TypedDict
from uuid import UUID

from .._values import arguments
from .._values.arguments import IfExists, Seconds
from ..errors import QueueFull
from .call import Call, Rows, nothing, scalar
from .options import Options, TaskOptions, named_options

FULL = "full"

#: How the statements of a put name the queue. The second one sets on the way how long the put waits for its lock
#: (_lock_room, 2_base/advisory.sql), since a statement of its own would be a round trip more.
_QUEUE = "queue => %s::pg_catalog.text"
_PATIENT_QUEUE = (
    "queue => %s::pg_catalog.text OPERATOR(pg_catalog.||)"
    " pg_catalog.left(pg_catalog.set_config('pgqueue.patience', %s::float::pg_catalog.text, true), 0)"
)


class PutArguments(TypedDict, total=False):
    """The keyword arguments of a put; Queue.put explains them."""

    priority: int | None
    delay: Seconds | None
    run_at: datetime | None
    ttr: Seconds | None
    ttl: Seconds | None
    lane: str | None
    key: str | None
    if_exists: IfExists
    sender: UUID | str | None


class PutManyArguments(TypedDict, total=False):
    """The keyword arguments of put_many; Queue.put_many explains them."""

    priority: int | None
    delay: Seconds | None
    run_at: datetime | None
    ttr: Seconds | None
    ttl: Seconds | None
    lane: str | Sequence[str | None] | None
    key: Sequence[str | None] | None
    if_exists: IfExists
    sender: UUID | str | None


@dataclass(frozen=True, slots=True)
class PutOptions(TaskOptions):
    """The options of a put. Checked when made."""

    lane: str | None = None
    key: str | None = None
    if_exists: IfExists = "ignore"
    sender: UUID | str | None = None

    def __post_init__(self) -> None:
        TaskOptions.__post_init__(self)
        arguments.label("lane", self.lane)
        arguments.label("key", self.key)
        arguments.if_exists(self.if_exists)
        arguments.uuid("sender", self.sender)

    @classmethod
    def of(cls, given: PutArguments) -> PutOptions:
        return named_options(cls, given, "a put") if given else _PLAIN

    @property
    def in_lanes(self) -> bool:
        return self.lane is not None


_PLAIN = PutOptions()
_UNSAID = (None, None, None, None)


@dataclass(frozen=True, slots=True)
class PutManyOptions(TaskOptions):
    """The options of put_many: one lane for all tasks or one for each, and a key for each. Checked when made."""

    lane: str | Sequence[str | None] | None = None
    key: Sequence[str | None] | None = None
    if_exists: IfExists = "ignore"
    sender: UUID | str | None = None

    def __post_init__(self) -> None:
        TaskOptions.__post_init__(self)
        for name in self.lanes or ():
            arguments.label("lane", name)
        if isinstance(self.key, str):
            raise ValueError(f"put_many needs a key for each task, not {self.key!r} for all")
        for name in self.key or ():
            arguments.label("key", name)
        arguments.if_exists(self.if_exists)
        arguments.uuid("sender", self.sender)

    @classmethod
    def of(cls, given: PutManyArguments) -> PutManyOptions:
        return named_options(cls, given, "put_many")

    @property
    def lanes(self) -> list[str | None] | None:
        if self.lane is None:
            return None
        return [self.lane] if isinstance(self.lane, str) else list(self.lane)

    @property
    def in_lanes(self) -> bool:
        return any(name is not None for name in self.lanes or ())

    @property
    def whole(self) -> bool:
        """Whether each task has a lane or key of its own, so that all tasks have to go in one statement."""
        return self.key is not None or (self.lane is not None and not isinstance(self.lane, str))


class Placed(NamedTuple):
    """The answer to a put. `id` is None and `state` is FULL if there was no room; `kept` is JSON text."""

    id: int | None
    state: str
    existed: bool
    kept: str | None


def put(queue: str, text: str, options: PutOptions) -> Call[Placed]:
    if (options.lane, options.key, options.sender, options.run_at) == _UNSAID:  # usual, and shorter
        return Call(
            f"SELECT id, state, existed, kept::pg_catalog.text FROM pgqueue.put({_QUEUE},"
            " data => %s::pg_catalog.jsonb, priority => %s::int, delay => pg_catalog.make_interval(secs => %s::float),"
            " ttr => pg_catalog.make_interval(secs => %s::float), ttl => pg_catalog.make_interval(secs => %s::float))",
            (queue, text, *_times(options)),
            _placed,
        )
    return Call(
        f"SELECT id, state, existed, kept::pg_catalog.text FROM pgqueue.put({_QUEUE},"
        " data => %s::pg_catalog.jsonb, priority => %s::int, delay => pg_catalog.make_interval(secs => %s::float),"
        " ttr => pg_catalog.make_interval(secs => %s::float),"
        " ttl => pg_catalog.make_interval(secs => %s::float), lane => %s::pg_catalog.text,"
        " key => %s::pg_catalog.text, if_exists => %s::pg_catalog.text,"
        " sender => %s::pg_catalog.uuid, run_at => %s::pg_catalog.timestamptz)",
        (
            queue,
            text,
            *_times(options),
            options.lane,
            options.key,
            options.if_exists,
            options.sender,
            options.run_at,
        ),
        _placed,
    )


def patient(call: Call[Placed], seconds: float) -> Call[Placed]:
    """The put, which waits for its lock for so many seconds."""
    before, _, after = call.sql.partition(_QUEUE)
    return replace(call, sql=before + _PATIENT_QUEUE + after, args=(call.args[0], seconds, *call.args[1:]))


def put_many(queue: str, text: str, options: PutManyOptions) -> Call[list[int]]:
    """Put several tasks. `text` is a JSON array of their data."""
    key = None if options.key is None else list(options.key)
    return Call(
        "SELECT pgqueue.put_many(queue => %s::pg_catalog.text, data => %s::pg_catalog.jsonb, priority => %s::int,"
        " delay => pg_catalog.make_interval(secs => %s::float), ttr => pg_catalog.make_interval(secs => %s::float),"
        " ttl => pg_catalog.make_interval(secs => %s::float), lanes => %s::pg_catalog.text[],"
        " keys => %s::pg_catalog.text[], if_exists => %s::pg_catalog.text,"
        " sender => %s::pg_catalog.uuid, run_at => %s::pg_catalog.timestamptz)",
        (queue, text, *_times(options), options.lanes, key, options.if_exists, options.sender, options.run_at),
        scalar,
    )


def insist(placed: Placed, queue: str) -> int:
    """The task's id. Raises QueueFull."""
    if placed.id is None:
        raise QueueFull(f"queue {queue!r} is full: put again later, or with a timeout to wait for room")
    return placed.id


def queue_ids(names: Sequence[str]) -> Call[dict[str, int]]:
    return Call(
        "SELECT name, pgqueue.queue_id(name => name) FROM pg_catalog.unnest(%s::pg_catalog.text[]) asked(name)",
        (list(names),),
        lambda rows: dict(rows),
    )


def allow_lanes(queue: str) -> Call[None]:
    return Call("SELECT pgqueue.allow_lanes(queue => %s::pg_catalog.text)", (queue,), nothing)


def _placed(rows: Rows) -> Placed:
    id, state, existed, kept = rows[0]
    return Placed(id, state, bool(existed), kept)


def _times(options: Options) -> tuple[int | None, Seconds | None, Seconds | None, Seconds | None]:
    return options.priority, options.delay, options.ttr, options.ttl
