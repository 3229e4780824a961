"""The server to measure on: durable, private and empty; or, by an option, one that the caller names.

Each measure gets a database of its own, a clone of a template that holds both pgqueue's schema and the rival's table.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgqueue import migrate
from pgqueue.embedded import EmbeddedServer, binaries

from . import conventional
from .load import described

CHOICES = "embedded | system[:bindir] | dsn[:conninfo]"
SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",  # with a long timeout: no checkpoint may slow only one contender
    "checkpoint_timeout": "1h",
    "max_connections": "400",  # a hundred clients, and each has more than one
}
SHOWN = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size")


@dataclass(frozen=True)
class Server:
    """A running server. `private`: the benchmark has started it, so even ALTER SYSTEM disturbs no other program."""

    conninfo: str
    pgbench: Path
    private: bool
    template: str

    def connect(self) -> psycopg.Connection[Any]:
        """In autocommit."""
        return psycopg.connect(self.conninfo, autocommit=True, connect_timeout=10)

    @contextmanager
    def database(self) -> Iterator[str]:
        """A fresh database; yields its DSN."""
        with _database(self.conninfo, self.template) as name:
            yield make_conninfo(self.conninfo, dbname=name)

    def set(self, name: str, value: str) -> bool:
        """Set an option of the whole server. Returns False, without a change, if the server is not private."""
        if self.private:
            with self.connect() as admin:
                admin.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), value))
                admin.execute("SELECT pg_reload_conf()")
                _wait_for(admin, name, value)
        return self.private

    def version(self) -> str:
        """For example `15.20 (Debian 15.20-0+deb12u1)`."""
        with self.connect() as admin:
            return admin.info.parameter_status("server_version") or ""

    def conditions(self, load: int) -> list[str]:
        """The conditions of the figures, as text: the machine, the server, and what else runs."""
        flush = self.flush_time()
        with self.connect() as admin:
            settings = ", ".join(f"{name} {_scalar(admin, 'SELECT current_setting(%s)', name)}" for name in SHOWN)
        return [
            f"{os.cpu_count()} CPUs, shared by the server and all its clients; Python {platform.python_version()}, "
            f"psycopg {psycopg.__version__}",
            f"PostgreSQL {self.version()} over a {'Unix socket' if self.private else 'connection'}: {settings}",
            f"payload {conventional.PAYLOAD} bytes of JSON; handlers do nothing",
            f"{described(load)}; a commit's flush to disk: {flush * 1e3:.2f} ms",
        ]

    def flush_time(self) -> float:
        """The seconds by which a commit takes longer when it waits for the disk."""
        times: dict[str, float] = {}
        with self.database() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
            for setting in ("off", "on"):
                conn.execute(sql.SQL("SET synchronous_commit = {}").format(sql.Identifier(setting)))
                times[setting] = statistics.median(_time(conn, conventional.PUT) for _ in range(300))
        return times["on"] - times["off"]


@contextmanager
def serve(choice: str) -> Iterator[Server]:
    """Start or find the server that `--pg` asked for."""
    kind, _, argument = choice.partition(":")
    if kind == "dsn":
        conninfo = argument or os.environ.get("PGQUEUE_DSN", "")
        if not conninfo:
            raise ValueError("--pg=dsn needs an address: --pg=dsn:<conninfo>, or PGQUEUE_DSN")
        with _prepared(conninfo, _pgbench(None), private=False) as server:
            yield server
    elif kind in ("embedded", "system"):
        bindir = binaries.discover(argument or (_system() if kind == "system" else None)).bindir
        with (
            EmbeddedServer(durable=True, ephemeral=True, settings=SETTINGS, bindir=bindir) as started,
            _prepared(started.dsn("postgres"), _pgbench(bindir), private=True) as server,
        ):
            yield server
    else:
        raise ValueError(f"--pg={choice}: expected {CHOICES}")


@contextmanager
def _prepared(conninfo: str, pgbench: Path, *, private: bool) -> Iterator[Server]:
    with _database(conninfo, "template1") as template:
        dsn = make_conninfo(conninfo, dbname=template)
        migrate.up(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(conventional.SCHEMA)
        yield Server(conninfo, pgbench, private, template)


@contextmanager
def _database(conninfo: str, template: str) -> Iterator[str]:
    name = f"pgqueue_bench_{uuid.uuid4().hex[:12]}"
    names = {"name": sql.Identifier(name), "template": sql.Identifier(template)}
    with psycopg.connect(conninfo, autocommit=True, connect_timeout=10) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {name} TEMPLATE {template}").format(**names))
    try:
        yield name
    finally:
        with psycopg.connect(conninfo, autocommit=True, connect_timeout=10) as admin:
            admin.execute(sql.SQL("DROP DATABASE {name} WITH (FORCE)").format(**names))


def _system() -> Path:
    """The newest of the system's installations. (discover() would prefer a wheel.)"""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    if not found:
        raise ValueError("--pg=system: there is none in /usr/lib/postgresql; say --pg=system:<bindir>")
    return found[-1].parent


def _pgbench(bindir: Path | None) -> Path:
    """The pgbench of the server's own installation, else any."""
    beside = (bindir or binaries.discover().bindir) / "pgbench"
    found = beside if beside.exists() else shutil.which("pgbench")
    if not found:
        raise ValueError(f"there is no pgbench, neither {beside} nor in PATH")
    return Path(found)


def _time(conn: psycopg.Connection[Any], statement: LiteralString) -> float:
    began = time.perf_counter()
    conn.execute(statement, (conventional.text(0),))
    return time.perf_counter() - began


def _wait_for(admin: psycopg.Connection[Any], name: str, value: str) -> None:
    deadline = time.monotonic() + 5
    while _scalar(admin, "SELECT current_setting(%s)", name) != value:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server did not take {name} = {value}")
        time.sleep(0.01)


def _scalar(conn: psycopg.Connection[Any], statement: LiteralString, *args: object) -> Any:
    row = conn.execute(statement, args).fetchone()
    return row[0] if row else None
