"""Messages, claims and pages: tasks as Zaqar's API sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .._calls.messages import ClaimedMessage, DeletedMessage, Listed, claim_id, no_claim
from .._values import data
from .._values.record import Record
from .task import DONE, TAKEN, Bound, TaskRecord, bind


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecord(TaskRecord):
    """A message: a task, with the times of Zaqar's messages.

    Attributes:
        age: for how many seconds it has been ready: since its put, or the end of its delay, or a kick. 0 while it is
            delayed.
        ttl: how many seconds it lives, from when it is ready on; None for no limit. A claim may make it longer.
    """

    age: float = 0.0
    ttl: float | None = None


AnyMessage = TypeVar("AnyMessage", bound=MessageRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord(Bound, Generic[AnyMessage]):
    """A claim at the moment at which a call returned it.

    Attributes:
        id: its number: for renewing or deleting the claim, or for deleting its messages.
        queue: the queue's name.
        ttl: its duration from when it was made or renewed, in seconds.
        grace: the least time that its messages live longer than the claim, in seconds.
        age: seconds since it was made or renewed.
        messages: the messages that it holds; an ack of one deletes it.
    """

    id: int
    queue: str
    ttl: float
    grace: float
    age: float
    messages: list[AnyMessage]


ClaimLike = ClaimRecord[Any] | int | str  # an argument: a claim, or its id as an int or a string of digits


@dataclass(frozen=True, slots=True)
class MessagePage(Record, Generic[AnyMessage]):
    """A page of messages.

    Attributes:
        messages: oldest first.
        marker: the start of the next page; unchanged if this page is empty.
    """

    messages: list[AnyMessage]
    marker: str | None


def claim_named(claim: ClaimLike, queue: str) -> int:
    """A claim's id. Raises ClaimDoesNotExist for a text or a number that no claim can have, ValueError otherwise."""
    if isinstance(claim, ClaimRecord):
        return claim.id
    try:
        return claim_id(claim)
    except ValueError:
        if isinstance(claim, bool) or not isinstance(claim, int | str):
            raise
        raise no_claim(queue, claim) from None


def listed(kind: type[AnyMessage], row: Listed, queue: str, shell: Any) -> AnyMessage:
    """A message of a page."""
    message = kind(
        id=row.id,
        queue=queue,
        state=row.state,
        data=data.shown(row.data),
        priority=row.priority,
        attempts=row.attempts,
        age=row.age,
        ttl=row.ttl,
    )
    return bind(message, shell)


def claimed(kind: type[AnyMessage], row: ClaimedMessage, shell: Any) -> AnyMessage:
    """A message that a claim holds."""
    message = kind(
        id=row.id,
        queue=row.queue,
        state=TAKEN,
        data=data.decode(row.data),
        priority=row.priority,
        attempts=row.attempts,
        deadline=row.deadline,
        token=row.token,
        age=row.age,
        ttl=row.ttl,
    )
    return bind(message, shell)


def deleted(kind: type[AnyMessage], row: DeletedMessage, queue: str, shell: Any) -> AnyMessage:
    """A message that was deleted."""
    message = kind(
        id=row.id,
        queue=queue,
        state=DONE,
        data=None if row.data is None else data.shown(row.data),
        priority=row.priority,
        attempts=row.attempts,
        age=row.age,
        ttl=row.ttl,
    )
    return bind(message, shell)
