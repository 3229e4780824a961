"""Calls of 5_verbs/take/pop.sql."""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString, NamedTuple

from .._values import arguments
from .call import Call, call, query, written
from .take import Taken


class Popped(NamedTuple):
    """A row of a pop."""

    id: int
    priority: int
    attempts: int
    data: str


_COLUMNS: LiteralString = "id, priority, attempts, data::pg_catalog.text"


def pop(queue: str, n: int, session: int | None) -> Call[list[Popped]]:
    number = arguments.count("n", n)
    return call("pop", _COLUMNS, lambda rows: [Popped(*row) for row in rows], queue=queue, n=number, session=session)


def pop_next(queues: Sequence[str], n: int, session: int) -> Call[list[Taken]]:
    """The same from one queue or several, in one statement. The rows have no token: nothing is left to settle."""
    if len(queues) == 1:
        (queue,) = queues
        return call(
            "pop", _COLUMNS, lambda rows: [_taken(queue, *row) for row in rows], queue=queue, n=n, session=session
        )
    # A ttr of microseconds may end between the take and the ack. Such a task was not acked, so it is not returned.
    return query(
        f"WITH taken AS MATERIALIZED (SELECT * FROM {written('take_many', 'queues', 'n', 'session')}),"
        " refused AS MATERIALIZED (SELECT r.id"
        " FROM (SELECT pg_catalog.array_agg(id) AS ids, pg_catalog.array_agg(token) AS tokens FROM taken) t,"
        " pgqueue.ack_many(ids => t.ids, tokens => t.tokens) r)"
        f" SELECT queue, {_COLUMNS} FROM taken"
        " WHERE id OPERATOR(pg_catalog.<>) ALL (ARRAY (SELECT refused.id FROM refused))",
        (list(queues), n, session),
        lambda rows: [_taken(*row) for row in rows],
    )


def _taken(queue: str, id: int, priority: int, attempts: int, data: str) -> Taken:
    return Taken(id, None, priority, attempts, None, data, queue)  # type: ignore[arg-type]  # no take, no token
