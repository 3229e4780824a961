"""Soft time limits: SoftTimeLimit is raised in a handler, which may then finish in order before its time limit.

- A coroutine gets it at its present await. asyncio can throw nothing but a CancelledError into a task, so the run's
  task is cancelled, and steered() throws SoftTimeLimit into the handler instead.
- A thread cannot be interrupted safely (overdue.py), so its handler asks: checkpoint() raises it.
- In a child process a signal raises it, in the main thread, where the handler runs (child.py).

Races. The handler's runner T1, the watch T2:
  the soft limit and the limit pass together    asyncio makes one CancelledError of two cancellations. steered() looks
                                                whether the run is cut or cancelled; then the CancelledError passes.
  the handler ends before the callback of T2    the callback looks whether the run is under way (loops.py).
"""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from ..errors import SoftTimeLimit
from .runs import Run, current

T = TypeVar("T")

MESSAGE = "its soft time limit has passed"


def checkpoint() -> None:
    """Give the time limits of a sync handler a place to act. Call it between two steps of long work.

    In a handler that runs in a thread, the first call after its soft time limit raises SoftTimeLimit. Elsewhere it does
    nothing: an async handler, and a handler in a process, get that exception at any point.

    Raises:
        SoftTimeLimit: the soft time limit of the handler that calls this has passed.
    """
    run = current.get()
    if run is not None and run.softened and not run.softening and run.runner is threading.current_thread():
        run.softening = True  # once
        raise SoftTimeLimit(MESSAGE)


def softened(run: Run) -> Callable[[], bool]:
    """Whether the cancellation that a coroutine has just met is its soft time limit. True once."""

    def is_soft() -> bool:
        soft, run.softening = run.softening, False
        return soft and run.cut is None and not run.cancelled

    return is_soft


@types.coroutine
def steered(handler: Coroutine[Any, Any, T], is_soft: Callable[[], bool]) -> Generator[Any, Any, T]:
    """Await a handler; a cancellation that is_soft() reaches it as SoftTimeLimit."""
    error: BaseException | None = None
    try:
        while True:
            waited = handler.send(None) if error is None else handler.throw(error)
            error = None
            try:
                yield waited
            except asyncio.CancelledError as cancelled:
                error = cancelled
                if is_soft():
                    if me := asyncio.current_task():
                        me.uncancel()  # else a timeout() in the handler would take it for a cancellation
                    error = SoftTimeLimit(MESSAGE)
            except BaseException as other:
                error = other
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        handler.close()
