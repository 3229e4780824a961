"""Calls of 5_verbs/put/batches.sql and 6_families/dependencies.sql: graphs, batches, and the tasks that a task waited
for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .._values import arguments, data
from .._values.record import Record
from .call import Call, Fence, Rows, call, query, scalar
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
    return call("put_graph", None, scalar, puts=text, alone=alone)


def create_batch(name: str | None) -> Call[int]:
    return call("create_batch", None, scalar, name=arguments.label("batch's name", name))


def close_batch(id: int, puts: str | None) -> Call[tuple[int, list[int]]]:
    """Close a batch: the number of its tasks, and the ids of the tasks that wait for it."""
    return call("close_batch", "total, ids", lambda rows: (rows[0][0], rows[0][1] or []), id=id, puts=puts)


def delete_batch(id: int) -> Call[bool]:
    return call("delete_batch", None, scalar, id=id)


def batch(id: int) -> Call[BatchInfo | None]:
    return query(
        f"SELECT {_COLUMNS} FROM pgqueue.batches WHERE id OPERATOR(pg_catalog.=) %s::bigint",
        (id,),
        lambda rows: _info(rows[0]) if rows else None,
    )


def batches(limit: int) -> Call[list[BatchInfo]]:
    return query(
        f"SELECT {_COLUMNS} FROM pgqueue.batches ORDER BY id DESC LIMIT %s::int",
        (arguments.count("limit", limit),),
        lambda rows: [_info(row) for row in rows],
    )


def batch_failures(id: int) -> Call[list[Outcome]]:
    return query(
        "SELECT id, state, queue, NULL, error FROM pgqueue.batch_failures"
        " WHERE batch OPERATOR(pg_catalog.=) %s::bigint ORDER BY id",
        (id,),
        _outcomes,
    )


def predecessors(id: int, fence: Fence) -> Call[list[Outcome]]:
    read = "on_id, state, queue, result::pg_catalog.text, error"
    return call("predecessors", read, _outcomes, **fence.of(id))


def _info(row: tuple[Any, ...]) -> BatchInfo:
    return BatchInfo(**dict(zip(_COLUMNS.split(", "), row, strict=True)))


def _outcomes(rows: Rows) -> list[Outcome]:
    return [
        Outcome(
            id=id,
            state=state,
            queue=queue,
            result=data.decode_if_any(result),
            has_result=result is not None,
            error=error,
        )
        for id, state, queue, result, error in rows
    ]
