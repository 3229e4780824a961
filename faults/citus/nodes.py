"""Servers with Citus: a coordinator and two workers, which reach each other through their sockets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from .. import servers

SETTINGS = {
    "shared_preload_libraries": "citus",
    "wal_level": "logical",
    "max_prepared_transactions": "100",
    "citus.node_conninfo": "sslmode=disable",
    "citus.max_background_task_executors": "1",
    "citus.recover_2pc_interval": "-1",  # the rig recovers, so that it knows when
}


@dataclass(frozen=True)
class Nodes:
    """The coordinator, which has no shards, and its workers."""

    servers: tuple[servers.Cluster, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """The DSNs, the coordinator's first."""
        return tuple(server.dsn for server in self.servers)

    @property
    def coordinator(self) -> str:
        return self.all[0]

    @property
    def workers(self) -> tuple[str, ...]:
        return self.all[1:]


@contextmanager
def nodes(bindir: Path | None, **settings: str) -> Iterator[Nodes]:
    """Start the nodes. The schema of pgqueue is on none of them."""
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(3):
            folder = stack.enter_context(servers.folder())
            own = {"citus.local_hostname": str(folder / "run")}  # a node that moves shards connects to itself as well
            server = servers.Cluster(folder, bindir, {**SETTINGS, **own, **settings}, fill=False)
            stack.callback(server.close)
            server.start()
            started.append(server)
        nodes = Nodes(tuple(started))
        for dsn in nodes.all:
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("CREATE EXTENSION citus")
        with psycopg.connect(nodes.coordinator, autocommit=True) as conn:
            conn.execute("SELECT citus_set_coordinator_host(%s::text, %s::int)", _address(nodes.coordinator))
            for dsn in nodes.workers:
                conn.execute("SELECT citus_add_node(%s::text, %s::int)", _address(dsn))
        yield nodes


def _address(dsn: str) -> list[object]:
    with psycopg.connect(dsn) as conn:
        return [conn.info.host, conn.info.port]
