"""An event loop in a thread of its own, for async handlers: it runs up to `n` of them at once.

Each run has an asyncio task of its own, and a context of its own. The effects of a handler on its task end with the
run: for example loop.call_later(0.3, asyncio.current_task().cancel), never called off. One task for all runs of a
runner would be cheaper, but it would hand that cancellation to the next handler, or be ended by it between two
handlers. So a runner is no coroutine but a place: a callback of the loop begins the next run when one has ended, or
when the buffer wakes the place. Nothing that a handler can reach ends it.

A handler that blocks its loop (time.sleep, a computation, C code) blocks all handlers of that loop. The watch T2 asks
the loop for an answer at each of its looks. It abandons a loop that has not answered for SILENT seconds: another loop,
with as many runners, empties the buffer from then on, and the queue of that handler gets a loop to itself
(runners.py). The handlers under way go on where they are, until that handler is over its time: then they are released.
A loop that runs one queue is abandoned only then.

The abandoned thread T1 may go on at any moment. Between two runs it looks at `abandoned`, which T2 sets first:

  T1 goes on before T2 has written off the run that blocked it    T2 finds no run to write off, and abandons nothing.
  T1 goes on after that                                           its places end where they look; the handlers that
                                                                  were blocked are cancelled at their next await.
  T1 takes a task while T2 abandons it                            the handler runs to its end in the old loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial

from .._calls.take import Taken
from .._engine.owners import Owned
from .buffer import Buffer
from .runs import NEVER, Pool, Run, Runs, enter

SILENT = 0.5  # seconds without an answer: the loop is blocked
LOOKS = 3  # the least number of looks: a machine that stood still has given the loop no turn

Hello = Callable[[], Awaitable[bool]]
Goodbye = Callable[[], Awaitable[None]]


def _nothing() -> None:
    pass


async def at_once() -> bool:
    return True


async def no_goodbye() -> None:
    pass


def no_hooks() -> tuple[Hello, Goodbye]:
    return at_once, no_goodbye


@dataclass(frozen=True, slots=True)
class Life:
    """The functions of a loop.

    Attributes:
        handle: awaited with each task; must not raise.
        enter: called first, in the loop's thread.
        hello: awaited next; if it returns False, the loop ends without a run. The handlers see the values that it sets
            in its context.
        goodbye: awaited last.
    """

    handle: Callable[[Taken], Awaitable[None]]
    enter: Callable[[], object] = _nothing
    hello: Hello = at_once
    goodbye: Goodbye = no_goodbye


class Loop:
    """`n` places for runs. They empty the buffer until it is closed or the loop abandoned. It can end their runs.

    It calls `lost` if it has ended by an error, before its time: its runs are over.
    """

    def __init__(
        self, n: int, life: Life, buffer: Buffer, runs: Runs, pool: Pool, lost: Callable[[Loop], None] = lambda it: None
    ) -> None:
        self._n = n
        self._life = life
        self._buffer = buffer
        self._runs = runs
        self._pool = pool
        self._busy: set[Run] = set()  # one for each place that has a run
        self._idle: list[int] = []  # places
        self._present = [""] * n  # the queue of the last run, by place
        self._abandoned = False
        self._asked = self._answered = 0  # the watch writes the first, the loop the second
        self._asked_at = 0.0
        self._silent = 0  # looks
        self._loop = asyncio.new_event_loop()
        self._context: Context = copy_context()  # of which each run has a copy
        self._all_ended = asyncio.Event()
        self._lost = lost
        self._thread = Owned("pgqueue-loop", self._main, self._is_over, self._give_up)

    def start(self) -> None:
        """Begin; the buffer must have moved here."""
        self._thread.start()

    # --- the ender of its runs

    def end(self, run: Run) -> None:
        def cancel() -> None:
            if self._runs.known.get(run.task.id) is run and run.ended_at is None:
                run.ended_at = time.monotonic()
                run.runner.cancel()

        self._soon(cancel)

    def soften(self, run: Run) -> None:
        def cancel() -> None:
            if self._runs.is_under_way(run) and run.ended_at is None:
                run.softening = True
                run.runner.cancel()

        self._soon(cancel)

    def occupant(self) -> object:
        return asyncio.current_task(self._loop)

    def stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else "its thread has ended"

    # --- for its pool

    def wake(self, n: int) -> None:
        def wake() -> None:
            for _ in range(min(n, len(self._idle))):  # none: it was abandoned in the meantime
                self._go_on(self._idle.pop())

        self._soon(wake)

    def replace(self, run: Run) -> None:
        """The run was written off: its place goes on without it."""

        def replace() -> None:
            self._busy.discard(run)
            self._go_on(run.place)

        self._soon(replace)

    def is_silent(self, now: float) -> bool:
        """Whether it has been blocked for SILENT seconds. The watch calls this at each look."""
        if not self._thread.is_alive():  # its owner begins another one
            return False
        if self._answered == self._asked:
            self._asked += 1
            self._asked_at, self._silent = now, 0
            self._soon(partial(setattr, self, "_answered", self._asked))
            return False
        self._silent += 1
        return self._silent >= LOOKS and now >= self._asked_at + SILENT

    def abandon(self) -> bool:
        """Let its places end as soon as they can. The buffer must have moved."""
        self._abandoned = True
        self.wake(self._n)
        self._soon(self._end_if_empty)
        return True

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the handlers under way; the buffer must be closed. Returns whether all have ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def after_fork(self) -> None:
        """In a child that a handler forked: end it at the handler's next await. The other tasks are the parent's."""
        if threading.get_ident() == self._thread.ident:
            self._loop.call_soon(os._exit, 1)

    # --- in its thread

    def _soon(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback)

    def _main(self) -> None:
        self._life.enter()
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            everything = runner.get_loop().create_task(self._all())
            try:
                while not everything.done() and not self._loop.is_closed():
                    # asyncio raises the first two through the loop if a handler's own task raises them; the handler
                    # fails. The third is raised if a handler stops the loop.
                    with contextlib.suppress(SystemExit, KeyboardInterrupt, RuntimeError):
                        self._loop.run_until_complete(everything)
                everything.result()
            except BaseException:
                self._abandoned = True  # no run begins while the runner ends those under way
                self._all_ended.set()
                raise

    def _is_over(self) -> bool:
        return self._buffer.is_closed()

    def _give_up(self, error: BaseException) -> None:
        for run in list(self._busy):
            if self._runs.known.get(run.task.id) is run:
                del self._runs.known[run.task.id]
                self._runs.broke(run, f"its event loop has ended: {type(error).__name__}")
        self._lost(self)

    async def _all(self) -> None:
        if await self._life.hello():
            self._context = copy_context()
            for place in range(self._n):
                self._go_on(place)
            while not self._all_ended.is_set():
                with contextlib.suppress(asyncio.CancelledError):  # a handler has cancelled all tasks of the loop
                    await self._all_ended.wait()
        await self._life.goodbye()

    def _go_on(self, place: int) -> None:
        """Begin the next run of a place; let the place wait, or end, if there is none."""
        buffer, known, present = self._buffer, self._runs.known, self._present
        while not self._abandoned:
            try:
                task: Taken | None = buffer.tasks.popleft()
            except IndexError:
                task = None
            if task is None or (buffer.shares is not None and task.queue != present[place]):
                turn = buffer.turn(place, task, self)
                if turn is False:
                    break
                present[place] = ""
                if turn is True:
                    self._idle.append(place)
                    return
                task = turn
                present[place] = task.queue
            now = buffer.clock()
            buffer.started(now)
            run = Run(task, NEVER, self._pool, None, self)
            if known.setdefault(task.id, run) is run:
                self._busy.add(run)
                run.place = place
                run.runner = asyncio.Task(self._run(run), loop=self._loop, context=self._context.run(enter, run))
                run.runner.add_done_callback(partial(self._ended, run, now))
                return
            self._runs.refuse(run)
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        if not self._busy and not self._idle:
            self._all_ended.set()

    async def _run(self, run: Run) -> None:
        self._runs.end_if_forked()  # by a handler that had its turn in the same round of the loop
        run.began = self._buffer.clock()
        if run.doubted and not self._runs.may_begin(run):
            return
        await self._life.handle(run.task)
        self._runs.end_if_forked()  # here and not in _ended, which runs after the turns of other runs

    def _ended(self, run: Run, since: float, task: asyncio.Task[None]) -> None:
        """The asyncio task of a run has ended. It began to wait for its first turn at `since`."""
        if run.began == NEVER:  # another handler has cancelled all tasks of the loop, or it was withdrawn before
            may_go_on = self._runs.withdraw(run)
            if may_go_on:
                self._runs.broke(run, "its asyncio task was cancelled before it began")
        elif run.withdrawn:
            may_go_on = False
        else:
            del self._runs.known[run.task.id]
            may_go_on = not run.doubted or self._runs.may_go_on(run)
        if may_go_on:
            self._buffer.finished(since, len(self._busy))
        self._busy.discard(run)
        if may_go_on or self._abandoned:
            self._go_on(run.place)
        elif self._buffer.is_closed():  # the worker has stopped without this run
            self._end_if_empty()
        # else another run has its place, or replace() follows
