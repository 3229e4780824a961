"""A crew: a fetcher thread with its buffer and runners, for one kind of handler, sync or async.

While some queues hold all runners that they may (shares.py), an idle runner waits for the tasks of the others. They may
be behind a million tasks of those queues, so the fetcher asks for them by themselves: at once, if it takes tasks of all
queues for the buffer as well; each AGAIN seconds, while there are tasks in the buffer; and by a take that waits, while
there are none. That take ends when the buffer becomes hungry.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .._calls.take import Taken
from .._engine.outages import AWAY, Pauses
from .._engine.owners import Owned
from .._values.logs import log
from ..errors import ClosedError, Error
from .buffer import STALE
from .runners import Coroutines, Threads
from .settler import Settler
from .settlers import Settlers
from .sources import Source

if TYPE_CHECKING:
    from .._sync.client import Client


REFUSED = (1.0, 1.0)  # seconds to pause after a take that the server refused, for example since rights are missing
CATCH_UP = 0.01  # seconds until the next look whether the settler has caught up
REOPEN = 0.1  # seconds until the next look whether it has caught up with one of the queues
AGAIN = 0.05  # seconds until the next take for idle runners, while there are tasks that they may not start


class Crew:
    """Takes tasks from `queues` for its runners until stop(). Calls `closed` if the client is closed.

    It calls `seen` with the tasks that it has taken, once they are in the buffer.
    """

    def __init__(
        self,
        client: Client,
        queues: list[str],
        runners: Threads | Coroutines,
        settler: Settler | Settlers,
        source: Source,
        closed: Callable[[], None],
        seen: Callable[[list[Taken]], None] = lambda tasks: None,
    ) -> None:
        self._client = client
        self.queues = queues  # replaced as a whole: the fetcher may be reading it
        self._runners = runners
        self._buffer = runners.buffer
        self._settler = settler
        self._source = source
        self._closed = closed
        self._seen = seen
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._signals: weakref.WeakSet[threading.Event] = weakref.WeakSet()  # that the fetcher may be waiting for
        self._yields = False  # whether the present take ends when the buffer is hungry
        self._buffer.hungry.interrupt = self._interrupt
        self._unstarted: list[Taken] = []
        self.thread = Owned("pgqueue-fetcher", self._fetch, self._closing.is_set)
        self.thread.start()

    def stop(self) -> None:
        """Stop taking and starting tasks."""
        with self._lock:
            self._closing.set()
            waited_for = list(self._signals)
        self._unstarted = self._buffer.close()
        for signal in waited_for:
            signal.set()

    def leave(self, queue: str) -> None:
        """Another crew serves this queue from now on; a take under way may still bring a task of it."""
        self.queues = [one for one in self.queues if one != queue]

    def idle_for(self, now: float) -> float:
        """For how many seconds no task was started although a runner is idle; 0.0: none is."""
        return self._buffer.idle_for(now)

    def startable(self) -> Sequence[str]:
        """The queues of which an idle runner may start a task."""
        return self._buffer.startable(self.queues)

    def give_back(self) -> None:
        """Release the tasks that were not started; after stop()."""
        self._settler.give_back(self._unstarted)

    def join(self, timeout: float) -> bool:
        """Wait for fetcher and handlers, at most these seconds; after stop(). Returns whether all have ended."""
        until = time.monotonic() + timeout
        self.thread.join(timeout)
        return not self.thread.is_alive() and self._runners.join(max(0.0, until - time.monotonic()))

    def _fetch(self) -> None:
        outage, pauses, refusals = self._client.shell.core.outage, Pauses(), Pauses(*REFUSED)
        while not self._closing.is_set():
            try:
                if queues := self._settler.open_queues(self.queues):
                    self._fetch_some(queues)
                else:
                    self._closing.wait(CATCH_UP)  # this bounds the tasks that a crash would repeat
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

    def _fetch_some(self, queues: Sequence[str]) -> None:
        """Take tasks once, or wait until some are wanted."""
        wanted, buffered = self._buffer.wanted(queues), bool(self._buffer.tasks)
        # Tasks in the buffer must not become stale while the fetcher waits for more, nor may a queue be left out.
        timeout = REOPEN if len(queues) < len(self.queues) else STALE if buffered else None
        if wanted.some:
            at_once = wanted.n or buffered
            self._fill(wanted.some, wanted.few, 0 if at_once else timeout)
        if wanted.n:
            self._fill(wanted.queues, wanted.n, timeout)
        elif buffered or not wanted.some:
            self._buffer.hungry.wait(AGAIN if wanted.some else STALE)

    def _fill(self, queues: Sequence[str], n: int, timeout: float | None) -> None:
        """Take tasks. If runners may not start those of all queues at present, wait for no longer than that."""
        self._yields = timeout != 0 and len(queues) < len(self.queues)
        try:
            tasks = self._take(queues, n, timeout)
        finally:
            self._yields = False
        self._settler.give_back(self._buffer.fill(tasks))
        self._seen(tasks)

    def _take(self, queues: Sequence[str], n: int, timeout: float | None) -> list[Taken]:
        return self._source.take(queues, n, timeout, self._signal, self._stopped)

    def _stopped(self) -> bool:
        """Whether the present take is to end."""
        return self._closing.is_set() or (self._yields and self._buffer.hungry.is_set())

    def _interrupt(self) -> None:
        """The buffer is hungry."""
        if self._yields:
            with self._lock:
                waited_for = list(self._signals)
            for signal in waited_for:
                signal.set()

    def _signal(self) -> threading.Event:
        """An event that stop() sets too, and the hunger of the buffer if it ends the take."""
        made = threading.Event()
        with self._lock:
            self._signals.add(made)
            if self._stopped():
                made.set()
        return made
