"""What is asked of which server: a put that fails over, a take from all of them. Generators, as in ../flows.py.

A flow yields an Ask, one call to the queue on one server, or a Race, the same take on several at once; a shell performs
it, blocking or awaiting, and sends the answer.

A take goes round the servers, beginning at each in turn, and asks for what is there. Only when that is nothing it
races, and waits. Races alone would do, at the price of n claims for each task, and of giving back what all but one of
them took. While a server rests, a race ends after `retry` seconds and another one begins: so it is noticed when that
is back.

A take that is cut off in between (Ctrl-C, a cancelled coroutine) gives back the tasks that it has taken so far.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, TypeVar

from ..._calls import stats as calls
from ..._calls.put import PutArguments
from ..._calls.stats import Stats
from ..._records.task import home_of
from ...errors import ClosedError, ServerError, TakeLost
from ..waits import TimeLeft
from .servers import UNREACHABLE, Server, Servers, ShardKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """Do this with the queue on that server, and send what comes of it."""

    server: Server[Any]
    verb: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Race:
    """Take from all of these; send what came first, and why which of them failed."""

    servers: Sequence[Server[Any]]
    n: int
    seconds: float | None


Raced = tuple[list[Any], list[Exception]]
Flow = Generator[Ask | Race, Any, T]


def put(servers: Servers[Any], key: ShardKey | None, data: Any, options: PutArguments) -> Flow[Any]:
    """On the first server that can be reached. One whose connection broke may have the task: then no other gets it."""
    failures = []
    for server in servers.to_ask(servers.home(key)):
        try:
            return (yield from _ask(server, methodcaller("put", data, **options)))
        except ServerError as error:
            failures.append(error)
    raise servers.unreachable(failures)


def take(servers: Servers[Any], n: int, timeout: float | None) -> Flow[list[Any]]:
    left = TimeLeft(timeout)
    tasks = yield from _take_what_is_there(servers, n)
    while not tasks and not left.over():
        racing = list(servers.to_ask(0))
        some_rest = any(server.failed for server in servers.all)
        try:
            tasks, failures = yield Race(racing, n, (left.at_most(servers.retry) if some_rest else left).seconds())
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
                tasks += yield from _ask(server, methodcaller("take_many", n - len(tasks), 0))
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
    """All servers are asked, and the first error is raised then."""
    failed: Exception | None = None
    parts: dict[Server[Any], list[Any]] = {}
    for task in tasks:
        parts.setdefault(servers.of(home_of(task)), []).append(task)
    for server, part in parts.items():
        try:
            yield from _ask(server, methodcaller("ack_many", part))
        except (TakeLost, *UNREACHABLE) as error:
            failed = failed or error
    if failed:
        raise failed


def stats(servers: Servers[Any]) -> Flow[list[Stats | None]]:
    found: list[Stats | None] = []
    failures: list[Exception] = []
    for server in servers.all:
        try:
            found.append((yield from _ask(server, methodcaller("stats"))))
        except UNREACHABLE as error:
            found.append(None)
            failures.append(error)
    if len(failures) == len(found):
        raise servers.unreachable(failures)
    return found


def summed(found: Iterable[Stats | None]) -> Stats:
    return calls.summed(one for one in found if one is not None)


def give_back(tasks: Iterable[Any]) -> None:
    """Tasks that no caller will handle go back to their places soon; nothing waits for it."""
    for task in tasks:
        home_of(task).give_back([(task.id, task.token)])


def _ask(server: Server[Any], verb: Callable[[Any], Any]) -> Flow[Any]:
    with server.asked():
        return (yield Ask(server, verb))
