"""Claims and listings of messages, as Zaqar has them. A message is a task. Both shells."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from uuid import UUID

from . import arguments, data, flows
from .base import mirrors
from .borrowed import AsyncConn, Conn
from .calls import Call, Popped, pop
from .calls import claims as calls
from .calls.claims import CLAIM_GRACE, CLAIM_TTL, Held, Listed, MessageLimits, MessageStats, claim_id
from .shell import AsyncShell, LoopSignal, Shell
from .task import TaskLike, TaskRecord, from_popped, from_taken, named

Message = TypeVar("Message", bound=TaskRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord(Generic[Message]):
    """What is known of a claim at the moment that a call returned it.

    Attributes:
        id: names it, for whoever is to renew it, delete it, or delete its messages.
        queue: the queue's name.
        ttl: for how long it was made or renewed, seconds.
        grace: for how much longer than the claim its messages live at least, seconds.
        age: since when it is made or renewed, seconds.
        messages: what it holds; to ack one is to delete it.
    """

    id: int
    queue: str
    ttl: float
    grace: float
    age: float
    messages: list[Message]


ClaimLike = ClaimRecord[Any] | int | str  # what a verb takes: a claim, or its id as an int or a string of digits


@dataclass(frozen=True, slots=True)
class MessagePage(Generic[Message]):
    """A page of messages.

    Attributes:
        messages: oldest first.
        marker: where the next page begins; the same one again while there is nothing behind it.
    """

    messages: list[Message]
    marker: str | None


class _Messages(Generic[Message]):
    """What both shells make of rows."""

    name: str
    message_limits = MessageLimits()
    _task_type: type[Message]

    def _limited(self, ttl: float, grace: float) -> tuple[float, float]:
        return self.message_limits.life("ttl", ttl), self.message_limits.life("grace", grace)

    def _chosen(self, ids: Iterable[TaskLike] | None, pop: int | None) -> tuple[list[int], int]:
        """The ids, or none and how many to pop."""
        if (ids is None) == (pop is None):
            raise ValueError("delete_messages needs either ids or a number to pop")
        if pop is not None:
            return [], self.message_limits.count("pop", pop)
        return [named(task)[0] for task in ids or ()], 0

    def _page(self, rows: list[Listed], marker: str | None) -> MessagePage[Message]:
        messages = [_from_listed(self._task_type, row, self.name, _queue=self) for row in rows]
        return MessagePage(messages, rows[-1].marker if rows else marker)


class QueueClaims(_Messages[Message]):
    _client: Shell

    def claim(
        self, limit: int = 10, ttl: float = CLAIM_TTL, grace: float = CLAIM_GRACE, *, timeout: float | None = 0
    ) -> Claim[Message] | None:
        """Claim messages: several tasks under one id, for a time. As Zaqar's.

        The claim is nobody's: it outlives this process, and whoever knows its id may go on with it. What it still holds
        when its time is over is free again at that moment, and counts as an attempt, as does what is given back.

        Args:
            limit: how many at most, the first by (priority, id).
            ttl: for how many seconds; takes the place of the messages' own ttr.
            grace: seconds. A message that would expire before the claim and this are over lives for so long.
            timeout: seconds to wait for the first. 0, the default, does not wait, None waits for ever.

        Returns:
            The claim, or None if there was nothing to claim.

        Raises:
            ValueError: an argument is not within `message_limits`.
            ConnectionLost: whether something was claimed is unknown; if so, it is free again after the ttl.
        """
        ttl, grace = self._limited(ttl, grace)
        session = self._client._fence(None).session
        limit = self.message_limits.count("limit", limit)
        call = calls.claim_messages(self.name, limit, ttl, grace, session)
        timeout = arguments.timeout(timeout)
        if timeout == 0:
            rows = self._client._run(call, relaxed=True)
        else:
            core, listener = self._client._core, self._client._listener()
            rows = self._client._drive(flows.claim(core, listener, threading.Event, self.name, call, limit, timeout))
        return self._claimed(rows[0].token, Held(ttl, grace, 0.0, rows)) if rows else None

    def get_claim(self, claim: ClaimLike) -> Claim[Message]:
        """A claim as it is now, with the messages that it still holds.

        Raises:
            ClaimDoesNotExist: its time is over, it was deleted, or it never was.
            ValueError: that is not a claim's id.
        """
        id = _id(claim)
        return self._claimed(id, self._client._run(calls.get_claim(self.name, id)))

    def renew_claim(self, claim: ClaimLike, ttl: float = CLAIM_TTL, grace: float = CLAIM_GRACE) -> None:
        """Give a claim a new life, from now on, and the messages that it still holds.

        Args:
            claim: a claim, or its id.
            ttl, grace: as for claim, instead of what it had.

        Raises:
            ClaimDoesNotExist, ValueError: as for get_claim and claim.
        """
        self._client._run(calls.renew_claim(self.name, _id(claim), *self._limited(ttl, grace)), relaxed=True)

    def delete_claim(self, claim: ClaimLike) -> None:
        """Give back what a claim still holds, and end it. One that is not there is ended already."""
        self._client._run(calls.delete_claim(self.name, _id(claim)), relaxed=True)

    def delete_message(self, message: TaskLike, claim: ClaimLike | None = None, *, conn: Conn | None = None) -> None:
        """Delete a message. One that is not there is deleted already.

        Args:
            message: the message, or its id. Only this, and no token that it may have, is looked at.
            claim: the claim that holds it, or that one's id. Without one it is deleted if nobody holds it.
            conn: a connection of the caller's, to delete in its transaction; without a claim at READ COMMITTED.

        Raises:
            MessageIsClaimed: it is claimed, or taken, and no claim was named.
            MessageNotClaimed: a claim was named, and nobody has claimed it.
            MessageNotClaimedBy: another claim than this one holds it.
            ClaimDoesNotExist: likewise, and there is no such claim any more.
            TaskIdRequired, ValueError: that is not an id.
        """
        id, of = named(message)[0], None if claim is None else _id(claim)
        self._client._run(calls.delete_message(self.name, id, of), conn)

    def delete_messages(
        self, ids: Iterable[TaskLike] | None = None, *, pop: int | None = None, conn: Conn | None = None
    ) -> list[Message]:
        """Delete messages by their ids, claimed or not; or claim and delete the next ones.

        Args:
            ids: messages, or their ids; what is not there is passed over.
            pop: instead of ids, how many. Those that are claimed stay.
            conn: a connection of the caller's, to delete in its transaction.

        Returns:
            The messages that were deleted.

        Raises:
            ValueError: both or neither are given, or more than `message_limits` allows to pop.
            TaskIdRequired: something is not an id.
        """
        chosen, n = self._chosen(ids, pop)
        rows = self._client._run(_delete(self.name, chosen, n, self._client._fence(None).session), conn)
        return [from_popped(self._task_type, row, self.name, _queue=self) for row in rows]

    def messages(
        self,
        marker: str | None = None,
        limit: int = 10,
        *,
        sender: UUID | str | None = None,
        echo: bool = False,
        include_claimed: bool = False,
        include_delayed: bool = False,
    ) -> MessagePage[Message]:
        """List messages, oldest first, from a marker on, without taking them.

        No message is passed over because it was committed late. Therefore it does not show before all transactions that
        began to write earlier have ended, on the whole server. What is hidden when a page is made, claimed or delayed,
        is not behind that page's marker any more.

        Args:
            marker: of the page before; None begins with the oldest message.
            limit: how many at most.
            sender: the UUID that this client puts with, to leave out its own messages.
            echo: do not leave them out.
            include_claimed: list also what a claim or a take holds.
            include_delayed: list also what is delayed.

        Raises:
            QueueNotListed: the queue was not made with listed=True.
            ValueError: an argument cannot be, or is not within `message_limits`.
        """
        n = self.message_limits.count("limit", limit)
        call = calls.list_messages(self.name, marker, n, sender, echo, include_claimed, include_delayed)
        return self._page(self._client._run(call), marker)

    def message_stats(self) -> MessageStats:
        """How many messages are free, claimed, and there in all; and the age of what is listed."""
        return self._client._run(calls.message_stats(self.name))

    def _claimed(self, id: int, held: Held) -> Claim[Message]:
        messages = self._client._made(held.rows, lambda row: from_taken(self._task_type, row, _queue=self))
        return Claim(
            id=id, queue=self.name, ttl=held.ttl, grace=held.grace, age=held.age, messages=messages, _queue=self
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(ClaimRecord[Message]):
    """Messages that were claimed together, from Queue.claim() or get_claim()."""

    _queue: QueueClaims[Message] = field(repr=False, compare=False)

    def get(self) -> Claim[Message]:
        """The claim as it is now; see Queue.get_claim."""
        return self._queue.get_claim(self)

    def renew(self, ttl: float | None = None, grace: float | None = None) -> None:
        """A new life from now on; see Queue.renew_claim. What is left out is as it was."""
        self._queue.renew_claim(self, *_or_as_before(self, ttl, grace))

    def delete(self) -> None:
        """Give back what it still holds, and end it; see Queue.delete_claim."""
        self._queue.delete_claim(self)


@mirrors(QueueClaims)
class AsyncQueueClaims(_Messages[Message]):
    _client: AsyncShell

    async def claim(
        self, limit: int = 10, ttl: float = CLAIM_TTL, grace: float = CLAIM_GRACE, *, timeout: float | None = 0
    ) -> AsyncClaim[Message] | None:
        ttl, grace = self._limited(ttl, grace)
        session = self._client._fence(None).session
        limit = self.message_limits.count("limit", limit)
        call = calls.claim_messages(self.name, limit, ttl, grace, session)
        timeout = arguments.timeout(timeout)
        if timeout == 0:
            rows = await self._client._run(call, relaxed=True)
        else:
            core, listener = self._client._core, await self._client._listener()
            rows = await self._client._drive(flows.claim(core, listener, LoopSignal, self.name, call, limit, timeout))
        return self._claimed(rows[0].token, Held(ttl, grace, 0.0, rows)) if rows else None

    async def get_claim(self, claim: ClaimLike) -> AsyncClaim[Message]:
        id = _id(claim)
        return self._claimed(id, await self._client._run(calls.get_claim(self.name, id)))

    async def renew_claim(self, claim: ClaimLike, ttl: float = CLAIM_TTL, grace: float = CLAIM_GRACE) -> None:
        await self._client._run(calls.renew_claim(self.name, _id(claim), *self._limited(ttl, grace)), relaxed=True)

    async def delete_claim(self, claim: ClaimLike) -> None:
        await self._client._run(calls.delete_claim(self.name, _id(claim)), relaxed=True)

    async def delete_message(
        self, message: TaskLike, claim: ClaimLike | None = None, *, conn: AsyncConn | None = None
    ) -> None:
        id, of = named(message)[0], None if claim is None else _id(claim)
        await self._client._run(calls.delete_message(self.name, id, of), conn)

    async def delete_messages(
        self, ids: Iterable[TaskLike] | None = None, *, pop: int | None = None, conn: AsyncConn | None = None
    ) -> list[Message]:
        chosen, n = self._chosen(ids, pop)
        rows = await self._client._run(_delete(self.name, chosen, n, self._client._fence(None).session), conn)
        return [from_popped(self._task_type, row, self.name, _queue=self) for row in rows]

    async def messages(
        self,
        marker: str | None = None,
        limit: int = 10,
        *,
        sender: UUID | str | None = None,
        echo: bool = False,
        include_claimed: bool = False,
        include_delayed: bool = False,
    ) -> MessagePage[Message]:
        n = self.message_limits.count("limit", limit)
        call = calls.list_messages(self.name, marker, n, sender, echo, include_claimed, include_delayed)
        return self._page(await self._client._run(call), marker)

    async def message_stats(self) -> MessageStats:
        return await self._client._run(calls.message_stats(self.name))

    def _claimed(self, id: int, held: Held) -> AsyncClaim[Message]:
        messages = self._client._made(held.rows, lambda row: from_taken(self._task_type, row, _queue=self))
        return AsyncClaim(
            id=id, queue=self.name, ttl=held.ttl, grace=held.grace, age=held.age, messages=messages, _queue=self
        )


@mirrors(Claim)
@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncClaim(ClaimRecord[Message]):
    _queue: AsyncQueueClaims[Message] = field(repr=False, compare=False)

    async def get(self) -> AsyncClaim[Message]:
        return await self._queue.get_claim(self)

    async def renew(self, ttl: float | None = None, grace: float | None = None) -> None:
        await self._queue.renew_claim(self, *_or_as_before(self, ttl, grace))

    async def delete(self) -> None:
        await self._queue.delete_claim(self)


def _id(claim: ClaimLike) -> int:
    return claim.id if isinstance(claim, ClaimRecord) else claim_id(claim)


def _or_as_before(claim: ClaimRecord[Any], ttl: float | None, grace: float | None) -> tuple[float, float]:
    return claim.ttl if ttl is None else ttl, claim.grace if grace is None else grace


def _from_listed(kind: type[Message], row: Listed, queue: str, **more: Any) -> Message:
    return kind(
        id=row.id,
        queue=queue,
        state=row.state,
        data=data.decode(row.data),
        priority=row.priority,
        attempts=row.attempts,
        **more,
    )


def _delete(queue: str, ids: list[int], n: int, session: int | None) -> Call[list[Popped]]:
    return pop(queue, n, session) if n else calls.delete_messages(queue, ids)
