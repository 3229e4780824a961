"""A wait at all servers at once: a take each, in threads or in coroutines, of which the first to find something wins.

The others are stopped, and what one of them has taken all the same is returned too, as far as it is wanted, or goes
back to its place. Nobody waits for their end: one may be stuck in front of a server that does not answer.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from typing import Any

from .. import flows
from ..aqueues import AsyncTask
from ..queues import Task
from ..task import from_taken
from .flows import Race, Raced, give_back
from .servers import UNREACHABLE, Server


def run(race: Race, name: str) -> Raced:
    """In threads. They are daemons, and not an executor's, for whose threads a process waits before it ends."""
    course = _Course()
    tasks: list[Task] = []
    failures: list[Exception] = []
    try:
        for server in race.servers:
            arguments = (course, server, name, race.n, race.seconds)
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
    """Where threads race: who arrives in time, and how those are stopped who do not."""

    def __init__(self) -> None:
        self.arrivals: queue.SimpleQueue[tuple[list[Task], Exception | None]] = queue.SimpleQueue()
        self.closed = threading.Event()
        self._lock = threading.Lock()
        self._signals: weakref.WeakSet[threading.Event] = weakref.WeakSet()  # what the runners may be waiting for

    def signal(self) -> threading.Event:
        """An event that close() sets too, whichever comes first: the event or the close."""
        made = threading.Event()
        with self._lock:
            self._signals.add(made)
            if self.closed.is_set():
                made.set()
        return made

    def arrive(self, tasks: list[Task], failure: Exception | None) -> bool:
        """False if it is over."""
        with self._lock:
            if self.closed.is_set():
                return False
            self.arrivals.put((tasks, failure))
            return True

    def close(self) -> list[Task]:
        """End it; returns what arrived and was not looked at."""
        with self._lock:
            self.closed.set()
            waited_for = list(self._signals)
        for signal in waited_for:
            signal.set()
        late: list[Task] = []
        while not self.arrivals.empty():
            late += self.arrivals.get()[0]
        return late


def _run_one(course: _Course, server: Server[Any], name: str, n: int, seconds: float | None) -> None:
    tasks: list[Task] = []
    failure: Exception | None = None
    try:
        with server.asked():
            if server.failed:
                server.check()
            client, home = server.client, server.client.queue(name)
            listener = client._core.listener()
            flow = flows.take(client._core, listener, course.signal, [name], n, seconds, course.closed.is_set)
            tasks = client._made(client._drive(flow), lambda row: from_taken(Task, row, _queue=home))
    except Exception as error:  # of whatever kind: whoever waits has to hear of it
        failure = error
    if not course.arrive(tasks, failure):
        give_back(tasks)


_ending: set[asyncio.Task[list[AsyncTask]]] = set()  # held here until they have ended: a loop does not hold its tasks


async def run_async(race: Race, name: str) -> Raced:
    """In coroutines."""
    running = {asyncio.create_task(_run_one_async(server, name, race)) for server in race.servers}
    tasks: list[AsyncTask] = []
    failures: list[Exception] = []
    try:
        while running and not tasks:
            arrived, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for one in arrived:
                tasks += _result(one, failures)
    except BaseException:
        give_back(tasks)
        raise
    finally:
        for one in running:
            _cancel(one)
    give_back(tasks[race.n :])
    return tasks[: race.n], failures if tasks else [_expected(failure) for failure in failures]


async def _run_one_async(server: Server[Any], name: str, race: Race) -> list[AsyncTask]:
    with server.asked():
        if server.failed:
            await asyncio.to_thread(server.check)
        tasks: list[AsyncTask] = await server.client.queue(name).take_many(race.n, race.seconds)
        return tasks


def _result(one: asyncio.Task[list[AsyncTask]], failures: list[Exception]) -> list[AsyncTask]:
    try:
        return one.result()
    except Exception as error:
        failures.append(error)
        return []


def _cancel(one: asyncio.Task[list[AsyncTask]]) -> None:
    """A take that is cancelled undoes itself; one that has ended meanwhile has its tasks given back."""
    _ending.add(one)
    one.cancel()
    one.add_done_callback(_cancelled)


def _cancelled(one: asyncio.Task[list[AsyncTask]]) -> None:
    _ending.discard(one)
    if not one.cancelled() and one.exception() is None:
        give_back(one.result())


def _expected(failure: Exception) -> Exception:
    if not isinstance(failure, UNREACHABLE):
        raise failure
    return failure
