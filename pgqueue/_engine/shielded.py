"""Calls that Ctrl-C does not cut off: they go on in a thread of their own, and only the wait for them ends.

For what must not stop halfway and is rare: to ask psycopg_pool for a connection or to give it one back, to make a pool,
to start the listener. A `try` cannot guard these. An interrupt may come at the end of any call: then what the call
returned is lost, for example the connection that it took out of the pool, and what it began stays half done. The
condition variables of `threading`, on which psycopg_pool waits, then even stay locked.

Only the main thread is interrupted. Other threads make the call themselves.
"""

from __future__ import annotations

import threading
from _thread import start_new_thread  # Thread.start() waits on a condition variable
from collections.abc import Callable
from contextvars import copy_context
from typing import Generic, TypeVar

T = TypeVar("T")


def shielded(work: Callable[[], T], unclaimed: Callable[[T], object] = lambda result: None) -> T:
    """Call `work`, to its end, and return or raise what it does.

    Args:
        unclaimed: called with the result, if the caller was interrupted and has not got it.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    call = _Call(work, unclaimed)
    try:
        try:
            start_new_thread(copy_context().run, (call.run,))
        except RuntimeError:  # the interpreter is about to end
            return work()
        call.ended.acquire()
        if call.error is not None:
            raise call.error
        for result in call.results:
            return result
        raise AssertionError("a call has no result")
    except BaseException:
        call.abandon()
        raise


class _Call(Generic[T]):
    """The caller and the thread both take the result by a pop, which only one of them can do."""

    def __init__(self, work: Callable[[], T], unclaimed: Callable[[T], object]) -> None:
        self.ended = threading.Lock()
        self.ended.acquire()
        self.error: BaseException | None = None
        self._result: list[T] = []
        self.results = iter(self._result.pop, object())
        self._work = work
        self._unclaimed = unclaimed
        self._abandoned = False

    def run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:
            self.error = error
        self.ended.release()
        if self._abandoned:
            self.abandon()

    def abandon(self) -> None:
        """The caller was interrupted. Called again when the call has ended, if it had not."""
        self._abandoned, self.error = True, None  # which refers to the caller's frame, and that to this
        try:
            result = self._result.pop()
        except IndexError:
            return
        self._unclaimed(result)
