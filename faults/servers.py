"""The servers of the rig: private clusters that it may break, and a database of its own on a server that runs already.

A cluster is durable, since the point is what survives. It listens on its Unix socket only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgqueue import migrate
from pgqueue.embedded import EmbeddedServer, reaper

MODES = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
SETTINGS = {
    "max_connections": "300",
    "max_wal_senders": "4",
    "wal_level": "replica",
    "wal_keep_size": "256MB",
    "checkpoint_timeout": "1h",
    "max_wal_size": "1GB",
    "shared_buffers": "64MB",
}
ENDED_WITHIN = 60.0  # seconds that a postmaster may take to end


class Server:
    """A server with a database for one arena.

    Attributes:
        dsn: of the database, direct.
        ours: whether the rig started the server, and may restart it.
    """

    dsn: str
    ours = False

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """A connection of the rig's own, past proxies and poolers."""
        return psycopg.connect(self.dsn, autocommit=True, connect_timeout=10, application_name="faults", **options)

    def close(self) -> None:
        """Leave nothing behind."""
        raise NotImplementedError


class Cluster(Server):
    """A private cluster in a folder."""

    ours = True

    def __init__(
        self,
        folder: Path,
        bindir: Path | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        fill: bool = True,
    ) -> None:
        self.root = folder
        self._server = EmbeddedServer(
            folder,
            durable=True,
            ephemeral=True,
            bindir=bindir,
            settings={**SETTINGS, **(settings or {})},
            environment=environment,
        )
        if fill:
            self.start()
            migrate.up(self.dsn)

    def start(self) -> None:
        self._server.start()
        self.dsn = self._server.dsn()

    @property
    def pid(self) -> int | None:
        """The postmaster's pid, if it runs."""
        postmaster = reaper.read(self.root)
        return postmaster.pid if postmaster is not None and reaper.is_postgres(postmaster.pid) else None

    def halt(self, mode: str) -> None:
        """Stop it, and wait for its end: `fast` as `pg_ctl -m fast`, `immediate` is a crash."""
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, MODES[mode])
        deadline = time.monotonic() + ENDED_WITHIN
        while reaper.is_postgres(pid):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the postmaster {pid} did not end within {ENDED_WITHIN:g} s")
            time.sleep(0.01)

    def restart(self, mode: str) -> None:
        self.halt(mode)
        self.start()

    def close(self) -> None:
        """Stop it and delete its files. An immediate shutdown: nothing of it is needed any more."""
        with contextlib.suppress(TimeoutError, ProcessLookupError):
            self.halt("immediate")
        self._server.stop()
        deadline = time.monotonic() + 10
        with contextlib.suppress(FileNotFoundError):
            while os.listdir(self.root) and time.monotonic() < deadline:
                time.sleep(0.02)  # the reaper deletes the files, and then the folder
        shutil.rmtree(self.root, ignore_errors=True)


class Foreign(Server):
    """A database of its own on a server that runs already."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo, self._name = conninfo, f"pgqueue_faults_{secrets.token_hex(6)}"
        with psycopg.connect(conninfo, autocommit=True, connect_timeout=10) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self._name)))
        self.dsn = make_conninfo(conninfo, dbname=self._name)
        migrate.up(self.dsn)

    def close(self) -> None:
        with psycopg.connect(self._conninfo, autocommit=True, connect_timeout=10) as admin:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self._name)))


@contextmanager
def folder(parent: Path | None = None) -> Iterator[Path]:
    """A temporary folder that the server's account can pass; removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="pgqueue-faults-", dir=parent))
    path.chmod(0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
