"""Calls of 5_verbs/transfer.sql: tasks that leave one server, and arrive on another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .call import Call, query, scalar


class Page(NamedTuple):
    """Tasks that leave a server. Each is the text of a JSON object, as the server wrote it: floats keep their digits.

    Attributes:
        tasks: the tasks.
        names: their lanes, or else their keys.
        homes: the numbers of the servers that keep their limits; None for a task with a lane.
        last: the id to go on behind; None: there are no more.
        more: their lane has more tasks, which have to be moved in the same transaction.
    """

    tasks: list[str]
    names: list[str | None]
    homes: list[int | None]
    last: int | None
    more: bool


def move_out(queue: str, n: int, lane: str | None, after: int) -> Call[Page]:
    return query(
        "SELECT tasks::pg_catalog.text[], names, homes, last, more"
        " FROM pgqueue.move_out(%s::pg_catalog.text, %s::int, %s::pg_catalog.text, %s::bigint)",
        (queue, n, lane, after),
        lambda rows: Page(rows[0][0] or [], rows[0][1] or [], rows[0][2] or [], *rows[0][3:]),
    )


def move_in(queue: str, tasks: Sequence[str], *, continued: bool) -> Call[int]:
    """Returns how many have no task with their key there."""
    return query(
        "SELECT pgqueue.move_in(%s::pg_catalog.text, %s::pg_catalog.text[]::pg_catalog.jsonb[], %s)",
        (queue, list(tasks), continued),
        scalar,
    )


def lanes(queue: str, after: str, n: int) -> Call[list[str]]:
    return query(
        "SELECT * FROM pgqueue.moving_lanes(%s::pg_catalog.text, %s::pg_catalog.text, %s::int)",
        (queue, after, n),
        lambda rows: [lane for (lane,) in rows],
    )


def staying(queue: str) -> Call[dict[str, int]]:
    """The number of tasks that cannot move now, by the reason."""
    return query("SELECT reason, n FROM pgqueue.staying(%s::pg_catalog.text)", (queue,), lambda rows: dict(rows))


def queues() -> Call[list[str]]:
    """The queues whose tasks can move: a queue of a session ends with it."""
    return query(
        "SELECT name FROM pgqueue.queues WHERE session IS NULL ORDER BY name",
        (),
        lambda rows: [name for (name,) in rows],
    )
