"""Calls of 7_operations/servers.sql: the table of the servers of a cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal
from uuid import UUID

from .._values.record import Record
from .call import Call, call, scalar

CHANNEL = "pgqueue:servers"  # as in sql/7_operations/servers.sql

ServerState = Literal["active", "draining", "gone"]


@dataclass(frozen=True, slots=True)
class Member(Record):
    """A server of a cluster, by the table of servers.

    Attributes:
        number: its number, which is in the ids of its tasks.
        dsn: how clients connect to it.
        listen_dsn: how the connections that wait reach it; None: by dsn.
        state: `active`; `draining`: it gets no more tasks than it has to; `gone`: it is left.
        is_home: whether it has locks, schedules and channels for the whole cluster.
    """

    number: int
    dsn: str
    listen_dsn: str | None
    state: ServerState
    is_home: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A copy of the table of servers. The newer of two copies has the higher version."""

    cluster: UUID
    version: int
    members: tuple[Member, ...]

    @property
    def home(self) -> Member:
        return next(member for member in self.members if member.is_home)

    def numbered(self, number: int) -> Member | None:
        return next((member for member in self.members if member.number == number), None)


def servers() -> Call[Table | None]:
    """The copy of the server that is asked; None: it belongs to no cluster."""
    return call("servers", "number, dsn, listen_dsn, state, is_home, version, cluster", _table)


def _table(rows: Sequence[tuple[object, ...]]) -> Table | None:
    if not rows:
        return None
    *_, version, cluster = rows[0]
    return Table(cluster, version, tuple(Member(*row[:5]) for row in rows))  # type: ignore[arg-type]  # rows have no types


def add(number: int, dsn: str, listen_dsn: str | None = None) -> Call[int]:
    return call("add_server", None, scalar, number=number, dsn=dsn, listen_dsn=listen_dsn)


def set_state(number: int, state: ServerState) -> Call[int]:
    return call("set_server_state", None, scalar, number=number, state=state)


def remove(number: int) -> Call[int]:
    return call("remove_server", None, scalar, number=number)


def copy(table: Table) -> Call[bool]:
    listed = json.dumps([asdict(member) for member in table.members])
    return call("copy_servers", None, scalar, cluster=table.cluster, version=table.version, servers=listed)
