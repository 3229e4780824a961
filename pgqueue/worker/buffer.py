"""The buffer of tasks between the database and the handlers, and its size.

Taking ahead makes a worker fast, but it keeps tasks from other workers that could handle them sooner. So the buffer
holds the tasks that its handlers finish in AHEAD seconds at their present pace. With slow handlers it holds none: a
task is taken when a runner is free for it.

The pace is a moving average of the time per task, not of tasks per second, so an idle hour does not slow it. One quick
task is not enough for a large buffer: the buffer never holds more tasks than were finished before. When the handlers
become slower than their pace, the tasks that they will not start within STALE seconds are released.

A take brings MOST tasks ahead, and the next one begins when there is room for as many. One take for all the tasks that
a large buffer lacks is slower: quick handlers empty the buffer during the take, so takes and handlers wait for each
other in turn.

Runners pop `tasks` without a lock, since deque.popleft is atomic. A runner takes the lock only when it finds no task,
or one of another queue than it had before: turn(). Under the lock it becomes idle only while there is none for it:
fill() appends and wakes under the same lock.

With several queues, shares.py says which of them a runner may start. A runner that may not start the first task of the
buffer starts the first that it may, or rests, although there are tasks. The tasks that it passes over wait for the
runners that hold their queue, for STALE seconds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .._calls.take import Taken
from .shares import Shares

AHEAD = 0.1  # seconds of work to hold
LARGEST = 4000  # tasks to hold at most
MOST = 1000  # tasks to take ahead at once
STALE = 1.0  # seconds
WEIGHT = 1 / 16  # of the latest task in the pace


class Wanted(NamedTuple):
    """The tasks to take now.

    Attributes:
        n: for any runners; 0: none.
        queues: of which.
        few: for the idle runners that may not start tasks of all queues.
        some: the queues of which they may.
    """

    n: int
    queues: Sequence[str] = ()
    few: int = 0
    some: Sequence[str] = ()


class Hunger(threading.Event):
    """Set when tasks are wanted, which ends a take of some of the queues as well: then `interrupt` is called."""

    interrupt: Callable[[], None] | None = None

    def set(self) -> None:
        super().set()
        if (interrupt := self.interrupt) is not None:
            interrupt()


class Buffer:
    """Filled by one fetcher, emptied by the runners of one kind. It wakes idle runners by `wake(n)`.

    `each`: how many tasks a runner starts at once, at most. `shares`: of its queues; None: there is one.
    """

    def __init__(
        self,
        wake: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
        each: int = 1,
        shares: Shares | None = None,
    ) -> None:
        self._each = each
        self.shares = shares
        self.tasks: deque[Taken] = deque()
        self.hungry = Hunger()  # the fetcher sleeps on it
        self._wake = wake
        self.clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._idle = 0
        self._home: object = None
        self._low = 0
        self._moved_at = clock()  # the time when a task was last started, or put into an empty buffer
        self._filled_at = self._moved_at
        self._passed: tuple[Taken, float] | None = None  # the first task when a runner passed it over, and since when
        self._parted: set[str] = set()  # queues that other runners serve now
        self._stuck: set[str] = set()  # queues whose tasks were passed over for too long: they are not taken ahead
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

    def turn(self, runner: object, task: Taken | None = None, home: object = None) -> Taken | bool:
        """A runner has popped a task of another queue than its last one, or found none. Returns the task to start.
        True: wait to be woken; False: end, the buffer is closed or has moved to other runners than those of `home`."""
        with self._lock:
            if home is not self._home or self._closed:
                return False if task is None else task
            shares, eased = self.shares, False
            if shares is not None:
                eased = shares.leave(runner)
                if self._stuck:
                    self._stuck -= shares.startable()
            found = self._first(task)
            if found is None:
                self._idle += 1
            elif shares is not None:
                eased |= shares.hold(runner, found.queue)
            woken = 1 if eased and self._idle and self.tasks else 0
            self._idle -= woken
            wake = self._wake
        if woken:
            wake(woken)
        if eased or found is None:
            self.hungry.set()
        return True if found is None else found

    def _first(self, task: Taken | None) -> Taken | None:
        """The first task that a runner may start, beginning with the one that it has popped; in the lock."""
        try:
            first = self.tasks.popleft() if task is None else task
        except IndexError:
            return None
        shares = self.shares
        if shares is None or shares.may_start(first.queue):
            return first
        self.tasks.appendleft(first)
        if self._passed is None or self._passed[0] is not first:
            self._passed = first, self.clock()
        if startable := shares.startable():
            for other in self.take_out(lambda one: one.queue in startable, most=1):
                return other
        return None

    def move(self, home: object, wake: Callable[[int], None], without: str | None = None) -> list[Taken]:
        """From now on the runners of `home` empty it, and `wake` wakes them. The idle ones of the home before are
        forgotten: the fetcher would take tasks for them in vain.

        Args:
            without: a queue that the new runners do not serve; None: they serve the same queues. Returns its tasks.
        """
        with self._lock:
            self._home, self._wake = home, wake
            self._idle = 0
            if self.shares is not None:
                self.shares.clear()
                if without is not None:
                    self._parted.add(without)
                    self.shares.part(without)
            return self.take_out(lambda task: task.queue in self._parted) if self._parted else []

    def leave(self, runner: object) -> None:
        """A runner was replaced by another one."""
        if self.shares is not None:
            with self._lock:
                self.shares.leave(runner)

    def is_closed(self) -> bool:
        return self._closed

    def idle_for(self, now: float) -> float:
        """For how many seconds no task was started although a runner is idle; 0.0: none is."""
        return now - self._moved_at if self._idle and not self.tasks else 0.0

    def startable(self, queues: Sequence[str]) -> Sequence[str]:
        """Those of these queues of which an idle runner may start a task."""
        if self.shares is None:
            return queues
        with self._lock:
            return [queue for queue in queues if self.shares.may_start(queue)]

    # --- the fetcher

    def wanted(self, queues: Sequence[str]) -> Wanted:
        """The tasks of these queues to take now: one for each idle runner, and those to hold ahead."""
        self.hungry.clear()  # before the look: a runner that becomes idle later sets it again
        ahead = self._ahead()
        self._low = max(ahead // 2, ahead - MOST)
        if self._closed:
            self.hungry.set()
            return Wanted(0)
        idle, some = self._idle, dict[str, int]()
        if self.shares is not None and idle:
            with self._lock:
                rooms = self.shares.room(queues, idle, self.held())
            some = rooms if len(rooms) < len(queues) else {}
            idle = 0 if some or not rooms else min(rooms.values())
        if self._stuck and not idle:
            queues = [queue for queue in queues if queue not in self._stuck]
        held = len(self.tasks)
        n = idle * self._each + min(MOST, max(0, ahead - held)) if idle or held <= self._low else 0
        return Wanted(n if queues else 0, queues, min(some.values(), default=0), list(some))

    def fill(self, tasks: list[Taken]) -> list[Taken]:
        """Hand tasks to the runners. Returns those that are too late: after close(), or of a queue that has left."""
        late: list[Taken] = []
        with self._lock:
            if self._closed:
                return tasks
            if self._parted:
                late = [task for task in tasks if task.queue in self._parted]
                tasks = [task for task in tasks if task.queue not in self._parted]
            self._filled_at = self.clock()
            if not self.tasks:
                self._moved_at = self._filled_at
            self.tasks.extend(tasks)
            woken = min(self._idle, -(-len(tasks) // self._each))
            self._idle -= woken
            wake = self._wake
        if woken:
            wake(woken)
        return late

    def held(self) -> list[Taken]:
        """The tasks in the buffer, as they are at a moment."""
        while True:
            try:
                return list(self.tasks)
            except RuntimeError:  # a runner popped at the same time
                pass

    def take_out(self, wanted: Callable[[Taken], bool], most: float = float("inf")) -> list[Taken]:
        """Remove and return these tasks, `most` at most, but for those that a runner pops first."""
        out: list[Taken] = []
        for task in filter(wanted, self.held()):
            if len(out) >= most:
                break
            try:
                self.tasks.remove(task)
            except (ValueError, IndexError):  # it was popped
                continue
            out.append(task)
        return out

    def surplus(self) -> list[Taken]:
        """Remove and return the tasks that will not be started soon: all if none was started for STALE seconds."""
        now, held = self.clock(), len(self.tasks)
        if held and (now - self._moved_at >= STALE or self._stands(now)):
            self._finished = self._low = 0  # the pace is forgotten
            return self._take_out(0)
        # The tasks of the last fill() may be for runners that have not woken up yet.
        if held * self._pace > STALE and now - self._filled_at >= AHEAD:
            return self._take_out(self._ahead())
        return []

    def _stands(self, now: float) -> bool:
        """Whether the first task has been passed over for too long."""
        passed = self._passed
        if passed is None or now - passed[1] < STALE:
            return False
        self._passed = None
        if next(iter(self.held()), None) is not passed[0]:
            return False
        self._stuck.add(passed[0].queue)
        return True

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
        """Remove tasks from the far end until `left` are left; runners pop at the same time."""
        out: list[Taken] = []
        try:
            while len(self.tasks) > left:
                out.append(self.tasks.pop())
        except IndexError:
            pass
        return out
