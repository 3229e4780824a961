"""The thread of a monitor: periodic work until it is closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .._engine import forks
from .._engine.owners import Owned
from .._sync.elections import Election
from .._values.logs import log
from ..errors import ClosedError


class Rounds:
    """Starts its thread when made. It ends with close(), or when the client is closed; a forked child has none.

    Args:
        name: the thread's name.
        work: called with these rounds. It returns the seconds until its next call, None for the next period. A
            ClosedError ends the thread.
        interval: the period, in seconds.
        election: closed with the rounds.
    """

    def __init__(
        self, name: str, work: Callable[[Rounds], float | None], interval: float, election: Election | None = None
    ) -> None:
        self._work = work
        self._interval = interval
        self._election = election
        self._stopped = threading.Event()
        self._thread = Owned(name, self._run, self._stopped.is_set)
        forks.register(self)
        self._thread.start()

    @property
    def leading(self) -> bool:
        """Whether this process is the elected leader; without an election it always is."""
        return self._election is None or self._election.leader

    def pause(self, seconds: float) -> bool:
        """Sleep, in the thread. Returns whether the thread has to end."""
        return self._stopped.wait(seconds)

    def close(self) -> None:
        """End the thread, and wait for its end. May be called twice, and in the thread itself."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        if self._election is not None:
            self._election.close()

    def after_fork(self) -> None:
        self._stopped = threading.Event()
        self._stopped.set()
        self._election = None

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            try:
                pause = self._work(self)
            except ClosedError:
                return
            except Exception:
                log.exception("%s goes on after an error", self._thread.name)
                pause = None
            now = time.monotonic()
            due = max(due + self._interval, now) if pause is None else now + pause  # not now + period, which drifts
            if self._stopped.wait(due - now):
                return
