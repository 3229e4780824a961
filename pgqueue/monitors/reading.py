"""The reads of monitors: through a client's calls, with a timeout.

A server that hangs, or a network that drops packets, may block a call for minutes. So each read runs in a thread of its
own, and a monitor that gives up waiting leaves the thread behind. A reader has at most one such thread: a read that is
asked for in the meantime waits for its answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

import psycopg

from .._calls import stats as counting
from .._calls.stats import Stats
from .._engine import forks
from .._engine.owners import errand
from .._sync.client import Client
from .._values import arguments
from .._values.arguments import Seconds
from .._values.logs import log
from ..errors import ClosedError, Error

T = TypeVar("T")

TIMEOUT = 5.0  # seconds


class Outage:
    """Logs when a call begins to fail and when it works again, and none of the attempts in between."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._on = False

    def failed(self, error: Exception) -> None:
        if not self._on:
            log.warning("%s: %s", self._what, " ".join(str(error).split()) or type(error).__name__)
        self._on = True

    def worked(self) -> None:
        if self._on:
            log.warning("%s: it works again", self._what)
        self._on = False


class Reader(Generic[T]):
    """Calls `function` in a thread, and waits for its result."""

    def __init__(self, function: Callable[[], T], timeout: float | None = TIMEOUT) -> None:
        self._function = function
        self._timeout = timeout
        self._lock = threading.Lock()
        self._running: Future[T] | None = None
        self._outage = Outage("monitors cannot read the queues")
        forks.register(self)

    def read(self) -> T | None:
        """The function's result; None if it failed or was late, which is logged. Raises ClosedError."""
        try:
            found = self._begun().result(self._timeout)
        except ClosedError:
            raise
        except TimeoutError:
            self._outage.failed(TimeoutError(f"PostgreSQL did not answer within {self._timeout:g} s"))
        except (Error, psycopg.Error) as error:
            self._outage.failed(error)
        else:
            self._outage.worked()
            return found
        return None

    def _begun(self) -> Future[T]:
        with self._lock:
            if self._running is None:
                running: Future[T] = Future()
                errand("pgqueue-monitor-read", self._run, running).start()
                self._running = running  # the thread cannot clear it before the lock is free
            return self._running

    def _run(self, running: Future[T]) -> None:
        try:
            found = self._function()
        except BaseException as error:
            self._end()
            running.set_exception(error)
        else:
            self._end()
            running.set_result(found)

    def _end(self) -> None:
        with self._lock:
            self._running = None

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._running = None


def stats_of(client: Client, queues: Sequence[str] | None) -> dict[str, Stats]:
    """The stats of these queues, zeros for those that do not exist; None: of all queues."""
    return of_queues(client.stats(), queues)


def of_queues(stats: dict[str, Stats], queues: Sequence[str] | None) -> dict[str, Stats]:
    """Of the stats of every queue those of these queues, zeros for those that do not exist; None: all."""
    return stats if queues is None else {name: stats.get(name) or counting.summed([]) for name in queues}


def chosen(queues: str | Sequence[str] | None) -> list[str] | None:
    """An argument `queues`, checked. Raises ValueError."""
    return None if queues is None else arguments.queue_names([queues] if isinstance(queues, str) else queues)


def checked(client: object) -> Client:
    """An argument `client`, checked. Raises ValueError."""
    if not isinstance(client, Client):
        kind = type(client).__name__
        raise ValueError(f"a monitor has a thread of its own, so it needs a pgqueue.Client, not this {kind}")
    return client


def positive(name: str, value: Seconds) -> float:
    """A number of seconds over 0, or such a timedelta, checked. Raises ValueError."""
    return arguments.required_seconds(name, value, positive=True)
