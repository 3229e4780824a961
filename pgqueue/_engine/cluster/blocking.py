"""A wait on all servers at once: one take for each server, in threads. The first take that finds a task wins.

The other takes are stopped. If one of them has taken a task all the same, the caller gets this task too, up to the
number that it asked for; the other tasks are released. The race does not wait for the threads to end: one of them may
be connected to a server that does not answer.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ..owners import errand
from .flows import Race, Raced, give_back
from .servers import UNREACHABLE, Server

Tasks = list[Any]
Take = Callable[..., Tasks]  # of _sync/take.py


def race(race: Race, queues: Sequence[str], take: Take) -> Raced:
    """Run the race in daemon threads. (A process waits for the threads of an executor before it ends.)"""
    course = _Course()
    tasks: Tasks = []
    failures: list[Exception] = []
    try:
        for server in race.servers:
            arguments = (course, server, take, queues, race.n, race.seconds)
            errand("pgqueue-cluster", _run_one, *arguments).start()
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
    """The shared state of the racing threads: the tasks that arrived in time, and the signals that stop the others."""

    def __init__(self) -> None:
        self.arrivals: queue.SimpleQueue[tuple[Tasks, Exception | None]] = queue.SimpleQueue()
        self.closed = threading.Event()
        self._lock = threading.Lock()
        self._signals: weakref.WeakSet[threading.Event] = weakref.WeakSet()  # that the threads may be waiting for

    def signal(self) -> threading.Event:
        """An event that close() sets too."""
        made = threading.Event()
        with self._lock:
            self._signals.add(made)
            if self.closed.is_set():
                made.set()
        return made

    def arrive(self, tasks: Tasks, failure: Exception | None) -> bool:
        """Hand in a thread's tasks or its failure. Returns False if the race is over."""
        with self._lock:
            if self.closed.is_set():
                return False
            self.arrivals.put((tasks, failure))
            return True

    def close(self) -> Tasks:
        """End the race. Returns the tasks that arrived and were not read."""
        with self._lock:
            self.closed.set()
            waited_for = list(self._signals)
        for signal in waited_for:
            signal.set()
        late: Tasks = []
        while not self.arrivals.empty():
            late += self.arrivals.get()[0]
        return late


def _run_one(
    course: _Course, server: Server[Any], take: Take, queues: Sequence[str], n: int, seconds: float | None
) -> None:
    tasks: Tasks = []
    failure: Exception | None = None
    try:
        with server.asked():
            if server.unchecked:
                server.check()
            tasks = take(
                server.client.shell, [*queues], n, seconds, stopped=course.closed.is_set, make_signal=course.signal
            )
    except Exception as error:  # of any kind: the caller has to see it
        failure = error
    if not course.arrive(tasks, failure):
        give_back(tasks)


def _expected(failure: Exception) -> Exception:
    if not isinstance(failure, UNREACHABLE):
        raise failure
    return failure
