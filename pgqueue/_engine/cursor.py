"""Where a client's next claim starts: at the head of the queue while that is cheap, else behind the last claim.

A claim at the head walks over all index entries in front of the first ready task: those of tasks in flight, and those
of acked tasks, which stay while a transaction holds an old snapshot. With 300,000 of them a claim takes a tenth of a
second. A claim that starts behind the last position costs nothing extra, but it can miss a task that arrives ahead of
it: a released task, a higher priority, a put that was committed late. So the order is exact while that is cheap, and
otherwise off by a bounded time:

    claim at the head, cheap        -> the next claim starts at the head
    claims at the head, slow twice  -> the next claims start at the cursor, until REST times the duration of that claim
                                       (at least MIN_REST) has passed
    claim at the cursor, empty      -> says nothing about the queue; only a claim at the head does

A claim is slow if it takes milliseconds and twice as long as a claim from the cursor. A distant server makes all claims
slow, and another starting point would not help. One slow claim is not enough: the first claim of a new connection
compiles the functions.

The walks cost at most 1/REST of the time, and every task is found at the next claim at the head. A client has one
cursor for each queue. Its threads share it without a lock: a lost update costs one walk.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SLOW = 0.003  # seconds for a claim,
EACH = 0.00003  # and for every task that it returned
REST = 10.0
MIN_REST = 0.05

Position = tuple[int, int]


class ClaimCursor:
    """The starting point of claims on one queue."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: Position | None = None
        self._head_at = 0.0
        self._slow_in_a_row = 0
        self._usual = 0.0  # seconds of the last claim from the cursor, without its tasks

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
        cost = took - EACH * n
        if start is not None:
            self._usual = cost
            return
        self._slow_in_a_row = self._slow_in_a_row + 1 if cost > max(SLOW, 2 * self._usual) else 0
        self._head_at = self._clock() + max(MIN_REST, REST * took) if self._slow_in_a_row >= 2 else 0.0
