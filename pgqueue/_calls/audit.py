"""Calls of 7_operations/audit.sql: the audit trail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from .._values import arguments
from .._values.record import Record
from .call import Call, query

T = TypeVar("T")

LONGEST_ACTOR = 200  # characters, as in 2_base/record.sql

_actor: ContextVar[str | None] = ContextVar("pgqueue_actor", default=None)


@dataclass(frozen=True, slots=True)
class Deed(Record):
    """A call of an operators' verb; see Audit.list().

    Attributes:
        id: a number that grows.
        at: the time of the call.
        role: the role of the call, with the name that it had.
        login: the role that connected, which may have become `role` by SET ROLE.
        actor: the name that the session gave itself, for example by Audit.acting(). It proves nothing.
        verb: for example pause, kick, delete, alter, grant or set_schedule.
        queue: the name that the queue had; None if the verb is for no queue.
        object: a task's id, or the name of a schedule, job, role or exchange.
        count: the number of tasks.
        detail: the other arguments of the verb, for people; without data.
    """

    id: int
    at: datetime
    role: str
    login: str
    actor: str | None
    verb: str
    queue: str | None
    object: str | None
    count: int | None
    detail: str | None


def list_deeds(queue: str | None, n: int) -> Call[list[Deed]]:
    """The newest, the newest first."""
    named = None if queue is None else arguments.queue_name(queue)
    return query(
        "SELECT id, at, role, login, actor, verb, queue, object, count, detail FROM pgqueue.audit"
        " WHERE (%s::pg_catalog.text IS NULL OR queue OPERATOR(pg_catalog.=) %s::pg_catalog.text)"
        " ORDER BY id DESC LIMIT %s::int",
        (named, named, arguments.count("n", n)),
        lambda rows: [Deed(*row) for row in rows],
    )


@contextmanager
def acting(actor: str) -> Iterator[None]:
    """Calls in this block, of this thread or asyncio task, name the actor. Raises ValueError."""
    name = arguments.text(actor, "an actor") if isinstance(actor, str) else ""
    if not 1 <= len(name) <= LONGEST_ACTOR:
        raise ValueError(f"an actor is a text of 1 to {LONGEST_ACTOR} characters, not {actor!r}")
    before = _actor.set(name)
    try:
        yield
    finally:
        _actor.reset(before)


def acted(call: Call[T]) -> Call[T]:
    """The call, which names the actor if there is one.

    In one statement, since it may run on any connection of a pool: the setting ends with the statement's transaction.
    The call's statement refers to the result of set_config, and a nested loop reads that first.
    """
    actor = _actor.get()
    if actor is None:
        return call
    return call.within(
        "SELECT done.* FROM (SELECT pg_catalog.set_config('pgqueue.actor', %s, true) AS actor OFFSET 0) named"
        " CROSS JOIN LATERAL (SELECT each.* FROM (" + call.sql + ") each"
        " WHERE named.actor IS NOT NULL OFFSET 0) done",
        (actor, *call.args),
    )
