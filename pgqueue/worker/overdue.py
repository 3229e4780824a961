"""The watch: ends handlers that do not end by themselves.

Theory of operation
-------------------
A handler's time is over when its take is (the ttr has passed, the task was deleted, the session was lost), when the
worker's `time_limit` has passed, or when the worker has stopped and its `grace` is over. Without that a handler that
hangs would keep its runner indefinitely. The states of a run (runs.py):

    under way --its time is over--> cut --CANCELLED seconds--> written off --the handler returns--> gone
        |                            |
        '--the handler returns-------'--> gone

- *Cut*: a coroutine is cancelled, in its loop, by a CancelledError at its present await. A child process is killed. A
  thread cannot be interrupted, and is written off at once. (PyThreadState_SetAsyncExc raises an exception in a thread
  between any two bytecodes: in a `finally`, in a lock's `__exit__`, in the middle of a protocol with a server. Nothing
  that the thread shares can be trusted after that, and a C call that does not return never sees it.)
- *Written off*: another runner takes the place of this one, so that other tasks go on. The old runner ends when its
  handler returns. A late ack or other verb of that handler is refused by the fence.
- *A loop that a handler blocks* cancels nothing. If it serves several queues, these go on in another loop within a
  second (loops.py). If the handler that occupies it is over its own time, the loop is abandoned as a whole: another
  one begins, if that was not done before. The other handlers of the old loop did not fail: their tasks are released,
  uncharged. Handlers that have not begun there never begin. If the handler that occupies it may still run, only the one
  whose time is over is written off.

If more than LIMIT times `concurrency` handlers of a kind are written off and have not returned, the worker ends with an
error: only a new process gets rid of their threads, and a supervisor starts one.

The watch sleeps until the next of these moments that it knows of, LOOK seconds at most. So a handler with a limit of
LOOK or more is cut within milliseconds of it, and written off CANCELLED seconds later; a shorter limit is seen LOOK
seconds after the beginning at the latest.

The database knows when a take is over, for touches and other processes change its deadline, and its clock is not ours.
So the watch asks, but only about runs with a deadline that have lasted for LOOK seconds, and again when the answer says
that the time is over. A worker with quick handlers asks nothing. While the database is away nothing is cut by its
deadline, and nothing new could be taken either. Time limits are measured here.

A run that is cut since its take is over has been counted as a failed attempt by the database. One that is cut by a time
limit still has its take, and fails with it.

Races. The handler's runner T1, the watch T2:
  T1 returns while T2 cuts        a coroutine is cancelled by a callback in its own loop, where T1 stands either in the
                                  handler's await or has ended its run: the callback looks. The next run has
                                  another asyncio task (loops.py).
  T1 returns while T2 writes off  runs.py.
  T1 blocks its loop the callback does not run; loops.py. The watch logs the stack of the loop's thread. T1 has its
  child's answer while T2 kills children.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import psycopg

from .._calls import settle as calls
from .._engine.owners import Owned
from .._values.logs import log
from ..errors import Error
from .homes import Homes
from .runners import Coroutines
from .runs import BLOCKED, OVER, STOPPED, Run, Runs
from .settler import Settler
from .settlers import Settlers

if TYPE_CHECKING:
    from .._sync.shell import Shell


LOOK = 0.2  # seconds between two looks at the handlers, at most
CANCELLED = 0.2  # seconds for a cancelled coroutine or a killed child to end
LIMIT = 2  # times `concurrency`: the handlers of a kind that may be written off
LATER = 1.0  # seconds before the database is asked again after an error
ENDLESS = 60.0  # seconds before a take is looked at again that has no deadline any more


@dataclass(frozen=True, slots=True)
class Limits:
    """The time limits of runs without limits of their own, in seconds; None: without limit."""

    hard: float | None = None
    soft: float | None = None


class Watch:
    """A thread that looks after the runs of a shift, until end().

    `fail` ends the worker with an error. `failed` gets a run that was written off and has failed.
    """

    def __init__(
        self,
        homes: Homes[Shell],
        runs: Runs,
        settler: Settler | Settlers,
        limits: Limits,
        fail: Callable[[Error], None],
        failed: Callable[[Run], None],
    ) -> None:
        self._homes = homes
        self._runs = runs
        self._settler = settler
        self._limits = limits
        self._fail = fail
        self._failed = failed
        self.looked_at = time.monotonic()
        self.loops: list[Coroutines] = []  # the shift adds them
        self._ended = threading.Event()
        self.thread = Owned("pgqueue-watch", self._run, self._ended.is_set)
        self.thread.start()

    def end(self) -> None:
        """Stop looking. Does not wait."""
        self._ended.set()

    def stop_all(self) -> int:
        """The grace is over: end the runs that can be ended, and write off those that have not ended CANCELLED seconds
        later.

        All of these tasks are given back, and are not charged: they did not fail. Returns their number.
        """
        self.end()
        under_way = self._runs.under_way()
        for run in under_way:
            run.cut = STOPPED
            if ender := run.ender:
                ender.end(run)
        until = time.monotonic() + CANCELLED
        while (left := self._runs.under_way()) and time.monotonic() < until:
            if not any(run.ender for run in left):
                break
            time.sleep(0.01)
        for run in left:
            if self._runs.withdraw(run):
                self._settler.give_back([run.task])
            elif self._runs.write_off(run):
                self._report(run)
                self._settler.give_back([run.task])
        return len(under_way)

    def _run(self) -> None:
        wait = LOOK
        while not self._ended.wait(wait):
            self._look()
            wait = self._until_next()

    def _until_next(self) -> float:
        """Seconds until the next look."""
        due = min((self._due(run) for run in self._runs.under_way()), default=float("inf"))
        return min(LOOK, max(0.0, due - time.monotonic()))

    def _due(self, run: Run) -> float:
        """The monotonic time of the next limit of a run."""
        if run.cut is not None:
            return run.cut_at + CANCELLED
        hard, soft = self._limits_of(run)
        limits = [limit for limit in (hard, None if run.softened else soft) if limit is not None]
        return run.began + min(limits, default=float("inf"))

    def _limits_of(self, run: Run) -> tuple[float | None, float | None]:
        return (
            self._limits.hard if run.limit is None else run.limit,
            self._limits.soft if run.soft_limit is None else run.soft_limit,
        )

    def _look(self) -> None:
        now = self.looked_at = time.monotonic()
        for pool in self.loops:
            self._unblock(pool, now)
        unsure = []
        for run in self._runs.under_way():
            hard, soft = self._limits_of(run)
            if run.written_off:  # just now, with the loop that another one blocks
                continue
            if run.cut is not None:
                self._look_again(run, now)
            elif hard is not None and now - run.began >= hard:
                whose = "the worker's" if run.limit is None else "its"
                self._cut(run, f"it ran for longer than {whose} time limit of {hard:g} s")
            elif soft is not None and now - run.began >= soft and not run.softened:
                run.softened = True
                if ender := run.ender:
                    ender.soften(run)
            elif run.task.deadline is not None and now >= max(run.look_at, run.began + LOOK):
                unsure.append(run)
        for index, part in self._homes.by_server(unsure, attrgetter("task.id")).items():
            self._ask(self._homes.all[index], part)

    def _unblock(self, pool: Coroutines, now: float) -> None:
        """Let a pool go on without the loop that a handler blocks."""
        for run in pool.unblock(now):
            if self._runs.withdraw(run):
                self._settler.give_back([run.task])
                pool.replace(run)

    def _ask(self, shell: Shell, runs: list[Run]) -> None:
        """Cut the runs whose take is over, and note when to ask about the others."""
        asked = time.monotonic()
        try:
            left = shell.run(calls.time_left([(run.task.id, run.task.token) for run in runs]), relaxed=True)
        except (Error, psycopg.Error) as error:
            log.debug("the deadlines of handlers are not known at present: %s", error)
            for run in runs:
                run.look_at = asked + LATER
            return
        for run in runs:
            if run.task.id in left:
                seconds = left[run.task.id]
                run.look_at = asked + (ENDLESS if seconds is None else seconds)
            else:
                self._cut(run, OVER)

    def _cut(self, run: Run, why: str) -> None:
        run.cut, run.cut_at = why, time.monotonic()
        if (ender := run.ender) is None:
            self._write_off(run)
            return
        log.warning("task %s of %s: its handler is ended: %s", run.task.id, run.task.queue, why)
        ender.end(run)

    def _look_again(self, run: Run, now: float) -> None:
        """A run that was to end has not."""
        if run.ended_at is not None:
            run.cut_at = run.ended_at  # from then on it had CANCELLED seconds
        if now < run.cut_at + CANCELLED:
            return
        ender = run.ender  # T1 sets it to None when it leaves a child or the bridge
        occupant = None
        if run.ended_at is None and ender is not None:
            log.error("an async handler blocks the event loop, and with it all async handlers:\n%s", ender.stack())
            occupant = ender.occupant()
        others = (other for other in self._runs.under_way() if occupant in (other.runner, other.coroutine))
        culprit = next(others, run)
        self._write_off(run, culprit if occupant is not None and culprit.cut is not None else None)

    def _write_off(self, run: Run, blocker: Run | None = None) -> None:
        if not self._runs.write_off(run):
            return  # it has just ended
        self._report(run)
        if run.cut is not None and run.cut is not OVER:
            self._failed(run)
        if blocker is not None:
            self._give_up(run, blocker)
        else:
            run.pool.replace(run)
        lost = self._runs.lost(run.pool)
        if lost > LIMIT * run.pool.n:
            last = f"task {run.task.id} of {run.task.queue}"
            self._fail(Error(f"{lost} handlers do not end, the last one with {last}: start the worker again"))

    def _give_up(self, run: Run, blocker: Run) -> None:
        """Abandon the loop of a run, and release the tasks of the other handlers there."""
        for other in run.pool.abandon(run, blocker):
            over = other.cut
            other.cut = over or BLOCKED
            if self._runs.withdraw(other) or self._runs.write_off(other):
                if over is None:
                    self._settler.give_back([other.task])
                elif over is not OVER:
                    self._failed(other)
                other.pool.replace(other)
            if ender := other.ender:
                ender.end(other)

    def _report(self, run: Run) -> None:
        log.error(
            "task %s of %s: its handler has run for %.1f s and cannot be ended, it is written off: %s",
            *(run.task.id, run.task.queue, time.monotonic() - run.began, run.cut),
        )
