"""Calls of 3_tasks/pop.sql."""

from __future__ import annotations

from typing import NamedTuple

from .._values import arguments
from .call import Call


class Popped(NamedTuple):
    """A row of a pop."""

    id: int
    priority: int
    attempts: int
    data: str


def pop(queue: str, n: int, session: int | None) -> Call[list[Popped]]:
    return Call(
        "SELECT id, priority, attempts, data::text"
        " FROM pgqueue.pop(queue => %s::text, n => %s::int, session => %s::int)",
        (queue, arguments.count("n", n), session),
        lambda rows: [Popped(*row) for row in rows],
    )
