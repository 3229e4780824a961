"""Runners take tasks from a buffer and run their handlers: persistent threads, or coroutines of one loop (loops.py).

A task costs no future, no queue entry and no hand-over: a runner pops the next task itself, and sleeps only when there
is none. Both kinds have the same interface: a buffer, join, and runs.Pool for the watch.

A runner whose run was written off has been replaced, and ends when its handler returns.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

from .._calls.take import Taken
from .._engine import forks
from .._engine.owners import Owned
from .._values.logs import log
from .buffer import Buffer
from .loops import Life, Loop
from .runs import NEVER, Run, Runs, enter
from .shares import Shares

Handle = Callable[[Taken], None]


def _nothing() -> None:
    pass


def _wake_none(n: int) -> None:
    pass


class Threads:
    """`n` threads that call `handle`, which must not raise. Each thread calls `enter` first."""

    def __init__(
        self,
        n: int,
        handle: Handle,
        runs: Runs | None = None,
        enter: Callable[[], object] = _nothing,
        each: int = 1,
        shares: Shares | None = None,
    ) -> None:
        self.n = n
        self.runs = runs or Runs()
        self.buffer = Buffer(self._wake, each=each, shares=shares)
        self._handle = handle
        self._enter = enter
        self._bell = threading.Semaphore(0)
        self._numbers = itertools.count()
        self._threads: set[threading.Thread] = set()
        self._starting = threading.Lock()  # join() waits for no thread that is not started yet
        for _ in range(n):
            self._start()

    def replace(self, run: Run) -> None:
        self._threads.discard(run.runner)
        self.buffer.leave(run.runner)
        self._start()

    def abandon(self, run: Run, blocker: Run) -> list[Run]:
        """The thread waits for a coroutine in a loop that is blocked: others that do are in the same place."""
        self.replace(run)
        if (blocked := run.ender) is None or not blocked.abandon():
            return []
        return [other for other in self.runs.under_way() if other.ender is blocked]

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the handlers under way; the buffer must be closed. Returns whether all have ended."""
        until = None if timeout is None else time.monotonic() + timeout
        for thread in self._started():
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._started())

    def _started(self) -> list[threading.Thread]:
        with self._starting:
            return list(self._threads)

    def _start(self) -> None:
        thread = Owned(f"pgqueue-runner-{next(self._numbers)}", self._run, self.buffer.is_closed)
        with self._starting:
            self._threads.add(thread)
            thread.start()

    def _wake(self, n: int) -> None:
        self._bell.release(n)

    def _run(self) -> None:
        self._enter()
        try:
            self._work()
        except BaseException as error:
            me = threading.current_thread()
            for run in self.runs.under_way():
                if run.runner is me and self.runs.known.pop(run.task.id, None) is not None:
                    self.runs.broke(run, f"its runner has ended: {type(error).__name__}")
            raise

    def _work(self) -> None:
        buffer, pop, handle, runs, n = self.buffer, self.buffer.tasks.popleft, self._handle, self.runs, self.n
        known, me = runs.known, threading.current_thread()
        several, present = buffer.shares is not None, ""
        now = buffer.clock()
        while True:
            try:
                task: Taken | None = pop()
            except IndexError:
                task = None
            if task is None or (several and task.queue != present):
                turn = buffer.turn(me, task)
                if turn is False:
                    return
                present = ""
                if turn is True:
                    self._bell.acquire()
                    now = buffer.clock()
                    continue
                task = turn
                present = task.queue
            buffer.started(now)
            run = Run(task, now, self, me)
            if known.setdefault(task.id, run) is run:
                enter(run).run(handle, task)
                del known[task.id]
                if run.doubted and not runs.may_go_on(run):
                    return
            else:
                runs.refuse(run)
            now = buffer.finished(now, n)


class Coroutines:
    """`n` coroutines in an event loop of their own; when a handler blocks that loop, in another.

    One handler that blocks a loop is seldom the last of its queue. So if they serve several queues, they part with the
    queue of that handler. If they only began another loop, each such task would hold up the other queues again: eight
    of them for 1 s each.

    Args:
        make: called for each loop.
        parted: called with the queue that they no longer serve, and its tasks in the buffer.
    """

    def __init__(
        self,
        n: int,
        make: Callable[[], Life],
        runs: Runs | None = None,
        shares: Shares | None = None,
        parted: Callable[[str, list[Taken]], None] = lambda queue, tasks: None,
    ) -> None:
        self.n = n
        self.runs = runs or Runs()
        self.buffer = Buffer(_wake_none, shares=shares)
        self._make = make
        self._parted = parted
        self._lock = threading.Lock()
        self._former: list[Loop] = []  # they have runs that may end
        self._loop, _ = self._begin()
        forks.register(self)

    def replace(self, run: Run) -> None:
        if isinstance(run.ender, Loop):
            run.ender.replace(run)

    def abandon(self, run: Run, blocker: Run) -> list[Run]:
        blocked = run.ender
        self._move_on(blocked, blocker)
        with self._lock:
            self._former = [loop for loop in self._former if loop is not blocked]
        return [other for other in self.runs.under_way() if other.ender is blocked]

    def unblock(self, now: float) -> list[Run]:
        """If a handler blocks the loop, and with it other queues, go on in another loop. The watch calls this at each
        look. Returns the runs of the blocked loop that are to be withdrawn: they have not begun."""
        blocked = self._loop
        if not self._serve_several() or not blocked.is_silent(now):
            return []
        here = [run for run in self.runs.under_way() if run.ender is blocked]
        occupant = blocked.occupant()
        blocker = next((run for run in here if run.runner is occupant), None)
        what = f"task {blocker.task.id} of {blocker.task.queue}" if blocker else "a handler"
        log.error("%s blocks the event loop, another one begins for the other tasks:\n%s", what, blocked.stack())
        self._move_on(blocked, blocker)
        return [run for run in here if run.began == NEVER]

    def _serve_several(self) -> bool:
        return self.buffer.shares is not None and self.buffer.shares.several

    def _move_on(self, blocked: object, blocker: Run | None) -> None:
        """Begin another loop, unless that was done before."""
        queue = blocker.task.queue if blocker is not None and self._serve_several() else None
        with self._lock:
            if (loop := self._loop) is not blocked:
                return
            self._former = [one for one in self._former if not one.join(0)] + [loop]
            self._loop, tasks = self._begin(queue)
        loop.abandon()
        if queue is not None:
            self._parted(queue, tasks)

    def _lost(self, loop: Loop) -> None:
        with self._lock:
            if loop is self._loop:  # else it was abandoned
                self._loop, _ = self._begin()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the handlers under way; the buffer must be closed. Returns whether all have ended."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            loops = [*self._former, self._loop]
        return all(loop.join(None if until is None else max(0.0, until - time.monotonic())) for loop in loops)

    def after_fork(self) -> None:
        for loop in (*self._former, self._loop):
            loop.after_fork()

    def _begin(self, without: str | None = None) -> tuple[Loop, list[Taken]]:
        """Another loop, and the tasks of the queue that it is `without`."""
        loop = Loop(self.n, self._make(), self.buffer, self.runs, self, self._lost)
        tasks = self.buffer.move(loop, loop.wake, without)
        loop.start()
        return loop, tasks
