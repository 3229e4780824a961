"""Which of the puts made at the same time are sent at once, and which share a statement and its commit. No I/O.

Theory of operation
-------------------
A commit costs the same for one task as for a hundred. So puts into one queue, with the same options, gather while
others are under way: UNDER_WAY of them are sent at once, each by itself, and those that arrive during this time wait.
Whenever one that is under way ends, the puts that wait become a batch, in the order in which they arrived, and one of
them leads: it sends the batch as one statement. A put alone finds no other put and waits for nothing: no timer, no
thread.

Why two under way, not one: the server works on a batch while the client, which runs in one thread at a time, hands out
the answers to the one before. And two threads that put are as fast as without gathering.

Why a queue each: a put into a queue with a capacity may wait for other producers of that queue, and those into other
queues must not wait with it. Why options each: put_many has one set of options for all of its tasks.

The last of a batch leads it, since it has the most time left: the statement ends when the leader's time is over, and
those whose time is over before that leave by themselves. But a thread that Ctrl-C may interrupt does not lead if
another one can, for an interrupted statement is cancelled, and whether the tasks of the others were put would be
unknown.

Each way in which a put ends must call leave(): a put or batch under way gives up its place there, and a leader that
leaves before it has sent its batch makes another one the leader.

A finaliser, or a handler of a signal, may put in the middle of a put of the same thread. It is sent at once, by itself:
if it waited for others, these might need the put below it to go on. The lock is reentrant, since that put may hold it.

Ctrl-C may interrupt the main thread at any step of this module. So leave() is a duty (duties.py), which may be called
again, and each step that hands over to waiting puts can be done twice. Otherwise a place under way would be lost for
good. A put that waits for its turn settles the duties of interrupted ones.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Any, Protocol

import psycopg

from .._calls.put import Placed
from ..errors import ClosedError, ConnectionLost, Error, ServerError

UNDER_WAY = 2
TASKS = 100  # in a batch: its own costs are then a hundredth for each, and its answer is not late for the first of them
SIZE = 1 << 18  # characters of JSON in a batch, unless one task has more: small tasks do not wait for many large ones
KEPT = 64  # gatherings without a put: making one would cost each lone put a microsecond


class Turn(Protocol):
    """An event for which a put waits. Set once, by another put."""

    def set(self) -> None: ...
    def wait(self, seconds: float | None) -> Any: ...


class Member:
    """One put, and the duty (duties.py) to leave.

    Its outcome is `placed` or `error`; a put that is sent alone has neither.
    """

    __slots__ = ("batch", "error", "gathering", "home", "interruptible", "placed", "since", "text", "thread", "turn")

    def __init__(self, text: str, home: Gatherings) -> None:
        self.text = text
        self.home = home
        self.thread: int | None = None
        self.gathering: Gathering | None = None
        self.batch: Batch | None = None
        self.placed: Placed | None = None
        self.error: Exception | None = None
        # Of a put that waits:
        self.since = 0.0
        self.turn: Turn
        self.interruptible = False

    def waited(self) -> float:
        """For how many seconds, until now."""
        return time.monotonic() - self.since

    def fulfil(self) -> None:
        self.home.leave(self)


class Batch:
    """Puts that are sent together."""

    def __init__(self, gathering: Gathering) -> None:
        self.gathering = gathering
        self.members: list[Member] = []
        self.leader: Member | None = None
        self.sent = False

    def appoint(self) -> None:
        """Choose the leader and wake it."""
        steady = (member for member in reversed(self.members) if not member.interruptible)
        self.leader = leader = next(steady, self.members[-1])
        leader.turn.set()


class Gathering:
    """The puts into one queue with the same options."""

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.under_way: set[Member | Batch] = set()
        self.waiting: deque[Member] = deque()
        self.next: Batch | None = None  # while it is being made

    def cut(self) -> Batch:
        """A batch of those that have waited longest."""
        batch, size = Batch(self), 0
        for member in islice(self.waiting, TASKS):
            size += len(member.text)
            if batch.members and size > SIZE:
                break
            batch.members.append(member)
        return batch


class Gatherings:
    """All puts of one shell, in one event loop."""

    def __init__(
        self,
        make_turn: Callable[[], Turn],
        is_interruptible: Callable[[], bool],
        current_thread: Callable[[], int | None],
    ) -> None:
        self._make_turn = make_turn
        self._is_interruptible = is_interruptible
        self._current_thread = current_thread
        self._putting: set[int | None] = set()  # threads
        self._lock = threading.RLock()
        self._known: dict[Hashable, Gathering] = {}

    def enter(self, key: Hashable, member: Member) -> bool:
        """Whether the put is sent at once. Otherwise it has to wait for its turn."""
        if (thread := self._current_thread()) is not None:
            if thread in self._putting:
                return True
            member.thread = thread  # before the add: leave() also works without it
            self._putting.add(thread)
        with self._lock:
            member.gathering = gathering = self._known.get(key) or self._new(key)
            if len(gathering.under_way) < UNDER_WAY:
                gathering.under_way.add(member)
                return True
            member.since = time.monotonic()
            member.turn = self._make_turn()
            member.interruptible = self._is_interruptible()
            gathering.waiting.append(member)
            return False

    def take_lead(self, member: Member) -> Batch | None:
        """The batch that this put has to send. None if it does not lead, or is alone in it: then it is sent alone."""
        with self._lock:
            batch = member.batch
            if batch is None or batch.sent or batch.leader is not member or len(batch.members) == 1:
                return None
            batch.sent = True
            return batch

    def finish(self, batch: Batch, placed: list[Placed] | None = None, error: Exception | None = None) -> None:
        """Give the members of a batch their answers, or the error."""
        with self._lock:
            self._make_way(batch.gathering, batch)
            for index, member in enumerate(batch.members):
                member.placed = placed[index] if placed else None
                member.error = error
                member.turn.set()
            if isinstance(error, ServerError):
                self.scatter(batch.gathering, error)

    def leave(self, member: Member) -> None:
        """The put has ended, with any outcome. May be called again, after an interrupt."""
        gathering, batch = member.gathering, member.batch
        if gathering is not None and not (batch is not None and batch.sent):
            with self._lock:
                self._remove(gathering, member)
        self._putting.discard(member.thread)

    def scatter(self, gathering: Gathering | None, error: Exception) -> None:
        """Give those that wait the outcome of the put that they wait for, at once."""
        with self._lock:
            self._scatter(gathering, error)

    def close(self, error: Exception) -> None:
        """Fail all that wait."""
        with self._lock:
            for gathering in list(self._known.values()):
                self.scatter(gathering, error)

    def _scatter(self, gathering: Gathering | None, error: Exception) -> None:
        while gathering is not None and gathering.waiting:
            member = gathering.waiting[0]
            member.error = error
            member.turn.set()
            gathering.waiting.popleft()

    def _new(self, key: Hashable) -> Gathering:
        gathering = self._known[key] = Gathering(key)
        return gathering

    def _remove(self, gathering: Gathering, member: Member) -> None:
        if member in gathering.under_way:
            self._make_way(gathering, member)
        elif (batch := member.batch) is None:
            if member in gathering.waiting:
                gathering.waiting.remove(member)
        elif not batch.sent:
            if member in batch.members:
                batch.members.remove(member)
            if not batch.members:
                self._make_way(gathering, batch)
            elif batch.leader is member:
                batch.appoint()

    def _make_way(self, gathering: Gathering, ended: Member | Batch) -> None:
        """Send those that wait, in the place of the put or batch that has ended, which gives up its place last."""
        if gathering.next is None and gathering.waiting:
            gathering.next = gathering.cut()
        if (batch := gathering.next) is not None:
            if batch.members and not batch.sent:
                gathering.under_way.add(batch)
                for member in batch.members:
                    member.batch = batch
                while gathering.waiting and gathering.waiting[0].batch is batch:
                    gathering.waiting.popleft()
                batch.appoint()
            gathering.next = None
        gathering.under_way.discard(ended)
        if not gathering.under_way and len(self._known) > KEPT:
            self._known.pop(gathering.key, None)


def is_everyones(error: Exception) -> bool:
    """Whether the error of a batch is that of each of its puts. If not, one of its tasks may have caused it.

    False only if it is certain that nothing was put: the server has refused the statement, or never received it.
    """
    if isinstance(error, psycopg.Error):
        return error.diag.severity_nonlocalized != "ERROR"
    return isinstance(error, ConnectionLost | ClosedError) or not isinstance(error, Error | ValueError)
