"""Calls of 5_verbs/take/take.sql, and the other calls of a waiting take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import LiteralString, NamedTuple, Protocol

from ..errors import TaskBusy, refusal
from .call import SETTLED, Call, Rows, call, scalar, shaped


class AnyTaken(Protocol):
    """The columns of each row of a claim, of tasks and of messages."""

    @property
    def id(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def queue(self) -> str: ...


class Taken(NamedTuple):
    """A row of a claim. `data` is still JSON text; ShellBase.made decodes it.

    Attributes:
        redelivered: an earlier take ended by release, bury, its deadline or the death of its taker.
        waited: for how many seconds the task was ready, by the server's clock; only take_many returns it.
        arrived: the monotonic time when the answer was read; the time since then is to be added to `waited`.
    """

    id: int
    token: int
    priority: int
    attempts: int
    deadline: datetime | None
    data: str
    queue: str
    redelivered: bool = False
    waited: float = 0.0
    arrived: float = 0.0


_FIRST: LiteralString = "id, token, priority, attempts, deadline, data::pg_catalog.text"
_START: tuple[LiteralString, ...] = ("session", "new_token", "after_priority", "after_id")
_TAKE = shaped("take", f"{_FIRST}, redelivered", "queue", *_START)
_TAKE_MANY = shaped("take_many", f"{_FIRST}, queue, redelivered, waited", "queues", "n", *_START)


def take(queue: str, session: int, token: int, after: tuple[int, int] | None) -> Call[list[Taken]]:
    def read(rows: Rows) -> list[Taken]:
        now = time.monotonic()
        return [
            Taken(*row[:6], queue, row[6], arrived=now)  # type: ignore[call-arg, misc]  # mypy: a row has any length
            for row in rows
        ]

    priority, id = after or (None, None)
    return Call(_TAKE.sql, (queue, session, token, priority, id), read, False, _TAKE)


def take_many(
    queues: Sequence[str], n: int, session: int, token: int, after: Sequence[tuple[int, int] | None]
) -> Call[list[Taken]]:
    priorities, ids = [at[0] if at else None for at in after], [at[1] if at else None for at in after]
    return Call(_TAKE_MANY.sql, (list(queues), n, session, token, priorities, ids), _taken, False, _TAKE_MANY)


def next_due(queues: Sequence[str], ids: Sequence[int] | None = None) -> Call[dict[str, float | None]]:
    """Seconds until a task is due, by queue. A queue has no entry if its id is not one of `ids` any more."""
    known = None if ids is None else list(ids)
    return call("next_due", "queue, seconds", lambda rows: dict(rows), queues=list(queues), ids=known)


def session_deadline(session: int) -> Call[float | None]:
    return call("session_deadline", None, scalar, session=session)


def _taken(rows: Rows) -> list[Taken]:
    now = time.monotonic()
    # Taken._make takes twice as long.
    return [Taken(*row, arrived=now) for row in rows]  # type: ignore[misc]  # mypy: a row could have all fields


def take_id(id: int, session: int, token: int, me: str) -> Call[list[Taken]]:
    def read(rows: Rows) -> list[Taken]:
        *row, state, problem, holder = rows[0]
        if problem == "busy":
            raise TaskBusy(
                f"task {id} is {state} and cannot be taken now: its lane is busy, or a transaction is changing it", id
            )
        if problem:
            raise refusal(id, state, problem, holder, me)
        return [Taken(id, *row)]

    return call(
        "take_id",
        f"token, priority, attempts, deadline, data::pg_catalog.text, queue, redelivered, {SETTLED}",
        read,
        id=id,
        session=session,
        new_token=token,
    )
