"""Which task each runner handles at this moment. A process handles a task once at a time, even if it takes it twice.

The database gives a task back when its time to run is over, or when its session is lost, and its handler may still run
here. If a runner of this process gets the task again, the task is put off: released with a delay that is as long as the
first handler has run so far, so that other processes can have the task and this one does not spin. It is no failed
attempt, since no handler began.

overdue.py says when a run is written off. The runner T1 that ends its run and the watch T2 that writes the run off must
agree whether T1 has lost its place. A lock around both would cost each task two acquisitions. So T1 removes its run and
looks at `doubted` after that; T2, in the lock, sets `doubted` and looks for the run after that. If T2 finds the run, T1
has yet to look, and sees the doubt. In doubt T1 waits for the lock, and T2's finding decides.

A run of an event loop has no handler before its asyncio task has its first turn, for which it waits as long as another
handler blocks the loop. T2 withdraws such a run: it is no run any more, and its task may begin elsewhere at once. Here
too T1 first writes `began`, and looks at `doubted` after that; T2 does the opposite. If T2 finds no beginning, T1 sees
the doubt, and does not call the handler. If T2 only wrote the run off, its handler would begin once the loop is free,
long after another attempt.

A handler may fork. If the child returns from the handler, it is in a copy of the worker, with the copy of a buffer and
without the other threads: it would handle tasks a second time. So it ends.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol

from .._calls.take import Taken
from .._engine import forks
from .._values.logs import log
from ..errors import TimeLimitExceeded

#: The run of the handler that this code is part of. Coroutines and asyncio.to_thread inherit it, other threads that a
#: handler starts do not.
current: ContextVar[Run | None] = ContextVar("pgqueue_run", default=None)

NEVER = float("inf")  # the beginning of a run whose handler has not begun
PUT_OFF = 1.0  # seconds: the delay of a task that is put off; a longer one would keep it from other processes as well

# Why a run is cut, beside its limits. They are compared by identity.
OVER = "its take is over"
STOPPED = "the worker stops"
BLOCKED = "another handler blocks its event loop"


def enter(run: Run) -> Context:
    """The context for the handler of a run. No other run sees the values that a handler sets in it."""
    current.set(run)
    return copy_context()


class Pool(Protocol):
    """The interface of runners, of either kind, for the watch.

    Attributes:
        n: their concurrency.
    """

    n: int
    runs: Runs

    def replace(self, run: Run) -> None:
        """The run was written off: begin another runner in the place of its runner."""

    def abandon(self, run: Run, blocker: Run) -> list[Run]:
        """The run was written off, and its loop is blocked: begin another loop, with runners. Returns the other runs
        of the blocked loop, each of which is to be written off and replaced; `blocker` may be one of them."""


class Ender(Protocol):
    """The ender of a run: the event loop of a coroutine, or a child process. A thread has none."""

    def end(self, run: Run) -> None:
        """End the run soon, if it is still under way then. Does not wait."""

    def abandon(self) -> bool:
        """It is blocked: from now on other runs begin elsewhere. False: they do already, or cannot."""

    def soften(self, run: Run) -> None:
        """Have SoftTimeLimit raised in the handler, if it is still under way then. Does not wait."""

    def occupant(self) -> object:
        """The runner, or other asyncio task, that has a step at present; None: none has."""

    def stack(self) -> str:
        """Its present stack, for the log."""


class Run:
    """A handler at work on a task.

    Attributes:
        began: the monotonic time of its beginning; NEVER: its asyncio task has not had a turn yet.
        runner: the thread or the asyncio task that it runs in.
        place: of its asyncio task in its loop.
        coroutine: the asyncio task in the bridge's loop for which a thread waits; None: there is none.
        ender: its Ender; None: nothing can end it.
        limit: seconds after which it is cut off; None: the worker's time limit.
        soft_limit: seconds after which SoftTimeLimit is raised in it; None: the worker's soft time limit.
        softened: that time has passed.
        softening: its asyncio task was cancelled to have SoftTimeLimit raised in it.
        job: the name of the job, once it is known; "" for a plain handler.
        one_of_many: its handler has other tasks at the same time: a batch.
        look_at: the watch asks for the take's deadline no sooner.
        cut: why it is to end; None: it may go on.
        cancelled: its task was cancelled (cancelling.py).
        reason: why.
        told: gets the reason of a cancel in place of the ender: the handler looks for itself. None: it does not.
        unkept: why the child process in which it ran could not write its result as JSON; None: it could.
        ended_at: when its ender began to end it.
        refused_at: its age in seconds when the log last reported that its task was taken again.
        doubted: the runner must not go on without asking.
        written_off: its runner was replaced.
        withdrawn: it has not begun, and never will.
    """

    place = 0
    coroutine: asyncio.Task[Any] | None = None
    limit: float | None = None
    soft_limit: float | None = None
    softened = False
    softening = False
    job = ""
    one_of_many = False
    look_at = 0.0
    cut: str | None = None
    cut_at = 0.0
    cancelled = False
    reason: str | None = None
    told: Callable[[str | None], None] | None = None
    unkept: str | None = None
    ended_at: float | None = None
    refused_at = 0.0
    doubted = False
    written_off = False
    withdrawn = False

    def __init__(self, task: Taken, began: float, pool: Pool, runner: Any, ender: Ender | None = None) -> None:
        self.task = task
        self.began = began
        self.pool = pool
        self.runner = runner
        self.ender = ender

    def cancel(self, reason: str | None) -> None:
        """The task was cancelled: tell the handler, or end it, if anything can. Does not wait. May be called in any
        thread.

        A runner that sets `ender` or `told` later looks at `cancelled` after that. Each of the two writes before it
        reads, so one of them sees the other.
        """
        self.reason, self.cancelled = reason, True
        if (told := self.told) is not None:
            told(reason)
        elif (ender := self.ender) is not None:
            ender.end(self)

    def failed_by(self, raised: BaseException | str = "") -> BaseException | str:
        """Why its attempt has failed: its handler's exception, or the cut, which may have caused the exception."""
        return raised if self.cut is None else TimeLimitExceeded(self.cut)


