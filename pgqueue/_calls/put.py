"""Calls of 3_tasks/put.sql."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, LiteralString, NamedTuple, TypeVar

from ..errors import QueueFull
from .call import As, Call, Rows, call, nothing, query, scalar, written
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
    """Put a task. `alone`: in a transaction of its own, see put_flow in 3_tasks/flows.sql."""
    if options.usual:  # and shorter
        return call("put", _ANSWER, _placed, queue=queue, data=text, **_usual(options))
    given = _special(options, alone)
    if options.unique_data:
        given["key"] = As(_KEY_OF_DATA, (text,))
    return call("put_flow" if options.in_flow else "put", _WHOLE_ANSWER, _placed, queue=queue, data=text, **given)


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
    usual = _usual(options).values()
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
    given = _special(options, alone)
    del given["lane"]
    keys = given.pop("key")
    given |= {"lanes": options.lanes, "keys": As(_KEYS_OF_DATA, (text,)) if options.unique_data else keys}
    return call("put_flow_many" if options.in_flow else "put_many", None, scalar, queue=queue, data=text, **given)


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


def _usual(options: SharedOptions) -> dict[str, Any]:
    return {"priority": options.priority, "delay": options.delay, "ttr": options.ttr, "ttl": options.ttl}


def _special(options: SharedOptions, alone: bool) -> dict[str, Any]:
    """The arguments of all options. The functions of flows have those of flows, and no unique_for."""
    given = options.named()
    del given["unique_data"]  # it stands for a key
    if not options.in_flow:
        del given["after"], given["on_failure"], given["batch"]
        return given
    del given["unique_for"]
    return given | {"after": options.ids, "on_failure": options.on_failure or "wait", "alone": alone}
