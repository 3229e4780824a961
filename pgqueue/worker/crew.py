"""A fetcher thread with its buffer and runners: the part of a worker that handles one kind of handler."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._calls.take import Taken
from .._engine import flows
from ..errors import ClosedError, Error
from .buffer import STALE
from .runners import Coroutines, Threads
from .settler import Settler

if TYPE_CHECKING:
    from .._sync.client import Client

log = logging.getLogger("pgqueue")

PAUSE = 1.0  # after an error that taking could not mend by itself, seconds
CATCH_UP = 0.01  # before looking again whether the settler caught up, seconds


class Crew:
    """Takes from `queues` whatever its runners want, from its making to stop(). Calls `closed` if the client is."""

    def __init__(
        self,
        client: Client,
        queues: list[str],
        runners: Threads | Coroutines,
        settler: Settler,
        closed: Callable[[], None],
    ) -> None:
        self._client = client
        self._queues = queues
        self._runners = runners
        self._buffer = runners.buffer
        self._settler = settler
        self._closed = closed
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._signals: weakref.WeakSet[threading.Event] = weakref.WeakSet()  # what the fetcher may be waiting for
        self._unstarted: list[Taken] = []
        self._thread = threading.Thread(target=self._fetch, name="pgqueue-fetcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take nothing more, and start nothing more."""
        with self._lock:
            self._closing.set()
            waited_for = list(self._signals)
        self._unstarted = self._buffer.close()
        for signal in waited_for:
            signal.set()

    def give_back(self) -> None:
        """Give back what was not started; after stop()."""
        self._settler.give_back(self._unstarted)

    def join(self) -> None:
        """Wait for the handlers under way; after stop()."""
        self._thread.join()
        self._runners.join()

    def _fetch(self) -> None:
        while not self._closing.is_set():
            try:
                if self._settler.behind():  # what a crash would repeat is bounded
                    self._closing.wait(CATCH_UP)
                elif wanted := self._buffer.wanted():
                    self._settler.give_back(self._buffer.fill(self._take(wanted)))
                else:
                    self._buffer.hungry.wait(STALE)
                self._settler.give_back(self._buffer.surplus())
            except ClosedError:
                self._closed()
                return
            except Error as error:
                log.warning("taking tasks of %s again in %s s: %s", ", ".join(self._queues), PAUSE, error)
                self._closing.wait(PAUSE)
            except Exception:
                log.exception("taking tasks of %s failed, again in %s s", ", ".join(self._queues), PAUSE)
                self._closing.wait(PAUSE)

    def _take(self, n: int) -> list[Taken]:
        # Tasks that lie in the buffer must not get old while this waits for more.
        timeout = STALE if self._buffer.tasks else None
        shell = self._client.shell
        listener = shell.listener()
        flow = flows.take(shell.core, listener, self._signal, self._queues, n, timeout, self._closing.is_set)
        return shell.drive(flow)

    def _signal(self) -> threading.Event:
        """An event that stop() sets too, whichever comes first: the event or the stop."""
        made = threading.Event()
        with self._lock:
            self._signals.add(made)
            if self._closing.is_set():
                made.set()
        return made
