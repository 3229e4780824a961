"""Calls of 3_tasks/put.sql."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString, NamedTuple, Protocol, TypeVar
from uuid import UUID

from .._values import arguments
from .._values.arguments import IfExists, Seconds
from ..errors import QueueFull
from .call import As, Call, Rows, call, nothing, query, scalar, written
from .casts import TEXT
from .flow_options import FlowArguments, FlowOptions
from .options import Options, named_options, set_seconds

T = TypeVar("T")

FULL = "full"

#: How long the put waits for its lock (_lock_room, 2_base/advisory.sql) is set on the way, since a statement of its own
#: would be a round trip more.
_PATIENT_QUEUE: LiteralString = (
    f"{TEXT} OPERATOR(pg_catalog.||)"
    " pg_catalog.left(pg_catalog.set_config('pgqueue.patience', %s::float::pg_catalog.text, true), 0)"
)
_KEY_OF_DATA = written("data_key", "data")
_KEYS_OF_DATA: LiteralString = (
    f"(SELECT pg_catalog.array_agg({written('data_key', data='one.value')} ORDER BY one.ordinality)"
    " FROM pg_catalog.jsonb_array_elements(%s::pg_catalog.jsonb) WITH ORDINALITY AS one)"
)
_ANSWER: LiteralString = "id, state, existed, kept::pg_catalog.text"  # the columns of _placed()
_WHOLE_ANSWER: LiteralString = f"{_ANSWER}, there::pg_catalog.text"


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
        """Whether each task has a lane or key of its own, so that all tasks have to go in one statement."""
        return (
            self.key is not None
            or self.unique_data
            or self.unique_for is not None
            or (self.lane is not None and not isinstance(self.lane, str))
        )


class Placed(NamedTuple):
    """The answer to a put. `id` is None and `state` is FULL if there was no room; `kept` is JSON text.

    `kept` and the fields after it are of the task that was there, if this put was ignored and the caller may look.
    """

    id: int | None
    state: str
    existed: bool
    kept: str | None
    priority: int | None = None
    attempts: int | None = None
    lane: str | None = None
    deadline: datetime | None = None


def put(queue: str, text: str, options: PutOptions, alone: bool = False) -> Call[Placed]:
    """Put a task. `alone`: in a transaction of its own, see put_flow in 3_tasks/flows.sql."""
    if options.usual:  # and shorter
        return call("put", _ANSWER, _placed, queue=queue, data=text, **_times(options))
    given = {
        "queue": queue,
        "data": text,
        **_times(options),
        "lane": options.lane,
        "key": As(_KEY_OF_DATA, (text,)) if options.unique_data else options.key,
        **_rest(options),
    }
    if options.in_flow:
        return call("put_flow", _WHOLE_ANSWER, _placed, **given, **_flow(options, alone))
    return call("put", _WHOLE_ANSWER, _placed, **given, unique_for=options.unique_for)


def patient(put: Call[T], seconds: float) -> Call[T]:
    """The put, which waits for its lock for so many seconds."""
    return put.but(queue=As(_PATIENT_QUEUE, (put.given["queue"], seconds)))


def put_together(queue: str, texts: Sequence[str], options: PutOptions, patience: float) -> Call[list[Placed]]:
    """Put several tasks with the same options, without lane, key and sender: the answer to each, as put gives it.

    put_many returns ids and no states. So the first task goes by put, whose state is that of all: they differ in their
    data only. If there is no room for the first, there is none for the others. LATERAL: the others go after the first.

    `patience`: it waits for its lock for so many seconds.
    """
    times = _times(options).values()
    return query(
        _TOGETHER,
        (texts[0], *times, queue, patience, queue, f"[{','.join(texts[1:])}]", *times),
        lambda rows: _placed_together(rows, len(texts)),
    )


_TIMES: tuple[LiteralString, ...] = ("priority", "delay", "ttr", "ttl")  # the arguments of _times()
_TOGETHER: LiteralString = (
    f"SELECT first.id, first.state, others.ids FROM {written('put', 'data', *_TIMES, queue=_PATIENT_QUEUE)} first,"
    " LATERAL (SELECT CASE WHEN first.id IS NOT NULL THEN"
    f" pg_catalog.array_to_string({written('put_many', 'queue', 'data', *_TIMES)}, ' ') END AS ids) others"
)


def put_many(queue: str, text: str, options: PutManyOptions, alone: bool = False) -> Call[list[int]]:
    """Put several tasks. `text` is a JSON array of their data. `alone`: as for put."""
    keys = None if options.key is None else list(options.key)
    given = {
        "queue": queue,
        "data": text,
        **_times(options),
        "lanes": options.lanes,
        "keys": As(_KEYS_OF_DATA, (text,)) if options.unique_data else keys,
        **_rest(options),
    }
    if options.in_flow:
        return call("put_flow_many", None, scalar, **given, **_flow(options, alone))
    return call("put_many", None, scalar, **given, unique_for=options.unique_for)


def insist(placed: Placed, queue: str) -> int:
    """The task's id. Raises QueueFull."""
    if placed.id is None:
        raise QueueFull(f"queue {queue!r} is full: put again later, or with a timeout to wait for room")
    return placed.id


def queue_ids(names: Sequence[str]) -> Call[dict[str, int]]:
    return query(
        "SELECT name, pgqueue.queue_id(name => name) FROM pg_catalog.unnest(%s::pg_catalog.text[]) asked(name)",
        (list(names),),
        lambda rows: dict(rows),
    )


def allow_flows(queue: str) -> Call[None]:
    return call("allow_flows", None, nothing, queue=queue)


def allow_lanes(queue: str) -> Call[None]:
    return call("allow_lanes", None, nothing, queue=queue)


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


def _times(options: Options) -> dict[str, Any]:
    return {"priority": options.priority, "delay": options.delay, "ttr": options.ttr, "ttl": options.ttl}


def _rest(options: PutOptions | PutManyOptions) -> dict[str, Any]:
    return {"if_exists": options.if_exists, "sender": options.sender, "run_at": options.run_at}


def _flow(options: FlowOptions, alone: bool) -> dict[str, Any]:
    on_failure = options.on_failure or "wait"
    return {"after": options.ids, "on_failure": on_failure, "batch": options.batch, "alone": alone}
