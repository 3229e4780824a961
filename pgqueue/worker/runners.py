"""Runners take tasks from a buffer and run their handlers: persistent threads, or coroutines of one loop in a thread.

A task costs no future, no queue entry and no hand-over: a runner pops the next task itself, and sleeps only when there
is none. Both kinds have the same interface: make, wake(n), join.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable

from .._calls.take import Taken
from .buffer import Buffer

Handle = Callable[[Taken], None]
AsyncHandle = Callable[[Taken], Awaitable[None]]

TURN = 0.001  # seconds that handlers without an await may keep the loop


class Threads:
    """`n` threads that call `handle`, which must not raise."""

    def __init__(self, n: int, handle: Handle) -> None:
        self.buffer = Buffer(self._wake)
        self._handle = handle
        self._bell = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._run, name=f"pgqueue-runner-{i}", daemon=True) for i in range(n)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for the handlers under way; the buffer must be closed."""
        for thread in self._threads:
            thread.join()

    def _wake(self, n: int) -> None:
        self._bell.release(n)

    def _run(self) -> None:
        buffer, pop, handle, n = self.buffer, self.buffer.tasks.popleft, self._handle, len(self._threads)
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
            handle(task)
            now = buffer.finished(now, n)


class Coroutines:
    """`n` coroutines that await `handle`, which must not raise, in a loop of their own; `goodbye` is awaited last."""

    def __init__(self, n: int, handle: AsyncHandle, goodbye: Callable[[], Awaitable[None]]) -> None:
        self.buffer = Buffer(self._wake)
        self._n = n
        self._handle = handle
        self._goodbye = goodbye
        self._at_work = 0
        self._loop = asyncio.new_event_loop()
        self._bell = asyncio.Semaphore(0)
        self._thread = threading.Thread(target=self._main, name="pgqueue-loop", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the handlers under way; the buffer must be closed."""
        self._thread.join()

    def _wake(self, n: int) -> None:
        def ring() -> None:
            for _ in range(n):
                self._bell.release()

        self._loop.call_soon_threadsafe(ring)

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            everything = runner.get_loop().create_task(self._all())
            while not everything.done():
                # asyncio raises these two through the loop if a handler's own task raises them; the handler fails.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    self._loop.run_until_complete(everything)

    async def _all(self) -> None:
        await asyncio.gather(*(self._run() for _ in range(self._n)))
        await self._goodbye()

    async def _run(self) -> None:
        buffer = self.buffer
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
            self._at_work += 1
            await self._handle(task)
            # Runners that wait for the loop are not at work: handlers that only compute run one at a time.
            now = buffer.finished(now, self._at_work)
            self._at_work -= 1
            if now - self._yielded_at > TURN:
                await asyncio.sleep(0)
                now = self._yielded_at = buffer.clock()
