"""An embedded PostgreSQL server: `pip install`, one command, a running queue.

    server = embedded.default_server()      # starts the user's server, or joins it
    psycopg.connect(server.dsn())

The server is in the user's data directory and runs while any process uses it; see EmbeddedServer. The functions start,
stop and status are for a command line: a server started by `start` stays until `stop`.

server.py joins and starts, cluster.py creates and launches, reaper.py stops, binaries.py finds PostgreSQL,
account.py chooses the account that it runs as.
Environment: PGQUEUE_HOME, PGQUEUE_PG_BINDIR, and for root PGQUEUE_EMBEDDED_USER.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from pgqueue.errors import ServerError

if sys.platform == "win32":  # no fork, flock or Unix accounts: the library imports this package only when it needs it
    raise ServerError("the embedded server does not run on Windows: set PGQUEUE_DSN to a server of your own")

from pgqueue.embedded import binaries, reaper
from pgqueue.embedded.server import EmbeddedServer, socket_dsn

__all__ = ["EmbeddedServer", "Status", "default_server", "start", "status", "stop"]

_default: EmbeddedServer | None = None


def default_server() -> EmbeddedServer:
    """Start or join the user's default server, and return it running, with the database `pgqueue`.

    The process has one claim on the server, until the process ends. Each call starts the server if it does not run, so
    call it again when the server was lost. It blocks for about 1 s the first time and 20 ms the next.

    Raises:
        ServerError: the server cannot be started.
    """
    global _default
    _default = _default or EmbeddedServer()  # two threads here make two claims: harmless
    return _default.start()


@dataclass(frozen=True)
class Status:
    """The state of the user's default server.

    Attributes:
        running: whether it accepts connections.
        kept: whether it stays after its last user has gone, until `stop()`.
        version: the version of the PostgreSQL programs, for example "18.6".
        data: its data directory, which may not exist yet.
        log: its log file.
        pid: the postmaster's pid, if running.
        dsn: the DSN of the database `pgqueue`, if running.
        users: pids of the processes that hold a claim, where the system tells them (Linux), else None.
    """

    running: bool
    kept: bool
    version: str
    data: Path
    log: Path
    pid: int | None
    dsn: str | None
    users: tuple[int, ...] | None


def status() -> Status:
    """Look at the default server, without claiming or starting it.

    Raises:
        ServerError: there are no PostgreSQL programs, or the server belongs to another user.
    """
    root = EmbeddedServer().root
    try:
        postmaster = reaper.read(root)
        running = postmaster is not None and postmaster.ready and postmaster.accepts()
        kept = (root / reaper.KEEP).exists()
    except OSError as error:
        raise ServerError(f"cannot look at the embedded server in {root}: {error}") from error
    return Status(
        running=running,
        kept=kept,
        version=binaries.discover().version,
        data=root / reaper.DATA,
        log=root / reaper.LOG,
        pid=postmaster.pid if postmaster and running else None,
        dsn=socket_dsn(postmaster, "pgqueue") if postmaster and running else None,
        users=_holders(root / reaper.USERS),
    )


def start() -> Status:
    """Start the default server so that it stays even if no process uses it.

    Raises:
        ServerError: the server cannot be started.
    """
    with EmbeddedServer() as server:
        server.keep()
        return status()


def stop() -> bool:
    """Stop the default server, even if it is kept or in use. Returns True if it ran.

    Processes that use it lose their connections; their next `default_server()` starts it again.

    Raises:
        ServerError: the server cannot be stopped.
    """
    return EmbeddedServer().halt()


def _holders(lock: Path) -> tuple[int, ...] | None:
    """The pids that hold a lock shared, from the kernel's list of lines `1: FLOCK ADVISORY READ pid dev:inode ...`."""
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        inode = str(lock.stat().st_ino) if lock.exists() else ""
    except OSError:
        return None
    shared = (row for row in rows if row[1:4] == ["FLOCK", "ADVISORY", "READ"])
    return tuple(sorted({int(row[4]) for row in shared if row[5].rpartition(":")[2] == inode}))
