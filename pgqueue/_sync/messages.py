# Generated from pgqueue/_async/messages.py by tools/blocking.py: edit that file, not this one.

"""Claims and listings of messages, as Zaqar has them. A message is a task."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from .._calls import messages as calls
from .._calls.messages import CLAIM_GRACE, CLAIM_TTL, Held, MessageLimits, MessageStats
from .._engine import claims
from .._engine.blocking import Conn, Signal
from .._records.messages import (
    ClaimLike,
    ClaimRecord,
    MessagePage,
    MessageRecord,
    claim_named,
    claimed,
    deleted,
    listed,
)
from .._records.task import TaskLike, bind, named
from .._values import arguments
from .._values.arguments import Seconds
from ..errors import ClaimDoesNotExist
from .shell import Shell
from .task import Task


class Handle(Protocol):
    """A queue by name; rename() may change the name."""

    name: str


class Messages:
    """The messages of a queue, as `queue.messages`.

    Attributes:
        limits: the limits of the arguments; Zaqar's, unless others are set.
    """

    limits = MessageLimits()

    def __init__(self, shell: Shell, handle: Handle) -> None:
        self._shell = shell
        self._handle = handle

    @property
    def _queue(self) -> str:
        return self._handle.name

    def claim(
        self,
        limit: int = 10,
        ttl: Seconds = CLAIM_TTL,
        grace: Seconds = CLAIM_GRACE,
        *,
        timeout: Seconds | None = 0,
    ) -> Claim | None:
        """Claim messages: several tasks under one id, for a time. As Zaqar's.

        A claim belongs to no client: it outlives this process, and any process that knows its id may go on with it.
        A message that it still holds when its time is over is free again at that moment, and counts an attempt.

        Args:
            limit: how many messages at most, the first by (priority, id).
            ttl: seconds, or a timedelta, for which the claim lasts; replaces the messages' own ttr.
            grace: seconds, or a timedelta. The database extends the life of a claimed message to at least ttl + grace
                from now.
            timeout: seconds to wait for the first message, or a timedelta; None waits without limit, 0, the default,
                does not wait.

        Returns:
            The claim, or None if there was nothing to claim.

        Raises:
            ValueError: an argument is not within `limits`.
            ConnectionLost: whether messages were claimed is unknown; if so, they are free again after the ttl.
        """
        shell, n = self._shell, self.limits.count("limit", limit)
        life, extra, seconds = *self._life(ttl, grace), arguments.timeout(timeout)
        call = calls.claim_messages(self._queue, n, life, extra, shell.fence().session)
        if seconds == 0:
            rows = shell.run(call, relaxed=True)
        else:
            listener = shell.listener()
            rows = shell.drive(claims.claim_messages(shell.core, listener, Signal, self._queue, call, n, seconds))
        return self._claim(rows[0].token, Held(life, extra, 0.0, rows)) if rows else None

    def get(self, claim: ClaimLike) -> Claim:
        """A claim as it is now, with the messages that it still holds.

        Raises:
            ClaimDoesNotExist: it is over, it was deleted, or it never existed.
        """
        id = claim_named(claim, self._queue)
        return self._claim(id, self._shell.run(calls.get_claim(self._queue, id)))

    def renew(self, claim: ClaimLike, ttl: Seconds | None = None, grace: Seconds | None = None) -> None:
        """Give a claim, and the messages that it still holds, a new life from now on. As Claim.renew.

        The new end is as asked, also if it is earlier than the old one, as Zaqar's. (Task.touch never shortens.)

        Args:
            claim: a claim, or its id.
            ttl, grace: as for claim; None keeps the claim's own.

        Raises:
            ClaimDoesNotExist: as for get.
            ValueError: an argument is not within `limits`.
        """
        id = claim_named(claim, self._queue)
        if ttl is None or grace is None:
            held = self._shell.run(calls.get_claim(self._queue, id))
            ttl, grace = held.ttl if ttl is None else ttl, held.grace if grace is None else grace
        self._shell.run(calls.renew_claim(self._queue, id, *self._life(ttl, grace)), relaxed=True)

    def release(self, claim: ClaimLike) -> None:
        """Give back the messages that a claim still holds, and end it. A claim that does not exist is ended already.

        This is no attempt of the messages; only the end of a claim's time is one.
        """
        with contextlib.suppress(ClaimDoesNotExist):
            self._shell.run(calls.release_claim(self._queue, claim_named(claim, self._queue)), relaxed=True)

    def delete(self, message: TaskLike, claim: ClaimLike | None = None, *, conn: Conn | None = None) -> None:
        """Delete a message. One that does not exist is deleted already.

        Args:
            message: the message, or its id. Only the id counts, not the message's token.
            claim: the claim that holds it, or that claim's id. Without one, the message is deleted if it is free.
            conn: the caller's connection, to delete in its transaction; without a claim at READ COMMITTED.

        Raises:
            MessageIsClaimed: it is claimed, or taken, and no claim was named.
            MessageNotClaimed: a claim was named, and the message is not claimed.
            MessageNotClaimedBy: another claim than this one holds it.
            ClaimDoesNotExist: likewise, and the claim is over.
            TaskIdRequired, ValueError: the id is not valid.
        """
        id = named(message)[0]
        of = None if claim is None else claim_named(claim, self._queue)
        self._shell.run(calls.delete_message(self._queue, id, of), conn)

    def delete_many(
        self, ids: Iterable[TaskLike] | None = None, *, pop: int | None = None, conn: Conn | None = None
    ) -> list[Message]:
        """Delete messages by their ids, claimed or not; or claim and delete the next ones.

        Args:
            ids: messages, or their ids; one that does not exist is passed over.
            pop: in place of ids, the number of messages to delete. Those that are claimed stay.
            conn: the caller's connection, to delete in its transaction.

        Returns:
            The messages that were deleted. The data of those named by ids is None without the verb look.

        Raises:
            ValueError: both or neither are given, or more than `limits` allows to pop.
            TaskIdRequired: an id is not valid.
        """
        if (ids is None) == (pop is None):
            raise ValueError("delete_many needs either ids or a number to pop")
        if pop is not None:
            call = calls.pop_messages(self._queue, self.limits.count("pop", pop), self._shell.fence().session)
        else:
            call = calls.delete_messages(self._queue, [named(task)[0] for task in ids or ()])
        rows = self._shell.run(call, conn)
        return [deleted(Message, row, self._queue, self._shell) for row in rows]

    def list(
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

        No message is passed over because it was committed late. Therefore a message does not show before all
        transactions that began to write earlier have ended, on the whole server. A message that is hidden when a page
        is made, because it is claimed or delayed, is not behind that page's marker any more.

        Args:
            marker: of the page before; None begins with the oldest message.
            limit: how many at most.
            sender: the UUID with which this client puts, to leave out its own messages.
            echo: list the sender's own messages too.
            include_claimed: list also messages that a claim or a take holds.
            include_delayed: list also delayed messages.

        Raises:
            NoQueue: the queue does not exist.
            QueueNotListed: the queue's option `listed` is off.
            ValueError: an argument is not valid, or not within `limits`.
        """
        n = self.limits.count("limit", limit)
        call = calls.list_messages(self._queue, marker, n, sender, echo, include_claimed, include_delayed)
        rows = self._shell.run(call)
        messages = [listed(Message, row, self._queue, self._shell) for row in rows]
        return MessagePage(messages, rows[-1].marker if rows else marker)

    def stats(self) -> MessageStats:
        """The number of messages that are free, claimed, and in all; and the age of those that are listed."""
        return self._shell.run(calls.message_stats(self._queue))

    def _life(self, ttl: Seconds, grace: Seconds) -> tuple[float, float]:
        return self.limits.life("ttl", ttl), self.limits.life("grace", grace)

    def _claim(self, id: int, held: Held) -> Claim:
        messages = self._shell.made(held.rows, lambda row: claimed(Message, row, self._shell))
        claim = Claim(id=id, queue=self._queue, ttl=held.ttl, grace=held.grace, age=held.age, messages=messages)
        return bind(claim, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Task, MessageRecord):
    """A message: a task with its age and ttl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(ClaimRecord[Message]):
    """Messages that were claimed together, from queue.messages.claim() or get()."""

    def get(self) -> Claim:
        """The claim as it is now; see queue.messages.get."""
        found: Claim = self._home.get(self)
        return found

    def renew(self, ttl: Seconds | None = None, grace: Seconds | None = None) -> None:
        """A new life from now on; see queue.messages.renew. None keeps the claim's own."""
        self._home.renew(self, ttl, grace)

    def release(self) -> None:
        """Give back the messages that the claim still holds, and end it; see queue.messages.release."""
        self._home.release(self)
