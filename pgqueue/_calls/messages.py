"""Calls of 6_families/messages.sql: claims and listings, and the limits of their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

from .._values import arguments
from .._values.arguments import Seconds
from .._values.record import Record
from ..errors import ClaimDoesNotExist, Error, MessageIsClaimed, MessageNotClaimed, MessageNotClaimedBy
from .call import Call, Rows, call, nothing

CLAIM_TTL = 60.0  # seconds, as Zaqar's default


CLAIM_GRACE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLimits:
    """The limits of the calls on a queue's messages. The defaults are Zaqar's; set others on a Queue, or on the class.

    Attributes:
        messages: the most messages of a claim, a page, or a pop.
        shortest: the shortest ttl and grace of a claim, in seconds.
        longest: the longest ttl and grace of a claim, in seconds.
    """

    messages: int = 20
    shortest: float = 60.0
    longest: float = 43200.0

    def count(self, name: str, value: int) -> int:
        """A number of messages within the limit. Raises ValueError."""
        arguments.integer(name, value, 1, self.messages)
        return arguments.count(name, value)

    def life(self, name: str, value: Seconds) -> float:
        """Seconds of a ttl or a grace, within the limits. Raises ValueError."""
        seconds = arguments.seconds(name, value)
        if seconds is None or not self.shortest <= seconds <= self.longest:
            raise ValueError(f"{name} must be {self.shortest:g} to {self.longest:g} seconds, not {value!r}")
        return seconds


@dataclass(frozen=True, slots=True)
class MessageStats(Record):
    """The number of messages in a queue; see queue.messages.stats().

    Attributes:
        free: messages that no claim and no take holds.
        claimed: messages that a claim or a take holds.
        total: both.
        oldest: when the oldest was put; None if there is no message, or the queue is not listed.
        newest: when the newest was put; None likewise.
    """

    free: int
    claimed: int
    total: int
    oldest: datetime | None
    newest: datetime | None


class ClaimedMessage(NamedTuple):
    """A row of a claim: as Taken, with the times of a message in seconds."""

    id: int
    token: int
    priority: int
    attempts: int
    deadline: datetime | None
    data: str
    queue: str
    age: float
    ttl: float | None


class Held(NamedTuple):
    """A claim at the moment of the call: times in seconds, and a row for each message that it still holds."""

    ttl: float
    grace: float
    age: float
    rows: list[ClaimedMessage]


class DeletedMessage(NamedTuple):
    """A message that was deleted, or claimed and deleted in one step. `data`: None for a role that may not look."""

    id: int
    priority: int
    attempts: int
    data: str | None
    age: float
    ttl: float | None


class Listed(NamedTuple):
    """A message of a page, and the marker of the page that begins behind it."""

    marker: str
    id: int
    state: str
    priority: int
    attempts: int
    data: str
    age: float
    ttl: float | None


_MESSAGE: LiteralString = (
    "priority, attempts, data::pg_catalog.text, extract(epoch FROM age)::float, extract(epoch FROM ttl)::float"
)
_CLAIMED: LiteralString = (
    "priority, attempts, deadline, data::pg_catalog.text,"
    " extract(epoch FROM message_age)::float, extract(epoch FROM message_ttl)::float"
)


def claim_id(value: object) -> int:
    """A claim's id from an int or a string of digits. Raises ValueError for an id that no claim can have."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"a claim is named by its id, an int or a string of digits, not {value!r}")
    return value


def claim_messages(queue: str, n: int, ttl: float, grace: float, session: int | None) -> Call[list[ClaimedMessage]]:
    """Claim messages. The claim's id is the token of its messages."""
    return call(
        "claim_messages",
        f"id, claim, {_CLAIMED}",
        lambda rows: [_claimed(queue, *row) for row in rows],
        queue=queue,
        n=n,
        ttl=ttl,
        grace=grace,
        session=session,
    )


def get_claim(queue: str, claim: int) -> Call[Held]:
    def read(rows: Rows) -> Held:
        if not rows:
            raise no_claim(queue, claim)
        ttl, grace, age, *_ = rows[0]
        messages = [_claimed(queue, id, claim, *rest) for _, _, _, id, *rest in rows if id is not None]
        return Held(ttl, grace, age, messages)

    columns: LiteralString = (
        "extract(epoch FROM ttl)::float, extract(epoch FROM grace)::float, extract(epoch FROM age)::float, id, "
    )
    return call("get_claim", columns + _CLAIMED, read, queue=queue, claim=claim)


def renew_claim(queue: str, claim: int, ttl: float, grace: float) -> Call[None]:
    def read(rows: Rows) -> None:
        if not rows[0][0]:
            raise no_claim(queue, claim)

    return call("renew_claim", None, read, queue=queue, claim=claim, ttl=ttl, grace=grace)


def release_claim(queue: str, claim: int) -> Call[None]:
    return call("release_claim", None, nothing, queue=queue, claim=claim)


def delete_message(queue: str, id: int, claim: int | None) -> Call[None]:
    def read(rows: Rows) -> None:
        if problem := rows[0][0]:
            raise _refused(problem, queue, id, -1 if claim is None else claim)

    return call("delete_message", None, read, queue=queue, id=id, claim=claim)


def delete_messages(queue: str, ids: Sequence[int]) -> Call[list[DeletedMessage]]:
    return call("delete_messages", f"id, {_MESSAGE}", _deleted, queue=queue, ids=list(ids))


def pop_messages(queue: str, n: int, session: int | None) -> Call[list[DeletedMessage]]:
    return call("pop", f"id, {_MESSAGE}", _deleted, queue=queue, n=n, session=session)


def list_messages(
    queue: str,
    marker: str | None,
    n: int,
    sender: UUID | str | None,
    echo: bool,
    include_claimed: bool,
    include_delayed: bool,
) -> Call[list[Listed]]:
    if marker is not None:
        arguments.text(marker, "a marker")
    return call(
        "list_messages",
        f"marker, id, state, {_MESSAGE}",
        lambda rows: [Listed(*row) for row in rows],
        queue=queue,
        after=marker,
        n=n,
        sender=arguments.uuid("sender", sender),
        echo=echo,
        include_claimed=include_claimed,
        include_delayed=include_delayed,
    )


def message_stats(queue: str) -> Call[MessageStats]:
    columns: LiteralString = "free, claimed, total, oldest, newest"
    return call("message_stats", columns, lambda rows: MessageStats(*rows[0]), queue=queue)


def _claimed(queue: str, id: int, claim: int, *row: Any) -> ClaimedMessage:
    """The row has the columns of _CLAIMED."""
    priority, attempts, deadline, text, age, ttl = row
    return ClaimedMessage(id, claim, priority, attempts, deadline, text, queue, age, ttl)


def _deleted(rows: Rows) -> list[DeletedMessage]:
    return [DeletedMessage(*row) for row in rows]


def no_claim(queue: str, claim: int | str) -> ClaimDoesNotExist:
    return ClaimDoesNotExist(
        f"there is no claim {claim} of queue {queue!r}: it is over, was deleted, or never existed", claim
    )


def _refused(problem: str, queue: str, id: int, claim: int) -> Error:
    """The error for a message that was not deleted."""
    if problem == "claimed":
        return MessageIsClaimed(f"message {id} of queue {queue!r} is claimed: name its claim to delete it", id)
    if problem == "not claimed":
        return MessageNotClaimed(f"message {id} of queue {queue!r} is not claimed, so not by claim {claim} either", id)
    if problem == "claimed by another":
        return MessageNotClaimedBy(f"message {id} of queue {queue!r} is not claimed by claim {claim}", id, claim)
    return no_claim(queue, claim)
