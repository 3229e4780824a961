"""A take from several servers. A generator, as those of the engine's other flows.

It yields an Ask, one call to the client of one server, or a Race, the same take on several servers at once. A shell
performs it, blocking or awaiting, and sends the answer.

A take asks each server in turn for ready tasks; successive takes start at different servers. Only when no server has a
ready task, the take starts a race and waits. Races alone would be enough, but each task would then cost n claims, and
the tasks of all claims but one would be released again. While a server rests, or if the servers are those of a table, a
race ends after `retry` seconds and another one begins, so that the take notices a server that is back or new.

A take that is cut off (Ctrl-C, a cancelled coroutine) releases the tasks that it has taken so far.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, TypeVar

from ..._records.task import home_of
from ...errors import ClosedError
from ..waits import TimeLeft
from .servers import UNREACHABLE, Server, Servers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """Call `verb` with the client of this server, and send its result."""

    server: Server[Any]
    verb: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Race:
    """Take from all of these servers. Send the first tasks that arrive, and the errors of the servers that failed."""

    servers: Sequence[Server[Any]]
    n: int
    seconds: float | None


Raced = tuple[list[Any], list[Exception]]
Flow = Generator[Ask | Race, Any, T]


def take(servers: Servers[Any], queues: Sequence[str], n: int, timeout: float | None) -> Flow[list[Any]]:
    left = TimeLeft(timeout)
    tasks = yield from _take_what_is_there(servers, queues, n)
    while not tasks and not left.over():
        racing = list(servers.to_ask(0))
        changes = any(server.failed or server.listed for server in servers.all)
        try:
            tasks, failures = yield Race(racing, n, (left.at_most(servers.retry) if changes else left).seconds())
        except ClosedError:
            break
        if len(failures) == len(racing):
            raise servers.unreachable(failures)
    return tasks


def _take_what_is_there(servers: Servers[Any], queues: Sequence[str], n: int) -> Flow[list[Any]]:
    tasks: list[Any] = []
    failures: list[Exception] = []
    any_reached = False
    try:
        for server in servers.to_ask(servers.turn()):
            try:
                tasks += yield Ask(server, methodcaller("take_many", queues, n - len(tasks), 0))
                any_reached = True
            except UNREACHABLE as error:
                failures.append(error)
            if len(tasks) == n:
                break
    except BaseException:
        give_back(tasks)
        raise
    if not any_reached:
        raise servers.unreachable(failures)
    return tasks


def give_back(tasks: Iterable[Any]) -> None:
    """Release tasks that no caller will handle, soon and without waiting for it."""
    for task in tasks:
        home_of(task).give_back([(task.id, task.token)])
