"""Which servers a cluster has: read from the table of servers, or from the catalogue of Citus.

A source is asked again whenever the table may have changed (following.py). Each server has a salt, its part in
rendezvous hashing, which stays when other servers come and go: its number, or the groupid of a node of Citus, which
survives a fail-over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ..._calls.call import Call, query
from ..._calls.servers import ServerState, Table
from ...errors import ClusterError, ServerError
from ..dsn import describe


@dataclass(frozen=True, slots=True)
class Listed:
    """A server as its source lists it.

    Attributes:
        salt: its part in rendezvous hashing.
        number: the number that it has to have; None: any.
        dsn, listen_dsn: as for a client.
        state: `active`, `draining` or `gone`.
    """

    salt: int
    number: int | None
    dsn: str
    listen_dsn: str | None = None
    state: ServerState = "active"

    def is_reached_as(self, other: Listed | None) -> bool:
        return other is not None and (self.dsn, self.listen_dsn) == (other.dsn, other.listen_dsn)


@dataclass(frozen=True, slots=True)
class Listing:
    """The servers of a cluster, the home server first. Of two listings the one with the higher version is newer."""

    servers: tuple[Listed, ...]
    version: int = 0
    cluster: object = None


def of_table(table: Table | None, asked: str) -> Listing:
    """The listing of a copy of the table of servers, from the server that was asked.

    Raises:
        ClusterError: the server that was asked belongs to no cluster.
    """
    if table is None:
        raise ClusterError(
            f"the server {describe(asked)} belongs to no cluster: `pgqueue cluster add` adds it, as its home server"
        )
    members = sorted(table.members, key=lambda member: (not member.is_home, member.number))
    listed = tuple(Listed(one.number, one.number, one.dsn, one.listen_dsn, one.state) for one in members)
    return Listing(listed, table.version, table.cluster)


NODES = (
    "SELECT groupid, nodename, nodeport FROM pg_catalog.pg_dist_node"
    " WHERE noderole OPERATOR(pg_catalog.=) 'primary' AND isactive AND shouldhaveshards ORDER BY groupid"
)


def of_citus(conninfo: str) -> Call[Listing]:
    """Ask a node of Citus for the primaries with shards. Each is reached as the node, by another host and port."""

    def read(rows: Sequence[tuple[int, str, int]]) -> Listing:
        if not rows:
            raise ClusterError(
                f"the catalogue of Citus at {describe(conninfo)} has no active primary with shards (pg_dist_node)"
            )
        base = {name: value for name, value in conninfo_to_dict(conninfo).items() if name != "hostaddr"}
        return Listing(
            tuple(
                Listed(group, None, make_conninfo("", **base | {"host": host, "port": port}))
                for group, host, port in rows
            )
        )

    return query(NODES, (), read)


def unreadable(conninfo: str, error: Exception) -> ClusterError:
    """The error for a catalogue, or a table of servers, that a server refused to tell."""
    return ClusterError(f"the servers of the cluster cannot be read from {describe(conninfo)}: {str(error).strip()}")


def none_told(failures: Iterable[Exception]) -> ServerError:
    said = "; ".join(str(failure) for failure in failures) or "the list is empty"
    return ServerError(f"none of the servers that were given told the servers of the cluster: {said}")
