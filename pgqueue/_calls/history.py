"""Calls of 7_operations/history.sql: the history of queues."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from .._values import arguments
from .._values.arguments import Seconds
from .call import Call, query, written

HOUR = 3600.0
MOST = 366 * 86400.0  # seconds


class QueuePeriod(NamedTuple):
    """The calls for a queue in a period, and its lengths; see Queue.history().

    at: the beginning of the period.
    puts, takes, acks, releases, buries: how many tasks the verb was called for.
    done: acks, deletes and tasks that expired.
    timeouts: takes whose time to run was over.
    ready, taken, delayed, buried, blocked: how many tasks there were at the end of the period.
    most_ready: the most ready tasks at the end of any minute of the period.
    oldest_ready_age: the most seconds for which a task had been ready at the end of a minute; None: nothing was ready.
    """

    queue: str
    at: datetime
    puts: int
    takes: int
    acks: int
    done: int
    releases: int
    buries: int
    timeouts: int
    ready: int
    most_ready: int
    taken: int
    delayed: int
    buried: int
    blocked: int
    oldest_ready_age: float | None


def history(queues: Sequence[str] | None, since: Seconds, every: Seconds | None) -> Call[list[QueuePeriod]]:
    """Of these queues; None: of all."""
    begin = arguments.required_seconds("since", since)
    if begin > MOST:
        raise ValueError(f"since must be up to 366 days, not {since!r}")
    return query(
        "SELECT queue, at, puts, takes, acks, done, releases, buries, timeouts, ready, most_ready, taken, delayed,"
        " buried, blocked, extract(epoch FROM oldest_ready_age)::float"
        f" FROM {written('history', 'queues', 'since', 'every')} ORDER BY queue, at",
        (
            None if queues is None else [arguments.queue_name(name) for name in queues],
            begin,
            arguments.seconds("every", every, positive=True),
        ),
        lambda rows: [QueuePeriod(*row) for row in rows],
    )
