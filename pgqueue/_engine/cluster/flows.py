"""Calls on several servers: a put that fails over, acks and statistics of all of them. Generators.

A flow yields an Ask, one call to the queue on one server. A shell performs it, blocking or awaiting, and sends the
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, TypeVar

from ..._calls import server as server_calls
from ..._calls import stats as calls
from ..._calls.put_options import PutArguments
from ..._calls.stats import Stats
from ..._records.task import home_of
from ...errors import ServerError, TakeLost
from .placing import choose
from .servers import UNREACHABLE, Place, Server, Servers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """Call `verb` with the queue on this server, and send its result."""

    server: Server[Any]
    verb: Callable[[Any], Any]


Flow = Generator[Ask, Any, T]


def put(servers: Servers[Any], place: Place | None, data: Any, options: PutArguments) -> Flow[Any]:
    """Put on the server where the task belongs, or, if it may be on any, on the first that can be reached.

    If the connection breaks during the put, that server may have the task, so no other server is tried.
    """
    first, moves = choose(servers, place, options)
    verb = methodcaller("put", data, **options)
    if not moves:
        return (yield from _ask(servers, servers.all[first], verb))
    failures = []
    for server in servers.to_ask(first):
        try:
            return (yield from _ask(servers, server, verb))
        except ServerError as error:
            failures.append(error)
    raise servers.unreachable(failures)


def ack_many(servers: Servers[Any], tasks: Iterable[Any]) -> Flow[None]:
    """Ack on all servers, and then raise the first error, if any."""
    failed: Exception | None = None
    parts: dict[Server[Any], list[Any]] = {}
    for task in tasks:
        parts.setdefault(servers.all[servers.index(home_of(task))], []).append(task)
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


def _ask(servers: Servers[Any], server: Server[Any], verb: Callable[[Any], Any]) -> Flow[Any]:
    """Call a server. The first call that reaches it asks before where it is."""
    with server.asked():
        if server.whereabouts is None:
            run = methodcaller("run", server_calls.whereabouts())
            servers.reached(server, (yield Ask(server, lambda queue: run(server.client.shell))))
        return (yield Ask(server, verb))
