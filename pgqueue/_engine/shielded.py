"""Calls that Ctrl-C does not cut off: they go on in a thread of their own, and only the wait for them ends.

For rare calls that must not stop halfway: to ask psycopg_pool for a connection or to give it one back, to make a pool,
to start the listener. A `try` cannot guard these. An interrupt may arrive at the end of any call: then its return value
is lost, for example the connection that it took out of the pool, and its work stays half done. The condition variables
of `threading`, on which psycopg_pool waits, then even stay locked. Such a call stores its result itself where another
call finds it, since its caller may be gone.

Only the main thread is interrupted. Other threads make the call themselves.
"""

from __future__ import annotations

import threading
from _thread import start_new_thread  # Thread.start() waits on a condition variable
from collections.abc import Callable
from contextvars import copy_context
from typing import Generic, TypeVar

T = TypeVar("T")


def shielded(work: Callable[[], T]) -> T:
    """Call `work`, to its end, and return its result or raise its error. If the caller is interrupted, that is lost."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    call = _Call(work)
    try:
        start_new_thread(copy_context().run, (call.run,))
    except RuntimeError:  # the interpreter is about to end
        return work()
    call.ended.acquire()
    if call.error is not None:
        error, call.error = call.error, None  # it refers to this frame
        raise error
    (result,) = call.result
    return result


class _Call(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self.ended = threading.Lock()
        self.ended.acquire()
        self.error: BaseException | None = None
        self.result: list[T] = []
        self._work = work

    def run(self) -> None:
        try:
            self.result.append(self._work())
        except BaseException as error:
            self.error = error
        self.ended.release()
