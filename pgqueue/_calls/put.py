"""Calls of 5_verbs/put/put.sql."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any, LiteralString, NamedTuple, TypeVar

from ..errors import QueueFull
from .call import As, Call, Rows, Shape, call, nothing, query, scalar, shaped, written
from .casts import TEXT
from .put_options import USUAL, PutManyOptions, PutOptions, SharedOptions

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


_PUT = shaped("put", _ANSWER, "queue", "data", *USUAL)


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


def put(queue: str, text: str, options: PutOptions, alone: bool = False) -> Call[Placed]:
    """Put a task. `alone`: in a transaction of its own, see put_flow in 5_verbs/put/graphs.sql."""
    if options.usual:  # and shorter
        args = (queue, text, options.priority, options.delay, options.ttr, options.ttl)
        return Call(_PUT.sql, args, _placed, False, _PUT)
    shape = _special(False, options.in_flow, options.unique_data)
    return Call(shape.sql, _special_args(queue, text, options, options.lane, options.key, alone), _placed, False, shape)


def patient(put: Call[T], seconds: float) -> Call[T]:
    """The put, which waits for its lock for this number of seconds."""
    return put.but(queue=As(_PATIENT_QUEUE, (put.given["queue"], seconds)))


def put_together(queue: str, texts: Sequence[str], options: PutOptions, patience: float) -> Call[list[Placed]]:
    """Put several tasks with the same options, without lane, key and sender: the answer to each, as put gives it.

    put_many returns ids and no states. So `put` puts the first task, and its state is that of all: they differ in their
    data only. If there is no room for the first, there is none for the others. LATERAL: the others are put after the
    first.

    `patience`: seconds for which it waits for its lock.
    """
    usual = (options.priority, options.delay, options.ttr, options.ttl)
    return query(
        _TOGETHER,
        (texts[0], *usual, queue, patience, queue, f"[{','.join(texts[1:])}]", *usual),
        lambda rows: _placed_together(rows, len(texts)),
    )


_TOGETHER: LiteralString = (
    f"SELECT first.id, first.state, others.ids FROM {written('put', 'data', *USUAL, queue=_PATIENT_QUEUE)} first,"
    " LATERAL (SELECT CASE WHEN first.id IS NOT NULL THEN"
    f" pg_catalog.array_to_string({written('put_many', 'queue', 'data', *USUAL)}, ' ') END AS ids) others"
)


def put_many(queue: str, text: str, options: PutManyOptions, alone: bool = False) -> Call[list[int]]:
    """Put several tasks. `text` is a JSON array of their data. `alone`: as for put."""
    shape = _special(True, options.in_flow, options.unique_data)
    return Call(shape.sql, _special_args(queue, text, options, options.lanes, options.key, alone), scalar, False, shape)


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


_FLOW: tuple[LiteralString, ...] = ("after", "on_failure", "batch")
_OTHERS = ("lane", "key", "unique_data", "unique_for", *_FLOW)
_SHARED = tuple(name for name in PutOptions.__dataclass_fields__ if name not in _OTHERS)  # arguments of all four
_shared = attrgetter(*_SHARED)


@cache
def _special(many: bool, in_flow: bool, by_data: bool) -> Shape:
    """The shape of a put with any option; `by_data`: the key is that of the data."""
    if many:
        function, columns, names, key = "put_many", None, ("lanes", "keys"), _KEYS_OF_DATA
    else:
        function, columns, names, key = "put", _WHOLE_ANSWER, ("lane", "key"), _KEY_OF_DATA
    rest = (*_FLOW, "alone") if in_flow else ("unique_for",)
    called = function.replace("put", "put_flow") if in_flow else function
    return shaped(called, columns, "queue", "data", *_SHARED, *names, *rest, **({names[1]: key} if by_data else {}))


def _special_args(
    queue: str, text: str, options: SharedOptions, lane: object, key: object, alone: bool
) -> tuple[Any, ...]:
    """The arguments of _special()."""
    args = (queue, text, *_shared(options), lane, text if options.unique_data else key)
    if options.in_flow:
        return *args, options.ids, options.on_failure or "wait", options.batch, alone
    return *args, options.unique_for
