"""PgBouncer in front of the test's server, where the program is installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eventually import eventually
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgqueue.embedded import account

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pgbouncer(dsn: str, mode: str, users: tuple[str, ...] = (), **settings: object) -> Iterator[str]:
    """A DSN of the same database through a PgBouncer of its own. `settings` go to its section [pgbouncer]."""
    assert PROGRAM is not None
    known = conninfo_to_dict(dsn)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="pgqueue-pgbouncer-"))
    folder.chmod(0o755)
    (folder / "users").write_text("".join(f'"{user}" ""\n' for user in (str(known["user"]), *users)))
    given = {"pool_mode": mode, "listen_addr": "127.0.0.1", "listen_port": port, "unix_socket_dir": ""}
    given |= {"auth_type": "trust", "auth_file": folder / "users", **settings}
    lines = "\n".join(f"{name} = {value}" for name, value in given.items())
    server = f"host={known.get('host') or 'localhost'} port={known.get('port') or 5432}"
    (folder / "ini").write_text(f"[databases]\n* = {server}\n[pgbouncer]\n{lines}\n")
    command = [PROGRAM, "-q", str(folder / "ini")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log, user=_account(folder))
    through = make_conninfo(dsn, host="127.0.0.1", hostaddr="", port=port)

    def accepts() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        eventually(accepts)
        yield through
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder)


def _account(folder: Path) -> int | None:
    """PgBouncer refuses to run as root, and only the account of the embedded server can enter its socket's folder."""
    return account.choose(folder / "none").uid
