"""An event loop in a thread of its own, with the runners of async handlers: coroutines that await one handler each.

A handler that blocks its loop (time.sleep, a computation, C code) blocks all handlers of that loop. Once such a handler
is over its time, the watch T2 abandons the loop: another loop, with as many runners, empties the buffer from then on.
The abandoned thread T1 may go on at any moment. Between two awaits it looks at `abandoned`, which T2 sets first:

  T1 goes on before T2 has written off the run that blocked it    T2 finds no run to write off, and abandons nothing.
  T1 goes on after that                                           its runners end where they look; the handlers that
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
from dataclasses import dataclass

from .._calls.take import Taken
from .buffer import Buffer
from .runs import Pool, Run, Runs, current

Hello = Callable[[], Awaitable[bool]]
Goodbye = Callable[[], Awaitable[None]]

TURN = 0.001  # seconds that handlers without an await may keep the loop


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
    """What a loop does.

    Attributes:
        handle: awaited with each task; must not raise.
        enter: called first, in the loop's thread.
        hello: awaited next; if it returns False, the loop ends without a runner.
        goodbye: awaited last.
    """

    handle: Callable[[Taken], Awaitable[None]]
    enter: Callable[[], object] = _nothing
    hello: Hello = at_once
    goodbye: Goodbye = no_goodbye


class Loop:
    """`n` runners that empty the buffer, until it is closed or the loop is abandoned. It can end their runs."""

    def __init__(self, n: int, life: Life, buffer: Buffer, runs: Runs, pool: Pool) -> None:
        self._n = n
        self._life = life
        self._buffer = buffer
        self._runs = runs
        self._pool = pool
        self._at_work = 0
        self._runners: set[asyncio.Task[None]] = set()
        self._abandoned = False
        self._loop = asyncio.new_event_loop()
        self._bell = asyncio.Semaphore(0)
        self._all_ended = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="pgqueue-loop", daemon=True)

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
        def ring() -> None:
            for _ in range(n):
                self._bell.release()

        self._soon(ring)

    def replace(self, run: Run) -> None:
        """The run was written off: begin another runner."""

        def replace() -> None:
            self._at_work -= 1
            if not self._abandoned:
                self._start()
            self._gone(run.runner)

        self._soon(replace)

    def abandon(self) -> bool:
        """Let its runners end as soon as they can. The buffer must have moved."""
        self._abandoned = True
        self.wake(self._n)
        return True

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the handlers under way; the buffer must be closed. Returns whether all have ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def after_fork(self) -> None:
        """In a child that a handler forked: end it at the handler's next await. The loop's other tasks are not its."""
        if threading.get_ident() == self._thread.ident:
            self._loop.call_soon(os._exit, 1)

    # --- in its thread

    def _soon(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback)

    def _start(self) -> None:
        runner = self._loop.create_task(self._run())
        self._runners.add(runner)
        runner.add_done_callback(self._gone)

    def _gone(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if not self._runners:
            self._all_ended.set()

    def _main(self) -> None:
        self._life.enter()
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            everything = runner.get_loop().create_task(self._all())
            while not everything.done():
                # asyncio raises these two through the loop if a handler's own task raises them; the handler fails.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    self._loop.run_until_complete(everything)

    async def _all(self) -> None:
        if await self._life.hello():
            for _ in range(self._n):
                self._start()
            await self._all_ended.wait()
        await self._life.goodbye()

    async def _run(self) -> None:
        buffer, runs, known, handle = self._buffer, self._runs, self._runs.known, self._life.handle
        enter = current.set
        me = asyncio.current_task()
        assert me is not None
        now = self._yielded_at = buffer.clock()
        while not self._abandoned:
            try:
                task = buffer.tasks.popleft()
            except IndexError:
                state = buffer.rest(self)
                if state is None:
                    return
                if state:
                    await self._bell.acquire()
                    now = buffer.clock()
                continue
            buffer.started(now)
            run = Run(task, now, self._pool, me, self)
            if known.setdefault(task.id, run) is run:
                enter(run)
                self._at_work += 1
                await handle(task)
                del known[task.id]
                if run.doubted and not runs.may_go_on(run):
                    return
                if run.ended_at is not None:
                    me.uncancel()
                # Runners that wait for the loop are not at work: handlers that only compute run one at a time.
                now = buffer.finished(now, self._at_work)
                self._at_work -= 1
            else:
                runs.refuse(run)
            if now - self._yielded_at > TURN:
                await asyncio.sleep(0)
                now = self._yielded_at = buffer.clock()
