"""Servers with Citus: a coordinator and two workers, which reach each other through their sockets."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from servers import Server

from pgqueue.embedded import EmbeddedServer

SETTINGS = {
    "shared_preload_libraries": "citus",
    "wal_level": "logical",
    "max_prepared_transactions": "20",
    "citus.node_conninfo": "sslmode=disable",
    "citus.max_background_task_executors": "1",
}


def has_citus(server: Server) -> bool:
    with server.connect() as conn:
        return bool(conn.execute("SELECT FROM pg_available_extensions WHERE name = 'citus'").rowcount)


@dataclass(frozen=True)
class Nodes:
    """The DSNs of the nodes: the coordinator, which has no shards, and its workers."""

    coordinator: str
    workers: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (self.coordinator, *self.workers)


@contextmanager
def nodes(bindir: Path | None) -> Iterator[Nodes]:
    """Start the nodes. The schema of pgqueue is on none of them."""
    with contextlib.ExitStack() as stack:
        dsns = []
        for _ in range(3):
            root = Path(tempfile.mkdtemp(prefix="pgqueue-citus-"))
            root.chmod(0o711)  # for the account that the server runs as
            server = EmbeddedServer(root, durable=False, ephemeral=True, settings=SETTINGS, bindir=bindir).start()
            stack.callback(server.stop)
            dsns.append(server.dsn())
        for dsn in dsns:
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("CREATE EXTENSION citus")
        with psycopg.connect(dsns[0], autocommit=True) as conn:
            conn.execute("SELECT citus_set_coordinator_host(%s::text, %s::int)", _address(dsns[0]))
            for dsn in dsns[1:]:
                conn.execute("SELECT citus_add_node(%s::text, %s::int)", _address(dsn))
        yield Nodes(dsns[0], tuple(dsns[1:]))


def _address(dsn: str) -> list[object]:
    with psycopg.connect(dsn) as conn:
        return [conn.info.host, conn.info.port]
