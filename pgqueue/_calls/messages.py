"""Calls of 4_families/messages.sql: claims and listings, and the limits of their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from .._values import arguments
from .._values.arguments import Seconds
from .._values.record import Record
from ..errors import ClaimDoesNotExist, Error, MessageIsClaimed, MessageNotClaimed, MessageNotClaimedBy
from .call import Call, Rows, nothing

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
    """A message that was deleted, or claimed and deleted in one step."""

    id: int
    priority: int
    attempts: int
    data: str
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


def claim_id(value: object) -> int:
    """A claim's id from an int or a string of digits. Raises ValueError for an id that no claim can have."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"a claim is named by its id, an int or a string of digits, not {value!r}")
    return value


def claim_messages(queue: str, n: int, ttl: float, grace: float, session: int | None) -> Call[list[ClaimedMessage]]:
    """Claim messages. The claim's id is the token of its messages."""
    return Call(
        "SELECT id, claim, priority, attempts, deadline, data::pg_catalog.text, %s::pg_catalog.text,"
        " extract(epoch FROM message_age)::float, extract(epoch FROM message_ttl)::float"
        " FROM pgqueue.claim_messages(queue => %s::pg_catalog.text, n => %s::int,"
        " ttl => pg_catalog.make_interval(secs => %s::float),"
        " grace => pg_catalog.make_interval(secs => %s::float), session => %s::int)",
        (queue, queue, n, ttl, grace, session),
        lambda rows: [ClaimedMessage(*row) for row in rows],
    )


def get_claim(queue: str, claim: int) -> Call[Held]:
    def read(rows: Rows) -> Held:
        if not rows:
            raise no_claim(queue, claim)
        ttl, grace, age, *_ = rows[0]
        return Held(ttl, grace, age, [ClaimedMessage(*row[3:]) for row in rows if row[3] is not None])

    return Call(
        "SELECT extract(epoch FROM ttl)::float, extract(epoch FROM grace)::float, extract(epoch FROM age)::float,"
        " id, %s::bigint, priority, attempts, deadline, data::pg_catalog.text, %s::pg_catalog.text,"
        " extract(epoch FROM message_age)::float, extract(epoch FROM message_ttl)::float"
        " FROM pgqueue.get_claim(queue => %s::pg_catalog.text, claim => %s::bigint)",
        (claim, queue, queue, claim),
        read,
    )


def renew_claim(queue: str, claim: int, ttl: float, grace: float) -> Call[None]:
    def read(rows: Rows) -> None:
        if not rows[0][0]:
            raise no_claim(queue, claim)

    return Call(
        "SELECT pgqueue.renew_claim(queue => %s::pg_catalog.text, claim => %s::bigint,"
        " ttl => pg_catalog.make_interval(secs => %s::float), grace => pg_catalog.make_interval(secs => %s::float))",
        (queue, claim, ttl, grace),
        read,
    )


def release_claim(queue: str, claim: int) -> Call[None]:
    return Call(
        "SELECT pgqueue.release_claim(queue => %s::pg_catalog.text, claim => %s::bigint)", (queue, claim), nothing
    )


def delete_message(queue: str, id: int, claim: int | None) -> Call[None]:
    def read(rows: Rows) -> None:
        if problem := rows[0][0]:
            raise _refused(problem, queue, id, -1 if claim is None else claim)

    return Call(
        "SELECT pgqueue.delete_message(queue => %s::pg_catalog.text, id => %s::bigint, claim => %s::bigint)",
        (queue, id, claim),
        read,
    )


def delete_messages(queue: str, ids: Sequence[int]) -> Call[list[DeletedMessage]]:
    return Call(
        "SELECT id, priority, attempts, data::pg_catalog.text, extract(epoch FROM age)::float,"
        " extract(epoch FROM ttl)::float"
        " FROM pgqueue.delete_messages(queue => %s::pg_catalog.text, ids => %s::bigint[])",
        (queue, list(ids)),
        lambda rows: [DeletedMessage(*row) for row in rows],
    )


def pop_messages(queue: str, n: int, session: int | None) -> Call[list[DeletedMessage]]:
    return Call(
        "SELECT id, priority, attempts, data::pg_catalog.text, extract(epoch FROM age)::float,"
        " extract(epoch FROM ttl)::float"
        " FROM pgqueue.pop(queue => %s::pg_catalog.text, n => %s::int, session => %s::int)",
        (queue, n, session),
        lambda rows: [DeletedMessage(*row) for row in rows],
    )


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
    return Call(
        "SELECT marker, id, state, priority, attempts, data::pg_catalog.text, extract(epoch FROM age)::float,"
        " extract(epoch FROM ttl)::float"
        " FROM pgqueue.list_messages(queue => %s::pg_catalog.text, after => %s::pg_catalog.text, n => %s::int,"
        " sender => %s::pg_catalog.uuid,"
        " echo => %s::boolean, include_claimed => %s::boolean, include_delayed => %s::boolean)",
        (queue, marker, n, arguments.uuid("sender", sender), echo, include_claimed, include_delayed),
        lambda rows: [Listed(*row) for row in rows],
    )


def message_stats(queue: str) -> Call[MessageStats]:
    return Call(
        "SELECT free, claimed, total, oldest, newest FROM pgqueue.message_stats(queue => %s::pg_catalog.text)",
        (queue,),
        lambda rows: MessageStats(*rows[0]),
    )


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
