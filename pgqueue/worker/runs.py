"""Which task each runner handles at this moment. A process handles a task once at a time, whatever the database says.

A task comes back to the database when its time to run is over, or when its session is lost, and its handler may still
run here. If a runner of this process gets the task again, the task is put off: released with a delay that is as long as
the first handler has run so far, so that other processes can have the task and this one does not spin. It is no failed
attempt, since no handler began.

overdue.py says when a run is written off. The runner T1 that ends its run and the watch T2 that writes the run off must
agree whether T1 has lost its place. A lock around both would cost each task two acquisitions. So T1 removes its run and
looks at `doubted` after that; T2, in the lock, sets `doubted` and looks for the run after that. If T2 finds the run, T1
has yet to look, and sees the doubt. In doubt T1 waits for the lock, and goes by what T2 found.

A handler may fork. If the child returns from the handler, it is in a copy of the worker, with the copy of a buffer and
without the other threads: it would handle tasks a second time. So it ends.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from .._calls.take import Taken
from .._engine import forks

log = logging.getLogger("pgqueue")

SHORTEST, LONGEST = 1.0, 60.0  # seconds: the delays of a task that is put off


class Pool(Protocol):
    """What the watch needs of runners, of either kind.

    Attributes:
        n: their concurrency.
        cancels: whether cancel() can end a run.
    """

    n: int
    runs: Runs
    cancels: bool

    @property
    def ident(self) -> int:
        """Of the thread that runs all handlers; 0 if each has one."""

    def cancel(self, run: Run) -> None:
        """Cancel the run, if it is still under way when its loop comes to it."""

    def replace(self, run: Run) -> None:
        """The run was written off: begin another runner in the place of its runner."""


class Run:
    """A handler at work on a task.

    Attributes:
        began: the monotonic time of its beginning.
        runner: the thread or the asyncio task that it runs in.
        look_at: the watch asks for the take's deadline no sooner.
        cut: why it is to end; None: it may go on.
        cancelled_at: when its asyncio task was cancelled, by the loop itself.
        doubted: the runner must not go on without asking.
        written_off: its runner was replaced.
    """

    look_at = 0.0
    cut: str | None = None
    cut_at = 0.0
    cancelled_at: float | None = None
    doubted = False
    written_off = False

    def __init__(self, task: Taken, began: float, pool: Pool, runner: Any) -> None:
        self.task = task
        self.began = began
        self.pool = pool
        self.runner = runner


class Known:
    """The runs of a worker: those of all its shifts, by the id of their task."""

    def __init__(self) -> None:
        self.runs: dict[int, Run] = {}
        self.lock = threading.Lock()


class Runs:
    """The runs of one shift. `put_off` gets a task that is not to begin now, and for how many seconds.

    A runner begins a run by `known.setdefault(task.id, run) is run`, or else calls refuse(). It ends the run by
    `del known[task.id]`, and if the run is doubted by then, it calls may_go_on(). Both are atomic.
    """

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
        other = self.known.get(run.task.id, run)  # it may have ended just now
        age = time.monotonic() - other.began
        log.warning(
            "task %s of %s is not begun: its handler of %.1f s ago still runs in this process",
            *(run.task.id, run.task.queue, age),
        )
        self._put_off(run.task, min(max(age, SHORTEST), LONGEST))

    def may_go_on(self, run: Run) -> bool:
        """Whether the runner of a doubted run that has ended still has its place."""
        if self._forked:
            log.error("a handler forked, and the child returned from it: the child, process %s, ends here", os.getpid())
            os._exit(1)
        with self._lock:
            return not run.written_off

    def write_off(self, run: Run) -> bool:
        """Whether it was under way; then its runner has lost its place."""
        with self._lock:
            run.doubted = True
            run.written_off = self.known.get(run.task.id) is run
            return run.written_off

    def cut(self, task: Taken) -> str | None:
        """Why the run of this task was cut, to the handler's own thread."""
        return self.known[task.id].cut

    def under_way(self) -> list[Run]:
        """The runs of this shift that are not written off."""
        return [run for run in self._mine() if not run.written_off]

    def written_off(self, pool: Pool) -> int:
        """How many runs of this pool are written off and have not returned."""
        return sum(run.written_off and run.pool is pool for run in self._mine())

    def is_under_way(self, run: Run) -> bool:
        return self.known.get(run.task.id) is run and not run.written_off

    def after_fork(self) -> None:
        self._forked = True
        for run in self.known.values():
            run.doubted = True

    def _mine(self) -> list[Run]:
        return [run for run in list(self.known.values()) if run.pool.runs is self]
