"""The servers of a worker. A task's id names its server, so a worker over several needs numbered ones.

A shift has a client of its own for each server, and each event loop another one, to which its connections belong. The
first call that reaches a server asks for its number, and then `begin` lets the shift work there: a server that is down
when the worker starts joins it when it answers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from .._async.shell import AsyncShell
from .._calls.server import Whereabouts, whereabouts
from .._engine.cluster.servers import BITS, UNREACHABLE, Server, Servers
from .._engine.shell import ShellBase
from .._sync.client import Client
from ..errors import SetupError

S = TypeVar("S", bound=ShellBase)
T = TypeVar("T")

RETRY = 5.0  # seconds until a server that could not be reached is tried again


class WorkServers(Servers[Client]):
    """The servers of a shift. `begin` is called with each server of several when a call has reached it."""

    def __init__(self, clients: Sequence[Client], begin: Callable[[Client], None]) -> None:
        super().__init__(clients, RETRY)
        self._begin = begin

    def reached(self, server: Server[Client], at: Whereabouts) -> None:
        """Note where a server is.

        Raises:
            SetupError: another one has its number, so the ids of their tasks meet.
            ValueError: another one is the same database.
        """
        for other in self.all:
            if other is not server and other.whereabouts and other.whereabouts.number == at.number == 0:
                raise SetupError(
                    "two servers of this worker have no number, so the ids of their tasks meet: number each of them"
                    " with pgqueue.set_server() before its first task"
                )
        super().reached(server, at)
        self._begin(server.client)

    def reach(self) -> None:
        """Ask the servers that answer for their numbers. Raises as reached()."""
        for server in self.all:
            try:
                server.client.shell.core.listener(0)
                at = server.client.shell.run(whereabouts())
            except UNREACHABLE:
                continue
            self.reached(server, at)

    def only(self, wanted: Iterable[int]) -> WorkServers:
        """Those at these indices, in the same turn."""
        some = copy.copy(self)
        some._have(self.all[index] for index in wanted)
        return some


class Homes(Generic[S]):
    """The shells of the servers, by the ids of their tasks. One shell needs no `servers`."""

    def __init__(self, servers: WorkServers | None, shells: Sequence[S]) -> None:
        self.all = shells
        self._servers = servers.all if servers is not None else []
        self._only = shells[0] if len(shells) == 1 else None
        self._indices: dict[int, int] = {}

    def of(self, id: int) -> S:
        return self._only or self.all[self.index(id)]

    def index(self, id: int) -> int:
        """The index of the server that has this task. It was taken there, so the number is known."""
        if self._only is not None:
            return 0
        number = id >> BITS
        if number not in self._indices:
            known = [(server.whereabouts, index) for index, server in enumerate(self._servers)]
            self._indices = {at.number: index for at, index in known if at is not None}
        return self._indices[number]

    def by_server(self, items: Iterable[T], id: Callable[[T], int]) -> dict[int, list[T]]:
        """The items, by the index of the server of each."""
        parts: dict[int, list[T]] = {}
        for item in items:
            parts.setdefault(self.index(id(item)), []).append(item)
        return parts


class AsyncHomes(Homes[AsyncShell]):
    """Those of one event loop, to which their connections belong."""

    async def close(self) -> None:
        for shell in self.all:
            await shell.connections.close()


AnyHomes = Homes[Any]


def only(shell: S) -> Homes[S]:
    """Of one server."""
    return Homes(None, [shell])
