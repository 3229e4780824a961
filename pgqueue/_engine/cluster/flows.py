"""Calls on several servers: a put that fails over, a take from all of them. Generators, as in ../flows.py.

A flow yields an Ask, one call to the queue on one server, or a Race, the same take on several servers at once. A shell
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

from ..._calls import server as server_calls
from ..._calls import stats as calls
from ..._calls.put_options import PutArguments
from ..._calls.stats import Stats
from ..._records.task import home_of
from ...errors import ClosedError, TakeLost
from ..waits import TimeLeft
from .placing import choose
from .servers import ABSENT, UNREACHABLE, Place, Server, Servers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """Call `verb` with the queue on this server, and send its result."""

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


def put(servers: Servers[Any], place: Place | None, data: Any, options: PutArguments) -> Flow[Any]:
    """Put on the server where the task belongs, or, if it may be on any, on the first that can be reached.

    If the connection breaks during the put, that server may have the task, so no other server is tried.
    """
    first, moves = choose(servers, place, options)
    verb = methodcaller("put", data, **options)
    if not moves:
        return (yield from _ask(servers, servers.all[first], verb))
    failures = []
    for server in servers.to_ask(first, puts=True):
        try:
            return (yield from _ask(servers, server, verb))
        except ABSENT as error:
            failures.append(error)
    raise servers.unreachable(failures)


def take(servers: Servers[Any], n: int, timeout: float | None) -> Flow[list[Any]]:
    left = TimeLeft(timeout)
    tasks = yield from _take_what_is_there(servers, n)
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


def _take_what_is_there(servers: Servers[Any], n: int) -> Flow[list[Any]]:
    tasks: list[Any] = []
    failures: list[Exception] = []
    any_reached = False
    try:
        for server in servers.to_ask(servers.turn()):
            try:
                tasks += yield from _ask(servers, server, methodcaller("take_many", n - len(tasks), 0))
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


def ack_many(servers: Servers[Any], tasks: Iterable[Any]) -> Flow[None]:
    """Ack on all servers, and then raise the first error, if any."""
    failed: Exception | None = None
    parts: dict[Server[Any], list[Any]] = {}
    for task in tasks:
        parts.setdefault(servers.of(home_of(task)), []).append(task)
    for server, part in parts.items():
        try:
            yield from _ask(servers, server, methodcaller("ack_many", part))
        except (TakeLost, *UNREACHABLE) as error:
            failed = failed or error
    if failed:
        raise failed


def stats(servers: Servers[Any]) -> Flow[list[Stats | None]]:
    found: list[Stats | None] = []
    failures: list[Exception] = []
    for server in servers.all:
        try:
            found.append((yield from _ask(servers, server, methodcaller("stats"))))
        except UNREACHABLE as error:
            found.append(None)
            failures.append(error)
    if len(failures) == len(found):
        raise servers.unreachable(failures)
    return found


def summed(found: Iterable[Stats | None]) -> Stats:
    return calls.summed(one for one in found if one is not None)


def give_back(tasks: Iterable[Any]) -> None:
    """Release tasks that no caller will handle, soon and without waiting for it."""
    for task in tasks:
        home_of(task).give_back([(task.id, task.token)])


def _ask(servers: Servers[Any], server: Server[Any], verb: Callable[[Any], Any]) -> Flow[Any]:
    """Call a server. The first call that reaches it asks before where it is."""
    with server.asked():
        if server.listed is None and server.whereabouts is None:
            run = methodcaller("run", server_calls.whereabouts())
            servers.reached(server, (yield Ask(server, lambda queue: run(server.client.shell))))
        return (yield Ask(server, verb))
