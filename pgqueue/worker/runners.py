"""Runners take tasks from a buffer and run their handlers: persistent threads, or coroutines of one loop in a thread.

A task costs no future, no queue entry and no hand-over: a runner pops the next task itself, and sleeps only when there
is none. Both kinds have the same interface: a buffer, join, and what the watch needs (runs.Pool).

A runner whose run was written off has been replaced, and ends when its handler returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
from collections.abc import Awaitable, Callable

from .._calls.take import Taken
from .._engine import forks
from .buffer import Buffer
from .runs import Run, Runs

Handle = Callable[[Taken], None]
AsyncHandle = Callable[[Taken], Awaitable[None]]

TURN = 0.001  # seconds that handlers without an await may keep the loop


def _nothing() -> None:
    pass


class Threads:
    """`n` threads that call `handle`, which must not raise. Each thread calls `enter` first."""

    cancels = False

    def __init__(
        self, n: int, handle: Handle, runs: Runs | None = None, enter: Callable[[], object] = _nothing
    ) -> None:
        self.n = n
        self.runs = runs or Runs()
        self.buffer = Buffer(self._wake)
        self._handle = handle
        self._enter = enter
        self._bell = threading.Semaphore(0)
        self._numbers = itertools.count()
        self._threads: set[threading.Thread] = set()
        for _ in range(n):
            self._start()

    @property
    def ident(self) -> int:
        return 0

    def cancel(self, run: Run) -> None:
        pass

    def replace(self, run: Run) -> None:
        self._threads.discard(run.runner)
        self._start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the handlers under way; the buffer must be closed. Returns whether all have ended."""
        until = None if timeout is None else time.monotonic() + timeout
        for thread in list(self._threads):
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in list(self._threads))

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"pgqueue-runner-{next(self._numbers)}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _wake(self, n: int) -> None:
        self._bell.release(n)

    def _run(self) -> None:
        self._enter()
        buffer, pop, handle, runs, n = self.buffer, self.buffer.tasks.popleft, self._handle, self.runs, self.n
        known, me = runs.known, threading.current_thread()
        now = buffer.clock()
        while True:
            try:
                task = pop()
            except IndexError:
                state = buffer.rest()
                if state is None:
                    return
                if state:
                    self._bell.acquire()
                    now = buffer.clock()
                continue
            buffer.started(now)
            run = Run(task, now, self, me)
            if known.setdefault(task.id, run) is run:
                handle(task)
                del known[task.id]
                if run.doubted and not runs.may_go_on(run):
                    return
            else:
                runs.refuse(run)
            now = buffer.finished(now, n)


class Coroutines:
    """`n` coroutines that await `handle`, which must not raise, in a loop of their own; `goodbye` is awaited last.

    The loop's thread calls `enter` first.
    """

    cancels = True

    def __init__(
        self,
        n: int,
        handle: AsyncHandle,
        goodbye: Callable[[], Awaitable[None]],
        runs: Runs | None = None,
        enter: Callable[[], object] = _nothing,
    ) -> None:
        self.n = n
        self.runs = runs or Runs()
        self.buffer = Buffer(self._wake)
        self._handle = handle
        self._goodbye = goodbye
        self._enter = enter
        self._at_work = 0
        self._runners: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._bell = asyncio.Semaphore(0)
        self._all_ended = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="pgqueue-loop", daemon=True)
        forks.register(self)
        self._thread.start()

    @property
    def ident(self) -> int:
        return self._thread.ident or 0

    def cancel(self, run: Run) -> None:
        def cancel() -> None:
            if self.runs.is_under_way(run):
                run.cancelled_at = time.monotonic()
                run.runner.cancel()

        self._soon(cancel)

    def replace(self, run: Run) -> None:
        def replace() -> None:
            self._at_work -= 1
            self._start()
            self._gone(run.runner)

        self._soon(replace)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the handlers under way; the buffer must be closed. Returns whether all have ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def after_fork(self) -> None:
        """In a child that a handler forked: end it at the handler's next await. The loop's other tasks are not its."""
        if threading.get_ident() == self.ident:
            self._loop.call_soon(os._exit, 1)

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

    def _wake(self, n: int) -> None:
        def ring() -> None:
            for _ in range(n):
                self._bell.release()

        self._loop.call_soon_threadsafe(ring)

    def _main(self) -> None:
        self._enter()
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            everything = runner.get_loop().create_task(self._all())
            while not everything.done():
                # asyncio raises these two through the loop if a handler's own task raises them; the handler fails.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    self._loop.run_until_complete(everything)

    async def _all(self) -> None:
        for _ in range(self.n):
            self._start()
        await self._all_ended.wait()
        await self._goodbye()

    async def _run(self) -> None:
        buffer, runs, known = self.buffer, self.runs, self.runs.known
        me = asyncio.current_task()
        assert me is not None
        now = self._yielded_at = buffer.clock()
        while True:
            try:
                task = buffer.tasks.popleft()
            except IndexError:
                state = buffer.rest()
                if state is None:
                    return
                if state:
                    await self._bell.acquire()
                    now = buffer.clock()
                continue
            buffer.started(now)
            run = Run(task, now, self, me)
            if known.setdefault(task.id, run) is run:
                self._at_work += 1
                await self._handle(task)
                del known[task.id]
                if run.doubted and not runs.may_go_on(run):
                    return
                if run.cancelled_at is not None:
                    me.uncancel()
                # Runners that wait for the loop are not at work: handlers that only compute run one at a time.
                now = buffer.finished(now, self._at_work)
                self._at_work -= 1
            else:
                runs.refuse(run)
            if now - self._yielded_at > TURN:
                await asyncio.sleep(0)
                now = self._yielded_at = buffer.clock()
