"""Calls of 3_tasks/pop.sql."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .._values import arguments
from .call import Call, Rows
from .take import Taken


class Popped(NamedTuple):
    """A row of a pop."""

    id: int
    priority: int
    attempts: int
    data: str


def pop(queue: str, n: int, session: int | None) -> Call[list[Popped]]:
    return Call(
        "SELECT id, priority, attempts, data::pg_catalog.text"
        " FROM pgqueue.pop(queue => %s::pg_catalog.text, n => %s::int, session => %s::int)",
        (queue, arguments.count("n", n), session),
        lambda rows: [Popped(*row) for row in rows],
    )


def pop_next(queues: Sequence[str], n: int, session: int) -> Call[list[Taken]]:
    """The same from one queue or several, in one statement. The rows have no token: nothing is left to settle."""
    if len(queues) == 1:
        return Call(
            "SELECT id, NULL, priority, attempts, NULL, data::pg_catalog.text, %s::pg_catalog.text"
            " FROM pgqueue.pop(queue => %s::pg_catalog.text, n => %s::int, session => %s::int)",
            (queues[0], queues[0], n, session),
            _taken,
        )
    # A ttr of microseconds may end between the take and the ack. Such a task was not acked, so it is not returned.
    return Call(
        "WITH taken AS MATERIALIZED (SELECT * FROM pgqueue.take_many("
        "queues => %s::pg_catalog.text[], n => %s::int, session => %s::int)),"
        " refused AS MATERIALIZED (SELECT r.id"
        " FROM (SELECT pg_catalog.array_agg(id) AS ids, pg_catalog.array_agg(token) AS tokens FROM taken) t,"
        " pgqueue.ack_many(ids => t.ids, tokens => t.tokens) r)"
        " SELECT id, NULL, priority, attempts, NULL, data::pg_catalog.text, queue FROM taken"
        " WHERE id OPERATOR(pg_catalog.<>) ALL (ARRAY (SELECT refused.id FROM refused))",
        (list(queues), n, session),
        _taken,
    )


def _taken(rows: Rows) -> list[Taken]:
    return [Taken(*row) for row in rows]
