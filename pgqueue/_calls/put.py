"""Calls of 3_tasks/put.sql."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from .._values import arguments
from .._values.arguments import IfExists, Seconds
from ..errors import QueueFull
from .call import Call, Rows, nothing, scalar
from .flow_options import FlowArguments, FlowOptions
from .options import Options, named_options, set_seconds

T = TypeVar("T")

FULL = "full"

#: How the statements of a put name the queue. The second one sets on the way how long the put waits for its lock
#: (_lock_room, 2_base/advisory.sql), since a statement of its own would be a round trip more.
_QUEUE = "queue => %s::pg_catalog.text"
_PATIENT_QUEUE = (
    "queue => %s::pg_catalog.text OPERATOR(pg_catalog.||)"
    " pg_catalog.left(pg_catalog.set_config('pgqueue.patience', %s::float::pg_catalog.text, true), 0)"
)

_OPTIONS = (
    "priority => %s::int, delay => pg_catalog.make_interval(secs => %s::float),"
    " ttr => pg_catalog.make_interval(secs => %s::float), ttl => pg_catalog.make_interval(secs => %s::float)"
)


_FLOW = "after => %s::bigint[], on_failure => %s::pg_catalog.text, batch => %s::bigint, alone => %s::boolean"
_KEY = "%s::pg_catalog.text"
_KEY_OF_DATA = "pgqueue.data_key(data => %s::pg_catalog.jsonb)"
_KEYS = "%s::pg_catalog.text[]"
_KEYS_OF_DATA = (
    "(SELECT pg_catalog.array_agg(pgqueue.data_key(data => one.value) ORDER BY one.ordinality)"
    " FROM pg_catalog.jsonb_array_elements(%s::pg_catalog.jsonb) WITH ORDINALITY AS one)"
)


class PutArguments(FlowArguments, total=False):
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
    unique_data: bool
    unique_for: Seconds | None


class PutManyArguments(FlowArguments, total=False):
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
    unique_data: bool
    unique_for: Seconds | None


@dataclass(frozen=True, slots=True)
class PutOptions(FlowOptions):
    """The options of a put. Checked when made."""

    lane: str | None = None
    key: str | None = None
    if_exists: IfExists = "ignore"
    sender: UUID | str | None = None
    unique_data: bool = False
    unique_for: Seconds | None = None

    def __post_init__(self) -> None:
        FlowOptions.__post_init__(self)
        arguments.label("lane", self.lane)
        arguments.label("key", self.key)
        arguments.if_exists(self.if_exists)
        arguments.uuid("sender", self.sender)
        if self.unique_data is not False or self.unique_for is not None:
            self._check_unique()

    def _check_unique(self) -> None:
        arguments.flag("unique_data", self.unique_data)
        if self.unique_data and self.key is not None:
            raise ValueError(f"a put is unique by its data or by a key, not both: the key is {self.key!r}")
        check_unique_for(self, self.if_exists)

    @classmethod
    def of(cls, given: PutArguments) -> PutOptions:
        return named_options(cls, given, "a put") if given else PLAIN

    @property
    def in_lanes(self) -> bool:
        return self.lane is not None

    @property
    def usual(self) -> bool:
        """Whether tasks with these options differ in their data only."""
        said = (self.lane, self.key, self.sender, self.run_at, self.after, self.batch, self.unique_for)
        return said == _UNSAID and not self.unique_data


PLAIN = PutOptions()  # of a put that gives no options
_UNSAID = (None,) * 7


class UniqueOptions(Protocol):
    """The options of a put, or of put_many."""

    @property
    def unique_for(self) -> Seconds | None: ...
    @property
    def in_flow(self) -> bool: ...


def check_unique_for(options: UniqueOptions, if_exists: IfExists) -> None:
    """Check the time of unique_for, and convert it to seconds. Raises ValueError."""
    set_seconds(options, (("unique_for", True),))
    if options.unique_for is not None and options.in_flow:
        raise ValueError("a put that waits for others, or belongs to a batch, cannot be unique for a time")
    if if_exists == "replace" and options.unique_for is not None:
        raise ValueError("a put that replaces a task cannot be unique for a time")


@dataclass(frozen=True, slots=True)
class PutManyOptions(FlowOptions):
    """The options of put_many: one lane for all tasks or one for each, and a key for each. Checked when made."""

    lane: str | Sequence[str | None] | None = None
    key: Sequence[str | None] | None = None
    if_exists: IfExists = "ignore"
    sender: UUID | str | None = None
    unique_data: bool = False
    unique_for: Seconds | None = None

    def __post_init__(self) -> None:
        FlowOptions.__post_init__(self)
        check_unique_for(self, self.if_exists)
        if arguments.flag("unique_data", self.unique_data) and self.key is not None:
            raise ValueError("put_many makes its tasks unique by their data or by a key for each, not both")
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
        """Whether each task has a lane or key of its own, so that all tasks have to be put by one statement."""
        return (
            self.key is not None
            or self.unique_data
            or self.unique_for is not None
            or (self.lane is not None and not isinstance(self.lane, str))
        )


class Placed(NamedTuple):
    """The answer to a put. `id` is None and `state` is FULL if there was no room; `kept` is JSON text.

    `kept` and the fields after it are of the existing task, if this put was ignored and the caller may look.
    """

    id: int | None
    state: str
    existed: bool
    kept: str | None
    priority: int | None = None
    attempts: int | None = None
    lane: str | None = None
    deadline: datetime | None = None


_ANSWER = "SELECT id, state, existed, kept::pg_catalog.text, there::pg_catalog.text FROM pgqueue."


def put(queue: str, text: str, options: PutOptions, alone: bool = False) -> Call[Placed]:
    """Put a task. `alone`: in a transaction of its own, see put_flow in 3_tasks/flows.sql."""
    if options.usual:  # and shorter
        return Call(
            f"SELECT id, state, existed, kept::pg_catalog.text FROM pgqueue.put({_QUEUE}, data => %s::pg_catalog.jsonb,"
            f" {_OPTIONS})",
            (queue, text, *_times(options)),
            _placed,
        )
    if options.in_flow:
        return put_flow(queue, text, options, alone)
    return Call(
        (
            f"{_ANSWER}put({_QUEUE}, data => %s::pg_catalog.jsonb, {_OPTIONS}, lane => %s::pg_catalog.text,"
            f" key => {_KEY_OF_DATA if options.unique_data else _KEY}, if_exists => %s::pg_catalog.text,"
            " sender => %s::pg_catalog.uuid, run_at => %s::pg_catalog.timestamptz,"
            " unique_for => pg_catalog.make_interval(secs => %s::float))"
        ),
        (
            queue,
            text,
            *_times(options),
            options.lane,
            text if options.unique_data else options.key,
            options.if_exists,
            options.sender,
            options.run_at,
            options.unique_for,
        ),
        _placed,
    )


def put_flow(queue: str, text: str, options: PutOptions, alone: bool) -> Call[Placed]:
    """Put a task that waits for others, or belongs to a batch."""
    return Call(
        (
            f"{_ANSWER}put_flow({_QUEUE}, data => %s::pg_catalog.jsonb, {_OPTIONS}, lane => %s::pg_catalog.text,"
            f" key => {_KEY_OF_DATA if options.unique_data else _KEY}, if_exists => %s::pg_catalog.text,"
            f" sender => %s::pg_catalog.uuid, run_at => %s::pg_catalog.timestamptz, {_FLOW})"
        ),
        (
            *(queue, text, *_times(options), options.lane, text if options.unique_data else options.key),
            *(options.if_exists, options.sender, options.run_at),
            *_flow(options, alone),
        ),
        _placed,
    )


def patient(call: Call[T], seconds: float) -> Call[T]:
    """The put, which waits for its lock for this number of seconds."""
    before, _, after = call.sql.partition(_QUEUE)
    return replace(call, sql=before + _PATIENT_QUEUE + after, args=(call.args[0], seconds, *call.args[1:]))


def put_together(queue: str, texts: Sequence[str], options: PutOptions) -> Call[list[Placed]]:
    """Put several tasks with the same options, without lane, key and sender: the answer to each, as put gives it.

    put_many returns ids and no states. So `put` puts the first task, and its state is that of all: they differ in their
    data only. If there is no room for the first, there is none for the others. LATERAL: the others are put after the
    first.
    """
    times = _times(options)
    return Call(
        f"SELECT first.id, first.state, others.ids FROM pgqueue.put({_QUEUE}, data => %s::pg_catalog.jsonb, {_OPTIONS})"
        " first, LATERAL (SELECT CASE WHEN first.id IS NOT NULL THEN pg_catalog.array_to_string(pgqueue.put_many("
        f"{_QUEUE}, data => %s::pg_catalog.jsonb, {_OPTIONS}), ' ') END AS ids) others",
        (queue, texts[0], *times, queue, f"[{','.join(texts[1:])}]", *times),
        lambda rows: _placed_together(rows, len(texts)),
    )


def put_many(queue: str, text: str, options: PutManyOptions, alone: bool = False) -> Call[list[int]]:
    """Put several tasks. `text` is a JSON array of their data. `alone`: as for put."""
    key: object = None if options.key is None else list(options.key)
    keys = _KEYS
    if options.unique_data:
        key, keys = text, _KEYS_OF_DATA
    if options.in_flow:
        return Call(
            f"SELECT pgqueue.put_flow_many(queue => %s::pg_catalog.text, data => %s::pg_catalog.jsonb, {_OPTIONS},"
            f" lanes => %s::pg_catalog.text[], keys => {keys}, if_exists => %s::pg_catalog.text,"
            f" sender => %s::pg_catalog.uuid, run_at => %s::pg_catalog.timestamptz, {_FLOW})",
            (
                *(queue, text, *_times(options), options.lanes, key),
                *(options.if_exists, options.sender, options.run_at, *_flow(options, alone)),
            ),
            scalar,
        )
    return Call(
        "SELECT pgqueue.put_many(queue => %s::pg_catalog.text, data => %s::pg_catalog.jsonb, priority => %s::int,"
        " delay => pg_catalog.make_interval(secs => %s::float), ttr => pg_catalog.make_interval(secs => %s::float),"
        " ttl => pg_catalog.make_interval(secs => %s::float), lanes => %s::pg_catalog.text[],"
        f" keys => {keys}, if_exists => %s::pg_catalog.text,"
        " sender => %s::pg_catalog.uuid, run_at => %s::pg_catalog.timestamptz,"
        " unique_for => pg_catalog.make_interval(secs => %s::float))",
        (
            queue,
            text,
            *_times(options),
            options.lanes,
            key,
            options.if_exists,
            options.sender,
            options.run_at,
            options.unique_for,
        ),
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


def allow_flows(queue: str) -> Call[None]:
    return Call("SELECT pgqueue.allow_flows(queue => %s::pg_catalog.text)", (queue,), nothing)


def allow_lanes(queue: str) -> Call[None]:
    return Call("SELECT pgqueue.allow_lanes(queue => %s::pg_catalog.text)", (queue,), nothing)


def _placed(rows: Rows) -> Placed:
    row = rows[0]
    id, state, existed, kept = row[:4]
    if len(row) > 4 and row[4] is not None:
        priority, attempts, lane, deadline = json.loads(row[4])
        until = None if deadline is None else datetime.fromisoformat(deadline)
        return Placed(id, state, bool(existed), kept, priority, attempts, lane, until)
    return Placed(id, state, bool(existed), kept)


def _placed_together(rows: Rows, number: int) -> list[Placed]:
    id, state, others = rows[0]
    if id is None:
        return [Placed(None, state, False, None)] * number
    return [Placed(id, state, False, None), *(Placed(int(other), state, False, None) for other in others.split())]


def _times(options: Options) -> tuple[int | None, Seconds | None, Seconds | None, Seconds | None]:
    return options.priority, options.delay, options.ttr, options.ttl


def _flow(options: FlowOptions, alone: bool) -> tuple[list[int], str, int | None, bool]:
    return options.ids, options.on_failure or "wait", options.batch, alone
