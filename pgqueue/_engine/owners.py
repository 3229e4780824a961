"""Owners: no thread and no asyncio task of pgqueue ends in silence. tests/project/test_owners.py finds any other.

    Owned      a thread with a loop: the listener, a worker's runners, fetchers, settler and watch, a monitor, a clock.
               An error that ends it before its time, SystemExit too, is logged, and the loop begins again after a
               pause.
    OwnedTask  the same for an asyncio task, as of an awaiting client's election.
    errand     a thread with work that ends by itself, as the reaping of a process: an error is logged.
    later      the same after a time.

A `try` around each turn of each loop misses the errors that its author did not think of: the loops caught `Exception`,
so a handler's SystemExit and GeneratorExit passed them, and the thread was gone while the process and its health checks
went on. A loop has to cope with a turn that was left half done: it begins again with its state as it is.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from .._values.logs import log
from .outages import TELL, Pauses

STEADY = 5.0  # seconds after which a loop that ends again has a short pause again
SHORTEST = 0.1  # seconds before a task is replaced: the end of its event loop takes less
STEP = 0.05  # seconds between two looks, in a pause, whether the time of the loop is over

_living: weakref.WeakSet[Owned] = weakref.WeakSet()


def living() -> list[Owned]:
    """The owned threads of this process that are alive."""
    return [one for one in list(_living) if one.is_alive()]


class Attempts:
    """The ends of a loop before its time: the pauses before it begins again, and the log."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pauses = Pauses()
        self._began = time.monotonic()
        self._tell_at = 0.0

    def pause(self) -> float:
        """It has ended. Returns for how many seconds to pause."""
        now = time.monotonic()
        if now - self._began >= STEADY:
            self._pauses.succeeded()
        pause = self._pauses.failed()
        self._began = now + pause
        return pause

    def tell(self, error: BaseException) -> None:
        """Log why it ended, unless that was logged in the last TELL seconds."""
        if (now := time.monotonic()) >= self._tell_at:
            self._tell_at = now + TELL
            log.error("%s was ended by an error, and goes on: %s", self._name, _said(error), exc_info=error)


class Owned(threading.Thread):
    """A daemon thread that runs `work` until it returns; call start().

    Args:
        name: of the thread, in logs too.
        work: a loop.
        over: whether the loop may end: the thing that it serves is closed.
        instead: called with the error in place of running `work` again, where only another loop can go on.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        over: Callable[[], bool],
        instead: Callable[[BaseException], object] | None = None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._over = over
        self._instead = instead
        _living.add(self)

    def run(self) -> None:
        attempts = Attempts(self.name)
        while True:
            try:
                self._work()
                return
            except BaseException as error:
                attempts.tell(error)
                failure = error
            if not self._waits(attempts.pause()):
                return
            if self._instead is not None:
                self._instead(failure)
                return

    def _waits(self, seconds: float) -> bool:
        """Pause. Returns whether the loop is still wanted."""
        until = time.monotonic() + seconds
        while not self._over() and (left := until - time.monotonic()) > 0:
            time.sleep(min(STEP, left))
        return not self._over()


class OwnedTask:
    """An asyncio task that runs `work` until it returns; begins at once, in the running loop.

    A task that is cancelled has to end: asyncio.run() cancels all tasks at its end, and waits for them. So another task
    takes its place, by a timer of the loop. A loop that ends does not wait for it, and nothing is logged then.
    """

    def __init__(self, name: str, work: Callable[[], Coroutine[Any, Any, None]], over: Callable[[], bool]) -> None:
        self._name = name
        self._work = work
        self._over = over
        self._attempts = Attempts(name)
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._start()

    def is_current(self) -> bool:
        return self._task is asyncio.current_task()

    async def join(self) -> None:
        await self._ended.wait()

    def _start(self) -> None:
        self._task = self._loop.create_task(self._work(), name=self._name)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None or self._over():
            self._ended.set()
        else:
            self._loop.call_later(max(SHORTEST, self._attempts.pause()), self._replace, error)

    def _replace(self, error: BaseException) -> None:
        if self._over():
            self._ended.set()
        else:
            self._attempts.tell(error)
            self._start()


def errand(name: str, work: Callable[..., object], *args: Any) -> threading.Thread:
    """A daemon thread that calls `work` once; call start(). An error is logged."""
    return threading.Thread(target=_logged, args=(name, work, *args), name=name, daemon=True)


def later(seconds: float, name: str, work: Callable[..., object], *args: Any) -> None:
    """Call `work` in a daemon thread after a number of seconds. An error is logged."""
    timer = threading.Timer(seconds, _logged, (name, work, *args))
    timer.name, timer.daemon = name, True
    timer.start()


def _logged(name: str, work: Callable[..., object], *args: Any) -> None:
    try:
        work(*args)
    except BaseException as error:
        log.error("%s has failed: %s", name, _said(error), exc_info=error)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
