"""Bells: signals for a program that waits in an event loop of its own, for a descriptor.

Any thread may ring. A bell that has rung is readable until it is quiet, so a ring is never lost, and many rings before
the program looks are one.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from time import monotonic


class Bell:
    """A descriptor that is readable once a thread has rung."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        for end in (self._ours, self._theirs):
            end.setblocking(False)

    def fileno(self) -> int:
        """The descriptor; -1 once the bell is closed."""
        return self._ours.fileno()

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # full: it is readable; closed: no program waits for it any more
            self._theirs.send(b"\0")

    def quiet(self) -> None:
        """Not readable from now on, until the next ring."""
        with contextlib.suppress(BlockingIOError):
            while len(self._ours.recv(4096)) == 4096:
                pass

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


class Ring:
    """A signal (steps.py) that rings a bell when it is set."""

    __slots__ = ("_bell", "_set")

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._set = False

    def set(self) -> None:
        self._set = True  # first: the program may look as soon as the bell rings
        self._bell.ring()

    def is_set(self) -> bool:
        return self._set


class Alarms:
    """The moments at which bells are to ring, for the listener's thread. Safe from any thread.

    A bell has one alarm at most. `asleep_until` is the end of the thread's present sleep: an alarm before it has to
    wake the thread, and any other one costs no system call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moments: dict[Bell, float] = {}
        self._asleep_until = float("inf")

    def set(self, bell: Bell, moment: float) -> bool:
        """Ring at this monotonic time, in place of the one before. True: the caller has to wake the thread."""
        with self._lock:
            self._moments[bell] = moment
            return moment < self._asleep_until

    def drop(self, bell: Bell) -> None:
        with self._lock:
            self._moments.pop(bell, None)

    def ring(self) -> None:
        """Ring the bells whose moment has come."""
        if not self._moments:
            return
        with self._lock:
            due = self._due()
            for bell in due:
                del self._moments[bell]
        for bell in due:
            bell.ring()

    def _due(self) -> list[Bell]:
        now = monotonic()
        return [bell for bell, moment in self._moments.items() if moment <= now]

    def sleep(self, until: float) -> float:
        """Until when the thread may sleep, which has nothing else to do before `until`."""
        with self._lock:
            self._asleep_until = min(until, *self._moments.values()) if self._moments else until
            return self._asleep_until
