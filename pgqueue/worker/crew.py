"""A crew: a fetcher thread with its buffer and runners, for one kind of handler, sync or async."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .._calls.take import Taken
from .._engine import takes
from .._engine.outages import AWAY, Pauses
from .._engine.owners import Owned
from ..errors import ClosedError, Error
from .buffer import STALE
from .runners import Coroutines, Threads
from .settler import Settler

if TYPE_CHECKING:
    from .._sync.client import Client

log = logging.getLogger("pgqueue")

REFUSED = (1.0, 1.0)  # seconds to pause after a take that the server refused, for example since rights are missing
CATCH_UP = 0.01  # seconds until the next look whether the settler has caught up
REOPEN = 0.1  # seconds until the next look whether it has caught up with one of the queues


class Crew:
    """Takes tasks from `queues` for its runners until stop(). Calls `closed` if the client is closed.

    It calls `seen` with the tasks that it has taken, once they are in the buffer.
    """

    def __init__(
        self,
        client: Client,
        queues: list[str],
        runners: Threads | Coroutines,
        settler: Settler,
        closed: Callable[[], None],
        seen: Callable[[list[Taken]], None] = lambda tasks: None,
    ) -> None:
        self._client = client
        self.queues = queues
        self._runners = runners
        self._buffer = runners.buffer
        self._settler = settler
        self._closed = closed
        self._seen = seen
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._signals: weakref.WeakSet[threading.Event] = weakref.WeakSet()  # that the fetcher may be waiting for
        self._unstarted: list[Taken] = []
        self.thread = Owned("pgqueue-fetcher", self._fetch, self._closing.is_set)
        self.thread.start()

    def stop(self) -> None:
        """Take no more tasks, and start no more."""
        with self._lock:
            self._closing.set()
            waited_for = list(self._signals)
        self._unstarted = self._buffer.close()
        for signal in waited_for:
            signal.set()

    def idle_for(self, now: float) -> float:
        """For how many seconds no task was started although a runner is idle; 0.0: none is."""
        return self._buffer.idle_for(now)

    def give_back(self) -> None:
        """Release the tasks that were not started; after stop()."""
        self._settler.give_back(self._unstarted)

    def join(self, timeout: float) -> bool:
        """Wait for fetcher and handlers, for so many seconds; after stop(). Returns whether all have ended."""
        until = time.monotonic() + timeout
        self.thread.join(timeout)
        return not self.thread.is_alive() and self._runners.join(max(0.0, until - time.monotonic()))

    def _fetch(self) -> None:
        outage, pauses, refusals = self._client.shell.core.outage, Pauses(), Pauses(*REFUSED)
        while not self._closing.is_set():
            try:
                if not (queues := self._settler.open_queues(self.queues)):
                    self._closing.wait(CATCH_UP)  # this bounds the tasks that a crash would repeat
                elif wanted := self._buffer.wanted():
                    tasks = self._take(queues, wanted)
                    self._settler.give_back(self._buffer.fill(tasks))
                    self._seen(tasks)
                else:
                    self._buffer.hungry.wait(STALE)
                self._settler.give_back(self._buffer.surplus())
                pauses.succeeded()
                refusals.succeeded()
            except ClosedError:
                self._closed()
                return
            except AWAY as error:
                outage.met(error)
                self._closing.wait(pauses.failed())
            except Error as error:
                log.warning("tasks of %s cannot be taken, tried again: %s", ", ".join(self.queues), error)
                self._closing.wait(refusals.failed())

    def _take(self, queues: Sequence[str], n: int) -> list[Taken]:
        # Tasks in the buffer must not become stale while the fetcher waits for more, nor may a queue be left out.
        timeout = REOPEN if len(queues) < len(self.queues) else STALE if self._buffer.tasks else None
        shell = self._client.shell
        listener = shell.listener()
        stopped = self._closing.is_set
        flow = takes.take(shell.core, listener, self._signal, queues, n, timeout, stopped, timed=True)
        return shell.drive(flow)

    def _signal(self) -> threading.Event:
        """An event that stop() sets too."""
        made = threading.Event()
        with self._lock:
            self._signals.add(made)
            if self._closing.is_set():
                made.set()
        return made
