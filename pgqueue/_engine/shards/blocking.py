"""A wait at all servers at once: a take each, in threads, of which the first to find a task wins.

The other takes are stopped. A task that one of them has taken all the same is returned too, as far as it is wanted, or
goes back to its place. Nothing waits for their end: one may be stuck in front of a server that does not answer.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .flows import Race, Raced, give_back
from .servers import UNREACHABLE, Server

Tasks = list[Any]
Take = Callable[..., Tasks]  # of _sync/take.py


def race(race: Race, name: str, take: Take) -> Raced:
    """The threads are daemons, and not an executor's, for whose threads a process waits before it ends."""
    course = _Course()
    tasks: Tasks = []
    failures: list[Exception] = []
    try:
        for server in race.servers:
            arguments = (course, server, take, name, race.n, race.seconds)
            threading.Thread(target=_run_one, args=arguments, name="pgqueue-shard", daemon=True).start()
        for _ in race.servers:
            tasks, failure = course.arrivals.get()
            if tasks:
                break
            if failure is not None:
                failures.append(_expected(failure))
        tasks = tasks + course.close()
    except BaseException:
        give_back(tasks + course.close())
        raise
    give_back(tasks[race.n :])
    return tasks[: race.n], failures


class _Course:
    """Where the threads race: which of them arrive in time, and how the others are stopped."""

    def __init__(self) -> None:
        self.arrivals: queue.SimpleQueue[tuple[Tasks, Exception | None]] = queue.SimpleQueue()
        self.closed = threading.Event()
        self._lock = threading.Lock()
        self._signals: weakref.WeakSet[threading.Event] = weakref.WeakSet()  # what the threads may be waiting for

    def signal(self) -> threading.Event:
        """An event that close() sets too, whichever comes first: the event or the close."""
        made = threading.Event()
        with self._lock:
            self._signals.add(made)
            if self.closed.is_set():
                made.set()
        return made

    def arrive(self, tasks: Tasks, failure: Exception | None) -> bool:
        """False if the race is over."""
        with self._lock:
            if self.closed.is_set():
                return False
            self.arrivals.put((tasks, failure))
            return True

    def close(self) -> Tasks:
        """End it. Returns the tasks that arrived and were not looked at."""
        with self._lock:
            self.closed.set()
            waited_for = list(self._signals)
        for signal in waited_for:
            signal.set()
        late: Tasks = []
        while not self.arrivals.empty():
            late += self.arrivals.get()[0]
        return late


def _run_one(course: _Course, server: Server[Any], take: Take, name: str, n: int, seconds: float | None) -> None:
    tasks: Tasks = []
    failure: Exception | None = None
    try:
        with server.asked():
            if server.failed:
                server.check()
            tasks = take(
                server.client.shell, [name], n, seconds, stopped=course.closed.is_set, make_signal=course.signal
            )
    except Exception as error:  # of whatever kind: the caller has to hear of it
        failure = error
    if not course.arrive(tasks, failure):
        give_back(tasks)


def _expected(failure: Exception) -> Exception:
    if not isinstance(failure, UNREACHABLE):
        raise failure
    return failure
