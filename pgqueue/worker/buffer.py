"""Tasks between the database and the handlers, and how many to hold.

Taking ahead is what makes a worker fast, and what keeps tasks from others who could do them sooner. So the buffer
holds what its handlers do in AHEAD seconds at the pace they show: with slow handlers that is nothing, and a task is
taken when a runner is free for it.

The pace is a moving average of what handlers took, not of tasks a second, so an idle hour is no slowness. Nor is one
quick task a promise: no more is held than was finished before. A pace is a memory all the same. When the handlers
turn out slower, what they will not come to within STALE seconds goes back.

Runners pop `tasks` without a lock, since deque.popleft is atomic, and come to the lock only when they find nothing.
The lock makes sure that a runner goes idle only while there really is nothing: fill() appends and wakes under it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from .._calls.take import Taken

AHEAD = 0.1  # seconds of work to hold
LARGEST = 2000  # tasks to hold at most
STALE = 1.0  # seconds
WEIGHT = 1 / 16  # of the latest task in the pace


class Buffer:
    """Filled by one fetcher, emptied by the runners of one kind, of which it wakes idle ones by `wake(n)`."""

    def __init__(self, wake: Callable[[int], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.tasks: deque[Taken] = deque()
        self.hungry = threading.Event()  # the fetcher sleeps on it
        self._wake = wake
        self.clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._idle = 0
        self._low = 0
        self._moved_at = clock()  # when a task was started, or came into an empty buffer
        self._filled_at = self._moved_at
        self._finished = 0  # this and the pace by all runners, without a lock: a lost count does no harm
        self._pace = 0.0  # seconds a task, of all runners together

    # --- runners

    def started(self, now: float) -> None:
        """A runner has popped a task."""
        self._moved_at = now
        if len(self.tasks) <= self._low and not self.hungry.is_set():
            self.hungry.set()

    def finished(self, started: float, at_once: int) -> float:
        """A task that was started then is handled; `at_once` runners are at work. Returns the time."""
        now = self.clock()
        took = (now - started) / at_once
        self._pace += (took - self._pace) * (WEIGHT if self._finished else 1)
        self._finished += 1
        return now

    def rest(self) -> bool | None:
        """A runner found nothing. True: wait to be woken; False: look again; None: there will be no more."""
        with self._lock:
            if self.tasks:
                return False
            if self._closed:
                return None
            self._idle += 1
        self.hungry.set()
        return True

    # --- the fetcher

    def wanted(self) -> int:
        """How many tasks to take now: one for each idle runner, and what is to lie ahead of them."""
        self.hungry.clear()  # before the look: who gets hungry later sets it again
        ahead = self._ahead()
        self._low = ahead // 2
        if self._closed:
            self.hungry.set()
            return 0
        idle, held = self._idle, len(self.tasks)
        return idle + max(0, ahead - held) if idle or held <= self._low else 0

    def fill(self, tasks: list[Taken]) -> list[Taken]:
        """Hand tasks to the runners; returns those that came too late, after close()."""
        with self._lock:
            if self._closed:
                return tasks
            self._filled_at = self.clock()
            if not self.tasks:
                self._moved_at = self._filled_at
            self.tasks.extend(tasks)
            woken = min(self._idle, len(tasks))
            self._idle -= woken
        if woken:
            self._wake(woken)
        return []

    def surplus(self) -> list[Taken]:
        """What the runners will not come to soon, taken out: all if nothing has moved for STALE seconds."""
        now, held = self.clock(), len(self.tasks)
        if held and now - self._moved_at >= STALE:
            self._finished = self._low = 0  # the pace is forgotten
            return self._take_out(0)
        # What was filled in just now may be for runners that have yet to wake up.
        if held * self._pace > STALE and now - self._filled_at >= AHEAD:
            return self._take_out(self._ahead())
        return []

    def close(self) -> list[Taken]:
        """There will be no more. Idle runners end; returns what nobody started."""
        with self._lock:
            self._closed = True
            left = self._take_out(0)
            woken, self._idle = self._idle, 0
        if woken:
            self._wake(woken)
        self.hungry.set()
        return left

    def _ahead(self) -> int:
        if not self._finished:
            return 0
        return min(int(AHEAD / max(self._pace, 1e-6)), self._finished, LARGEST)

    def _take_out(self, left: int) -> list[Taken]:
        """From the far end, until so many are left; runners pop meanwhile."""
        out: list[Taken] = []
        try:
            while len(self.tasks) > left:
                out.append(self.tasks.pop())
        except IndexError:
            pass
        return out
