"""A loop for the async jobs of a queue that has sync ones too, and for its async batches: threads run them there, and
wait.

One kind of runner serves a queue, since a task is taken before its job is known. The loop's thread begins with the
first such task. A job that blocks the loop for longer than its time limit is left behind with it: the next task gets a
new loop (overdue.py). Each queue has its own loop, so that a job that blocks one holds up no other queue.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from .._engine import forks
from .._engine.owners import Owned
from .homes import AsyncHomes
from .loops import Goodbye, Hello
from .runs import STOPPED, Run

T = TypeVar("T")
Job = Callable[[AsyncHomes], Coroutine[Any, Any, T]]


class Bridge:
    """A loop in a thread, or none yet; `make` makes the shells for the jobs in a loop.

    Args:
        enter: called first in the thread.
        hooks: called for each loop. The first that it returns is awaited next; if that returns False, no job runs
            there. The second is awaited last.
    """

    def __init__(
        self,
        make: Callable[[], AsyncHomes],
        enter: Callable[[], object],
        hooks: Callable[[], tuple[Hello, Goodbye]],
    ) -> None:
        self._make = make
        self.enter = enter
        self._hooks = hooks
        self._lock = threading.Lock()
        self._present: _Side | None = None
        forks.register(self)

    def run(self, job: Job[T], run: Run | None = None) -> T:
        """Run a job in the loop; blocks. The loop is the ender of the run. Raises the job's exception.

        Args:
            run: None: nothing ends it but the end of the loop; of a batch, since each of its tasks has a limit.
        """
        side = self._enter()
        try:
            return side.run(job, run)
        finally:
            self._leave(side)

    def close(self) -> None:
        """Cancel the jobs under way, and end the loop. Does not wait."""
        if (side := self._at_present()) is not None:
            side.close()

    def join(self, timeout: float) -> None:
        """Wait for the end of the loop, at most this number of seconds; after close()."""
        if (side := self._at_present()) is not None:
            side.join(timeout)

    def after_fork(self) -> None:
        if self._present is not None:
            self._present.after_fork()

    def abandoned(self, side: _Side) -> bool:
        with self._lock:
            if side is not self._present:
                return False
            self._present = None
            return True

    def _at_present(self) -> _Side | None:
        with self._lock:
            return self._present

    def _enter(self) -> _Side:
        with self._lock:
            if self._present is None:
                self._present = _Side(self, self._make(), *self._hooks())
            self._present.inside += 1
            return self._present

    def _leave(self, side: _Side) -> None:
        """A run in a loop is over. The last one in a loop that was abandoned ends the loop."""
        with self._lock:
            side.inside -= 1
            is_last = side is not self._present and side.inside == 0
        if is_last:
            side.close()


class _Side:
    """One loop. It can end the runs in it.

    Attributes:
        inside: how many threads run a job there, or are about to. Guarded by the bridge's lock.
    """

    def __init__(self, bridge: Bridge, homes: AsyncHomes, hello: Hello, goodbye: Goodbye) -> None:
        self._bridge = bridge
        self.inside = 0
        self._homes = homes
        self._hello, self._goodbye = hello, goodbye
        self._loop = asyncio.new_event_loop()
        self._good = concurrent.futures.Future[bool]()  # whether its hello was good
        self._closing = False
        self._left = False  # _leave has ended: only then the loop does
        self._thread = Owned("pgqueue-bridge", self._main, lambda: self._closing, lambda error: self.abandon())
        self._thread.start()

    # --- the ender of its runs

    def end(self, run: Run) -> None:
        def cancel() -> None:
            if run.ended_at is None and run.coroutine is not None:
                run.ended_at = time.monotonic()
                run.coroutine.cancel()

        self._soon(cancel)

    def soften(self, run: Run) -> None:
        def cancel() -> None:
            if run.ended_at is None and run.coroutine is not None:
                run.softening = True
                run.coroutine.cancel()

        self._soon(cancel)

    def abandon(self) -> bool:
        return self._bridge.abandoned(self)

    def occupant(self) -> object:
        return asyncio.current_task(self._loop)

    def stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else "its thread has ended"

    # --- for the bridge

    def run(self, job: Job[T], run: Run | None) -> T:
        async def noted() -> T:
            if run is None:
                return await job(self._homes)
            if run.cut is not None or run.cancelled:  # the loop was busy, and is too late for this job
                raise asyncio.CancelledError
            run.coroutine = asyncio.current_task()
            try:
                return await job(self._homes)
            finally:
                run.coroutine = None  # in the loop, as the callbacks that look at it

        good = self._good.result()
        if run is None:
            if not good:
                raise RuntimeError(STOPPED)
            return asyncio.run_coroutine_threadsafe(noted(), self._loop).result()
        if not good:
            run.cut = STOPPED  # the worker ends, since a hook has failed
            raise RuntimeError(run.cut)
        run.ender = self
        try:
            return asyncio.run_coroutine_threadsafe(noted(), self._loop).result()
        finally:
            run.ender = None

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(self._leave(), self._loop).add_done_callback(
                lambda _: self._soon(self._stop)
            )

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def after_fork(self) -> None:
        """In a child that a job forked: end it at the job's next await."""
        if threading.get_ident() == self._thread.ident:
            self._loop.call_soon(os._exit, 1)

    def _soon(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback)

    def _main(self) -> None:
        self._bridge.enter()
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._begin())
            while not self._left:  # else it was a job that stopped the loop; by _closing, _leave could be left out
                with contextlib.suppress(SystemExit, KeyboardInterrupt):  # of a job, raised through the loop; it fails
                    self._loop.run_forever()
        except BaseException:
            self._loop.run_until_complete(self._cancel_others())  # threads wait for them
            raise
        finally:
            self._loop.close()

    def _stop(self) -> None:
        self._left = True
        self._loop.stop()

    async def _begin(self) -> None:
        try:
            self._good.set_result(await self._hello())
        except BaseException as error:
            self._good.set_exception(error)

    async def _cancel_others(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _leave(self) -> None:
        await self._cancel_others()
        await self._goodbye()
        await self._homes.close()
