"""PgBouncer in front of a server, on a port of its own on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgqueue.embedded import account

CONFIG = """\
[databases]
* = host={host} port={port} user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
max_client_conn = 500
default_pool_size = 150
"""
READY_WITHIN = 10.0  # seconds


def missing() -> str | None:
    """Why there can be no PgBouncer here; None if there can."""
    return None if _program() else "PgBouncer is not installed"


def _program() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


class PgBouncer:
    """A PgBouncer that can be restarted and killed. `dsn` leads through it."""

    def __init__(self, folder: Path, dsn: str, mode: str) -> None:
        given = conninfo_to_dict(dsn)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self._folder, self._config = folder, folder / "pgbouncer.ini"
        words = {"host": given["host"], "port": given.get("port", 5432), "user": given.get("user", "postgres")}
        self._config.write_text(CONFIG.format(listen=self._port, mode=mode, **words))
        self._config.chmod(0o644)
        self.dsn = make_conninfo(
            user=str(words["user"]), dbname=str(given["dbname"]), host="127.0.0.1", port=self._port, sslmode="disable"
        )
        self.start()

    def start(self) -> None:
        program = _program()
        assert program is not None
        user = account.choose(self._folder / "none")  # it refuses to run as root, as PostgreSQL does
        with (self._folder / "pgbouncer.log").open("a") as log:
            self._process = subprocess.Popen(
                [program, "-q", str(self._config)],
                user=user.uid,
                group=user.gid,
                extra_groups=None if user.uid is None else [],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + READY_WITHIN
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PgBouncer does not start: {(self._folder / 'pgbouncer.log').read_text()[-500:]}")
            time.sleep(0.02)

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def restart(self) -> None:
        """In order: its clients are cut off, and a new one begins."""
        self._end(signal.SIGTERM)
        self.start()

    def kill(self) -> None:
        self._end(signal.SIGKILL)
        self.start()

    def _end(self, number: int) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, number)
        self._process.wait(30)

    def close(self) -> None:
        self._end(signal.SIGKILL)
