"""The buffer of tasks between the database and the handlers, and its size.

Taking ahead makes a worker fast, but it keeps tasks from other workers that could handle them sooner. So the buffer
holds the tasks that its handlers finish in AHEAD seconds at their present pace. With slow handlers it holds none: a
task is taken when a runner is free for it.

The pace is a moving average of the time per task, not of tasks per second, so an idle hour does not slow it. One quick
task is not enough for a large buffer: the buffer never holds more tasks than were finished before. When the handlers
become slower than their pace, the tasks that they will not start within STALE seconds are released.

A take brings MOST tasks ahead, and the next one begins when there is room for as many. A take of all that a large
buffer lacks is slower: handlers that do next to nothing empty the buffer while it goes on, and so takes and handlers
wait for each other in turn.

Runners pop `tasks` without a lock, since deque.popleft is atomic. A runner takes the lock only when it finds no task.
Under the lock it goes idle only while there is really none: fill() appends and wakes under the same lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from .._calls.take import Taken

AHEAD = 0.1  # seconds of work to hold
LARGEST = 4000  # tasks to hold at most
MOST = 1000  # tasks to take ahead at once
STALE = 1.0  # seconds
WEIGHT = 1 / 16  # of the latest task in the pace


class Buffer:
    """Filled by one fetcher, emptied by the runners of one kind. It wakes idle runners by `wake(n)`.

    `each`: how many tasks a runner starts at once, at most.
    """

    def __init__(self, wake: Callable[[int], None], clock: Callable[[], float] = time.monotonic, each: int = 1) -> None:
        self._each = each
        self.tasks: deque[Taken] = deque()
        self.hungry = threading.Event()  # the fetcher sleeps on it
        self._wake = wake
        self.clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._idle = 0
        self._home: object = None
        self._low = 0
        self._moved_at = clock()  # the time when a task was last started, or came into an empty buffer
        self._filled_at = self._moved_at
        self._finished = 0  # all runners set this and the pace without a lock: a lost count does no harm
        self._pace = 0.0  # seconds per task, of all runners together

    # --- runners

    def started(self, now: float) -> None:
        """A runner has popped a task."""
        self._moved_at = now
        if len(self.tasks) <= self._low and not self.hungry.is_set():
            self.hungry.set()

    def finished(self, started: float, at_once: int) -> float:
        """A task that was started at `started` is handled; `at_once` runners are at work. Returns the time."""
        now = self.clock()
        took = (now - started) / at_once
        self._pace += (took - self._pace) * (WEIGHT if self._finished else 1)
        self._finished += 1
        return now

    def rest(self, home: object = None) -> bool | None:
        """A runner found no task. True: wait to be woken; False: look again; None: end, the buffer is closed or has
        moved to other runners than those of `home`."""
        with self._lock:
            if home is not self._home:
                return None
            if self.tasks:
                return False
            if self._closed:
                return None
            self._idle += 1
        self.hungry.set()
        return True

    def move(self, home: object, wake: Callable[[int], None]) -> None:
        """From now on the runners of `home` empty it, and `wake` wakes them. The idle ones of the home before are
        forgotten: the fetcher would take tasks for them in vain."""
        with self._lock:
            self._home, self._wake = home, wake
            self._idle = 0

    def is_closed(self) -> bool:
        return self._closed

    def idle_for(self, now: float) -> float:
        """For how many seconds no task was started although a runner is idle; 0.0: none is."""
        return now - self._moved_at if self._idle and not self.tasks else 0.0

    # --- the fetcher

    def wanted(self) -> int:
        """The number of tasks to take now: one for each idle runner, and those to hold ahead."""
        self.hungry.clear()  # before the look: a runner that goes idle later sets it again
        ahead = self._ahead()
        self._low = max(ahead // 2, ahead - MOST)
        if self._closed:
            self.hungry.set()
            return 0
        idle, held = self._idle, len(self.tasks)
        return idle * self._each + min(MOST, max(0, ahead - held)) if idle or held <= self._low else 0

    def fill(self, tasks: list[Taken]) -> list[Taken]:
        """Hand tasks to the runners. Returns those that came too late, after close()."""
        with self._lock:
            if self._closed:
                return tasks
            self._filled_at = self.clock()
            if not self.tasks:
                self._moved_at = self._filled_at
            self.tasks.extend(tasks)
            woken = min(self._idle, -(-len(tasks) // self._each))
            self._idle -= woken
            wake = self._wake
        if woken:
            wake(woken)
        return []

    def held(self) -> list[Taken]:
        """The tasks in the buffer, as they are at a moment."""
        while True:
            try:
                return list(self.tasks)
            except RuntimeError:  # a runner popped meanwhile
                pass

    def take_out(self, wanted: Callable[[Taken], bool]) -> list[Taken]:
        """Remove and return these tasks, but for those that a runner pops first."""
        out = []
        for task in filter(wanted, self.held()):
            try:
                self.tasks.remove(task)
            except (ValueError, IndexError):  # it was popped
                continue
            out.append(task)
        return out

    def surplus(self) -> list[Taken]:
        """Remove and return the tasks that will not be started soon: all if none was started for STALE seconds."""
        now, held = self.clock(), len(self.tasks)
        if held and now - self._moved_at >= STALE:
            self._finished = self._low = 0  # the pace is forgotten
            return self._take_out(0)
        # The tasks of the last fill() may be for runners that have not woken up yet.
        if held * self._pace > STALE and now - self._filled_at >= AHEAD:
            return self._take_out(self._ahead())
        return []

    def close(self) -> list[Taken]:
        """Close the buffer: idle runners end. Returns the tasks that were not started."""
        with self._lock:
            self._closed = True
            left = self._take_out(0)
            woken, self._idle = self._idle, 0
            wake = self._wake
        if woken:
            wake(woken)
        self.hungry.set()
        return left

    def _ahead(self) -> int:
        if not self._finished:
            return 0
        return min(int(AHEAD / max(self._pace, 1e-6)), self._finished, LARGEST)

    def _take_out(self, left: int) -> list[Taken]:
        """Remove tasks from the far end until `left` are left; runners pop meanwhile."""
        out: list[Taken] = []
        try:
            while len(self.tasks) > left:
                out.append(self.tasks.pop())
        except IndexError:
            pass
        return out
