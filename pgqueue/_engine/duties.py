"""The clean-up of a call of the main thread, kept where Ctrl-C does not reach it.

Theory of operation
-------------------
A call cleans up after itself, in a `finally`. Ctrl-C may interrupt any step of that, too, and the rest of the clean-up
is then left out. A `finally` around the `finally` only moves the problem: a third Ctrl-C may interrupt that. So the
clean-up of a call, its duty, is entered into a dictionary of the client before the call has anything, with the frame
that does the clean-up, and is removed as the last step. If a frame has ended and its duty is still there, the clean-up
was interrupted, and another thread, or the next call of the main thread, fulfils the duty in its place. The threads
that do so are those that the rest could hold up: one that waits for a connection or for its turn to put, and the
listener, which looks several times a second.

    begin   duties[duty] = frame    the duty has an owner
    ...                             the call, which is interrupted once or more often
    end     del duties[duty]        the frame has done its duty, or the caller has the result

Both are single instructions without a call, so CPython handles no signal between them and the next instruction. For
example, a take ends its duty and returns its tasks: at each moment the duty or the caller has them.

Other threads can find out whether a frame has ended: frame.clear() refuses to clear one that is executing, in any
thread. A weak reference to a local variable would be cleared too late: the traceback of the interrupt keeps the
variables alive, in an interactive interpreter until the next error.

Duties are fulfilled only while the main thread is in none of the client's calls. So no duty waits for a lock that this
thread holds in the middle of a call, below a handler of a signal, and none is fulfilled while its own frame runs. To
fulfil a duty twice does no harm.

Other threads are not interrupted and have no duties here.
"""

from __future__ import annotations

import sys
import threading
from threading import get_ident
from types import FrameType
from typing import Protocol

from . import forks
from .shielded import shielded


class Duty(Protocol):
    def fulfil(self) -> None:
        """Clean up. May be called again, after a part of it was done; runs where Ctrl-C does not reach."""


class Duties:
    """The duties of one client's calls."""

    def __init__(self) -> None:
        self.open: dict[Duty, FrameType] = {}
        self.main = threading.main_thread().ident
        self._lock = threading.RLock()  # a finaliser may call while this thread is in here
        forks.register(self)

    def settle(self, besides: Duty | None = None) -> None:
        """Fulfil the duties whose frames have ended, unless the main thread is in a call that has a duty.

        Args:
            besides: the caller's, which does not count.
        """
        if not self.open:
            return
        with self._lock:
            left = self.open.copy()
            if besides is not None:
                left.pop(besides, None)
            if any(is_running(frame) for frame in left.values()):
                return
            for duty in left:
                duty.fulfil()
                self.open.pop(duty, None)

    def after_fork(self) -> None:
        self.open = {}
        self.main = get_ident()
        self._lock = threading.RLock()


def begin(duties: Duties, duty: Duty) -> None:
    """Make the caller's frame responsible for a duty, if Ctrl-C may interrupt it."""
    if get_ident() == duties.main:
        if duties.open:
            shielded(duties.settle)
        duties.open[duty] = sys._getframe(1)


def end(duties: Duties, duty: Duty) -> None:
    """The caller has done its duty, or has none any more. Nothing may be executed between this and its return."""
    if duty in duties.open:
        del duties.open[duty]


def is_running(frame: FrameType) -> bool:
    """Whether a function's frame has not ended. A frame that has ended loses its variables."""
    try:
        frame.clear()
    except RuntimeError:
        return True
    return False
