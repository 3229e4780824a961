"""The watch: what becomes of handlers that do not end.

Theory of operation
-------------------
A handler's time is over when its take is (the ttr has passed, the task was deleted, the session was lost), when the
worker's `time_limit` has passed, or when the worker has stopped and its `grace` is over. Without that a handler that
hangs would keep its runner for ever. The states of a run (runs.py):

    under way --its time is over--> cut --CANCELLED seconds--> written off --the handler returns--> gone
        |                            |
        '--the handler returns-------'--> gone

- *Cut*: an async handler is cancelled, in its loop, by a CancelledError at its present await. A thread cannot be
  interrupted, and is written off at once.
- *Written off*: another runner takes the place of this one, so that the tasks of other queues go on. The old runner
  ends when its handler returns. What that handler settles late is refused by the fence.

If more than LIMIT times `concurrency` handlers of a kind are written off and have not returned, the worker ends with an
error: only a new process gets rid of their threads, and a supervisor starts one.

The database knows when a take is over, for touches and other processes change its deadline, and its clock is not ours.
So the watch asks, but only about runs with a deadline that have lasted for LOOK seconds, and again when the answer says
that the time is over. A worker with quick handlers asks nothing. While the database is away nothing is cut by its
deadline, and nothing new could be taken either. `time_limit` is measured here.

A run that is cut since its take is over has been counted as a failed attempt by the database. One that is cut by
`time_limit` still has its take, and fails with it.

Races. The handler's runner T1, the watch T2:
  T1 returns while T2 cuts        a coroutine is cancelled by a callback in its own loop, where T1 stands either in the
                                  handler's await or has ended its run: the callback looks. A CancelledError never
                                  reaches the next task of the runner.
  T1 returns while T2 writes off  runs.py.
  T1 blocks its loop              the callback does not run. Coroutines of that loop cannot be replaced. The watch logs
                                  where the loop's thread stands.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg

from .._calls import settle as calls
from ..errors import Error
from .runs import Run, Runs
from .settler import Settler

if TYPE_CHECKING:
    from .._sync.shell import Shell

log = logging.getLogger("pgqueue")

LOOK = 0.2  # seconds between two looks at the handlers
CANCELLED = 0.3  # seconds for a cancelled coroutine to end
LIMIT = 2  # times `concurrency`: so many handlers of a kind may be written off
LATER = 1.0  # seconds before the database is asked again after an error
ENDLESS = 60.0  # seconds before a take is looked at again that has no deadline any more

OVER = "its take is over"
STOPPED = "the worker stops"


class Watch:
    """A thread that looks after the runs of a shift, until end(). `fail` ends the worker with an error."""

    def __init__(
        self,
        shell: Shell,
        runs: Runs,
        settler: Settler,
        time_limit: float | None,
        fail: Callable[[Error], None],
    ) -> None:
        self._shell = shell
        self._runs = runs
        self._settler = settler
        self._time_limit = time_limit
        self._fail = fail
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pgqueue-watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Look no more. Does not wait."""
        self._ended.set()

    def stop_all(self) -> None:
        """The grace is over: cancel the coroutines, and write off what has not ended CANCELLED seconds later.

        All of these tasks are given back, and are not charged: they did not fail.
        """
        self.end()
        for run in self._runs.under_way():
            run.cut = STOPPED
            run.pool.cancel(run)
        until = time.monotonic() + CANCELLED
        while (left := self._runs.under_way()) and time.monotonic() < until:
            if not any(run.pool.cancels for run in left):
                break
            time.sleep(0.01)
        for run in left:
            if self._runs.write_off(run):
                self._report(run)
                self._settler.give_back([run.task])

    def _run(self) -> None:
        while not self._ended.wait(LOOK):
            try:
                self._look()
            except Exception:
                log.exception("looking after the handlers failed")

    def _look(self) -> None:
        now = time.monotonic()
        unsure = []
        for run in self._runs.under_way():
            if run.cut is not None:
                self._look_again(run, now)
            elif self._time_limit is not None and now - run.began >= self._time_limit:
                self._cut(run, f"it ran for longer than the worker's time limit of {self._time_limit:g} s")
            elif run.task.deadline is not None and now >= max(run.look_at, run.began + LOOK):
                unsure.append(run)
        if unsure:
            self._ask(unsure)

    def _ask(self, runs: list[Run]) -> None:
        """Cut the runs whose take is over, and note when to ask about the others."""
        asked = time.monotonic()
        try:
            left = self._shell.run(calls.time_left([(run.task.id, run.task.token) for run in runs]), relaxed=True)
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
        if run.pool.cancels:
            log.warning("task %s of %s: its handler is cancelled: %s", run.task.id, run.task.queue, why)
            run.pool.cancel(run)
        else:
            self._write_off(run)

    def _look_again(self, run: Run, now: float) -> None:
        """A coroutine was to be cancelled."""
        if run.cancelled_at is not None:
            if now - run.cancelled_at >= CANCELLED:
                self._write_off(run)
        elif run.cut_at < now - CANCELLED:
            run.cut_at = float("inf")  # said once
            log.error("an async handler blocks the event loop, and with it all async handlers:\n%s", _stack(run))

    def _write_off(self, run: Run) -> None:
        if not self._runs.write_off(run):
            return  # it has just ended
        self._report(run)
        if run.cut is not None and run.cut is not OVER:
            self._settler.failed.append((run.task, run.cut))
            self._settler.tell()
        run.pool.replace(run)
        lost = self._runs.written_off(run.pool)
        if lost > LIMIT * run.pool.n:
            last = f"task {run.task.id} of {run.task.queue}"
            self._fail(Error(f"{lost} handlers do not end, the last one with {last}: start the worker again"))

    def _report(self, run: Run) -> None:
        log.error(
            "task %s of %s: its handler has run for %.1f s and cannot be ended, it is written off: %s",
            *(run.task.id, run.task.queue, time.monotonic() - run.began, run.cut),
        )


def _stack(run: Run) -> str:
    frame = sys._current_frames().get(run.pool.ident)
    return "".join(traceback.format_stack(frame)) if frame else "its thread has ended"