class Known:
    """The runs of a worker: those of all its shifts, by the id of their task."""

    def __init__(self) -> None:
        self.runs: dict[int, Run] = {}
        self.lock = threading.Lock()
        _all_known.add(self)


_all_known: weakref.WeakSet[Known] = weakref.WeakSet()


class Runs:
    """The runs of one shift. `put_off` gets a task that is not to begin now, and for how many seconds.

    A runner begins a run by `known.setdefault(task.id, run) is run`, or else calls refuse(). It ends the run by
    `del known[task.id]`, and if the run is doubted by then, it calls may_go_on(). Both are atomic.

    Attributes:
        label: of the client, for logs.
    """

    label = ""

    def __init__(
        self, known: Known | None = None, put_off: Callable[[Taken, float], None] = lambda task, delay: None
    ) -> None:
        shared = known or Known()
        self.known = shared.runs
        self._lock = shared.lock
        self._put_off = put_off
        self._forked = False
        forks.register(self)

    def refuse(self, run: Run) -> None:
        """The task's handler still runs in this process: put the task off."""
        current.set(None)  # else the log would name the task before
        other = self.known.get(run.task.id, run)  # it may have ended just now
        age = max(0.0, time.monotonic() - other.began)
        if age >= 2 * other.refused_at:  # a hung handler is logged seldom, though its task is taken every second
            other.refused_at = age
            log.warning(
                "task %s of %s is not begun: its handler of %.1f s ago still runs in this process",
                *(run.task.id, run.task.queue, age),
            )
        self._put_off(run.task, PUT_OFF)

    def broke(self, run: Run, why: object) -> None:
        """A run ended without a settled task, by no fault of its handler: put the task off."""
        log.error("task %s of %s is put off: %s", run.task.id, run.task.queue, why)
        self._put_off(run.task, PUT_OFF)

    def may_go_on(self, run: Run) -> bool:
        """Whether the runner of a doubted run that has ended still has its place."""
        self.end_if_forked()
        with self._lock:
            return not run.written_off

    def end_if_forked(self) -> None:
        """End the process if it is a child that a handler forked."""
        if self._forked:
            log.error("a handler forked, and the child returned from it: the child, process %s, ends here", os.getpid())
            os._exit(1)

    def write_off(self, run: Run) -> bool:
        """Whether it was under way, and not written off before; then its runner has lost its place."""
        with self._lock:
            if run.written_off:
                return False
            run.doubted = True
            run.written_off = self.known.get(run.task.id) is run
            return run.written_off

    def withdraw(self, run: Run) -> bool:
        """Whether its handler had not begun; then it never will."""
        with self._lock:
            run.doubted = True
            if run.began != NEVER or self.known.get(run.task.id) is not run:
                return False
            run.withdrawn = run.written_off = True
            del self.known[run.task.id]
            return True

    def may_begin(self, run: Run) -> bool:
        """Whether a doubted run, whose `began` is written, was not withdrawn."""
        with self._lock:
            return not run.withdrawn

    def of(self, task: Taken) -> Run:
        """The run of this task, to the handler's own thread."""
        return self.known[task.id]

    def under_way(self) -> list[Run]:
        """The runs of this shift that are not written off."""
        return [run for run in self._mine() if not run.written_off]

    def lost(self, pool: Pool) -> int:
        """How many runners of this pool are written off and have not returned, without those that another one blocks.
        A batch is several runs of one runner."""
        mine = (run for run in self._mine() if run.pool is pool)
        return len({run.runner for run in mine if run.written_off and run.cut is not BLOCKED})

    def is_under_way(self, run: Run) -> bool:
        return self.known.get(run.task.id) is run and not run.written_off

    def after_fork(self) -> None:
        self._forked = True
        for run in self.known.values():
            run.doubted = True

    def _mine(self) -> list[Run]:
        return [run for run in list(self.known.values()) if run.pool.runs is self]
