"""Calls of 3_tasks/batches.sql and 4_families/dependencies.sql: graphs, batches, and the tasks that a task waited
for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .._values import arguments, data
from .._values.record import Record
from .call import Call, Fence, Rows, scalar
from .results import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInfo(Record):
    """A batch at the moment of the call.

    Attributes:
        id: unique among batches and tasks.
        name: the name that it was given; None: none.
        state: `open`, `running` (closed, and not all of its tasks have ended), `done` or `failed`.
        total: how many tasks it has.
        done: how many of them are done.
        failed: how many were buried, or are gone without having been done.
        open: how many have not ended.
        created_at, closed_at, ended_at: when it was made, was closed, and ended; None: not yet.
    """

    id: int
    name: str | None
    state: str
    total: int
    done: int
    failed: int
    open: int
    created_at: datetime
    closed_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether all of its tasks have ended, and none can be added."""
        return self.state in ("done", "failed")


_COLUMNS = "id, name, state, total, done, failed, open, created_at, closed_at, ended_at"


def put_graph(text: str, alone: bool) -> Call[list[int]]:
    """Put tasks that wait for each other. `text` is a JSON array, as for ack."""
    return Call("SELECT pgqueue.put_graph(puts => %s::pg_catalog.jsonb, alone => %s::boolean)", (text, alone), scalar)


def create_batch(name: str | None) -> Call[int]:
    known = arguments.label("batch's name", name)
    return Call("SELECT pgqueue.create_batch(name => %s::pg_catalog.text)", (known,), scalar)


def close_batch(id: int, puts: str | None) -> Call[tuple[int, list[int]]]:
    """Close a batch: the number of its tasks, and the ids of the tasks that wait for it."""
    return Call(
        "SELECT total, ids FROM pgqueue.close_batch(id => %s::bigint, puts => %s::pg_catalog.jsonb)",
        (id, puts),
        lambda rows: (rows[0][0], rows[0][1] or []),
    )


def delete_batch(id: int) -> Call[bool]:
    return Call("SELECT pgqueue.delete_batch(id => %s::bigint)", (id,), scalar)


def batch(id: int) -> Call[BatchInfo | None]:
    return Call(
        f"SELECT {_COLUMNS} FROM pgqueue.batches WHERE id OPERATOR(pg_catalog.=) %s::bigint",
        (id,),
        lambda rows: _info(rows[0]) if rows else None,
    )


def batches(limit: int) -> Call[list[BatchInfo]]:
    return Call(
        f"SELECT {_COLUMNS} FROM pgqueue.batches ORDER BY id DESC LIMIT %s::int",
        (arguments.count("limit", limit),),
        lambda rows: [_info(row) for row in rows],
    )


def batch_failures(id: int) -> Call[list[Outcome]]:
    return Call(
        "SELECT id, state, queue, NULL, error FROM pgqueue.batch_failures"
        " WHERE batch OPERATOR(pg_catalog.=) %s::bigint ORDER BY id",
        (id,),
        _outcomes,
    )


def predecessors(id: int, fence: Fence) -> Call[list[Outcome]]:
    return Call(
        "SELECT on_id, state, queue, result::pg_catalog.text, error FROM pgqueue.predecessors("
        "id => %s::bigint, token => %s::bigint, session => %s::int)",
        (id, fence.token, fence.session),
        _outcomes,
    )


def _info(row: tuple[Any, ...]) -> BatchInfo:
    return BatchInfo(**dict(zip(_COLUMNS.split(", "), row, strict=True)))


def _outcomes(rows: Rows) -> list[Outcome]:
    return [
        Outcome(id=id, state=state, queue=queue, result=data.decode_if_any(result), error=error)
        for id, state, queue, result, error in rows
    ]
