"""Where a client's next claim starts: at the head of the queue while that is cheap, else behind the last claim.

A claim at the head walks over all index entries in front of the first ready task: those of tasks in flight, and those
of acked tasks, which stay while a transaction holds an old snapshot. With 300,000 of them a claim takes a tenth of a
second. A claim that starts behind the last position costs nothing extra, but it can miss a task that arrives ahead of
it: a released task, a higher priority, a put that was committed late. So the order is exact while that is cheap, and
otherwise off by a bounded time:

    claims at the head, cheap           -> the next claim starts at the head
    AT_HEAD claims in a row there, slow -> the next claims start at the cursor, until MIN_REST has passed
    and the claim after that, slow too  -> again, until REST times the duration of that claim has passed, MIN_REST at
                                           least and MAX_REST at most; and so on, until a claim at the head is cheap
    a claim at the cursor, empty        -> says nothing about the queue. A taker looks at the head before it sleeps or
                                           gives up (takes.py), so it never sleeps in front of a task that is ready

Slow means SLOWER times the usual. A fixed duration does not work: each acked task adds 0.1 us to a walk, so on a fast
server claims take twice as long after a few thousand tasks; but a distant server makes all claims slow, and another
starting point would not help. The usual is the shortest of the latest claims from the cursor, or of those at the head,
if that was shorter. Claims of about the same number of tasks are compared with each other.

Durations vary by chance, with the load, pauses of the interpreter, and the network, but chance only adds to them, and a
walk adds to each claim. So the least of AT_HEAD claims is compared with the least of FROM_CURSOR claims: a mean would
leave the head after one stall. If the server as a whole becomes slower, claims leave the head for MIN_REST, and that
shows that the cursor is not faster.

The walks cost at most 1/REST of the time while each takes less than MAX_REST / REST. Every task is found at the next
claim at the head. A client has one cursor for each queue. Its threads share it without a lock: a lost update costs one
walk.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

SLOWER = 1.5  # times the usual
AT_HEAD, FROM_CURSOR = 16, 16  # claims of which the least is taken
REST = 10.0  # times the duration of a slow claim
MIN_REST = 0.05  # seconds
MAX_REST = 1.0
FIRST, EACH = 0.001, 0.00003  # seconds for a claim, and for every task of it: the usual at most, before it is measured

Position = tuple[int, int]


class _Costs:
    """The costs of claims of about the same number of tasks, in seconds."""

    __slots__ = ("_at_head", "_from_cursor", "usual")

    def __init__(self, usual: float) -> None:
        self.usual = usual
        self._at_head: deque[float] = deque(maxlen=AT_HEAD)
        self._from_cursor: deque[float] = deque(maxlen=FROM_CURSOR)

    def add_from_cursor(self, took: float) -> None:
        self._from_cursor.append(took)
        self._at_head.clear()
        self.usual = min(self._from_cursor)

    def add_at_head(self, took: float) -> bool:
        """Whether the latest claims at the head were slow, all of them."""
        self._at_head.append(took)
        if len(self._at_head) < AT_HEAD:
            return False
        least = min(self._at_head)
        self.usual = min(self.usual, least)
        return self.is_slow(least)

    def is_slow(self, took: float) -> bool:
        return took > SLOWER * self.usual


class ClaimCursor:
    """The starting point of claims on one queue."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: Position | None = None
        self._head_at = 0.0
        self._left = False  # the head was slow when claims last started there
        self._costs: dict[int, _Costs] = {}  # by the number of binary digits of the number of tasks

    def start(self) -> Position | None:
        """The start of the next claim: behind this (priority, id), or None for the head."""
        return self._last if self.rest() > 0 else None

    def rest(self) -> float:
        """Seconds until the head is due again; 0 while claims start there."""
        return max(0.0, self._head_at - self._clock()) if self._last else 0.0

    def claimed(self, start: Position | None, took: float, last: Position | None, n: int) -> None:
        """Learn from a claim: its start, its duration in seconds, the last position that it returned, and its tasks."""
        if last is not None:
            self._last = last
        if (costs := self._costs.get(n.bit_length())) is None:
            costs = self._costs[n.bit_length()] = _Costs(min(took, FIRST + EACH * n))
        if start is not None:
            costs.add_from_cursor(took)
            return
        slow = costs.add_at_head(took)
        if self._left:
            self._left = costs.is_slow(took)
            rest = min(max(MIN_REST, REST * took), MAX_REST)
        else:
            self._left = slow and self._last is not None
            rest = MIN_REST
        self._head_at = self._clock() + rest if self._left else 0.0
