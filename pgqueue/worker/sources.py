"""Where a crew takes its tasks from: one server, or several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .._calls.take import Taken
from .._engine import takes
from .._engine.blocking import drive
from .._engine.cluster.takes import TakeFromAll
from .._engine.steps import Signal
from .._sync.client import Client
from .._sync.cluster_take import perform
from .homes import WorkServers

MakeSignal = Callable[[], Signal]
Stopped = Callable[[], bool]


class Source(Protocol):
    def take(
        self, queues: Sequence[str], n: int, timeout: float | None, make_signal: MakeSignal, stopped: Stopped
    ) -> list[Taken]: ...


class OneServer:
    def __init__(self, client: Client) -> None:
        self._client = client

    def take(
        self, queues: Sequence[str], n: int, timeout: float | None, make_signal: MakeSignal, stopped: Stopped
    ) -> list[Taken]:
        shell = self._client.shell
        take = takes.take(shell.core, shell.listener(), make_signal, queues, n, timeout, stopped, timed=True)
        return shell.drive(take.run())


class AllServers:
    """`open_servers`: the indices of those that may give tasks of some queues at present."""

    def __init__(self, servers: WorkServers, open_servers: Callable[[Sequence[str]], list[int]]) -> None:
        self._servers = servers
        self._open_servers = open_servers

    def take(
        self, queues: Sequence[str], n: int, timeout: float | None, make_signal: MakeSignal, stopped: Stopped
    ) -> list[Taken]:
        servers = self._servers.only(self._open_servers(queues))
        if not servers.all:
            return []
        taking = TakeFromAll(servers, make_signal, queues, n, timeout, stopped, timed=True)
        return [row for _, rows in drive(taking.run(), perform) for row in rows]
