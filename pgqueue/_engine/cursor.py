"""Where a client's next claim starts: at the head of the queue while that is cheap, behind the last claim when not.

A claim at the head walks over everything in front of the first ready task: tasks in flight, and the index entries of
acked ones, which stay for as long as anybody holds a snapshot open. With 300,000 of them that is a tenth of a
second a claim. Starting behind the last position costs nothing, but can miss what comes in ahead of it: a
release, a higher priority, a put that was committed late. So it is exact while that is cheap, bounded when not:

    head, cheap        -> head again
    head, slow twice   -> the cursor, until REST times as long as that claim took (and at least MIN_REST) have passed
    cursor, empty      -> says nothing about the queue: only the head does

Slow is what takes milliseconds, and twice as long as a claim from the cursor: a distant server makes all claims slow,
and starting elsewhere would not help. Once is chance: a new connection compiles the functions in its first claim.

The queue's order is then off by a bounded time, the walks cost at most 1/REST of it, and nothing is missed for good.
One object a client and queue, shared by threads without a lock: a lost update costs one walk.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SLOW = 0.003  # seconds for a claim...
EACH = 0.00003  # ...and for every task that it gave
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
        self._usual = 0.0  # what the last claim from the cursor took, without its tasks

    def start(self) -> Position | None:
        """Where to start now: behind this (priority, id), or None for the head."""
        return self._last if self.rest() > 0 else None

    def rest(self) -> float:
        """Seconds until the head is due again; 0 while claims start there."""
        return max(0.0, self._head_at - self._clock()) if self._last else 0.0

    def claimed(self, start: Position | None, took: float, last: Position | None, n: int) -> None:
        """Learn from a claim: where it started, its seconds, the last position that it gave, and how many."""
        if last is not None:
            self._last = last
        cost = took - EACH * n
        if start is not None:
            self._usual = cost
            return
        self._slow_in_a_row = self._slow_in_a_row + 1 if cost > max(SLOW, 2 * self._usual) else 0
        self._head_at = self._clock() + max(MIN_REST, REST * took) if self._slow_in_a_row >= 2 else 0.0
