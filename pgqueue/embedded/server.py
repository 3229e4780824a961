"""The start of an embedded server: claim it, join it if it runs, else create, recover and launch it.

`start()` does all of its work behind the gate (see reaper.py for the files and the locks), so of many starters one
launches the server and the others join it. Its order closes these races:

    claim, then look       the server that is found cannot be stopped before this process uses it
    reaper, then launch    a starter that is killed between the two leaves no server without a reaper
    `starting`, launch     the same if it is killed before its postmaster has written the pid file: the reaper, or the
                           next starter, waits for that file
    initdb, then rename    a cluster is complete or does not exist; a killed starter's initdb keeps the gate

A starter that finds a running server without a reaper (it was killed) starts one. `stop()` only drops the claim; the
reaper stops the server, since a killed process could not do it.
"""

import contextlib
import fcntl
import os
import secrets
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from pgqueue.embedded import account, binaries, reaper
from pgqueue.embedded.cluster import Cluster
from pgqueue.errors import ServerError

StrPath = str | os.PathLike[str]


class EmbeddedServer:
    """An embedded PostgreSQL server, shared by all processes that use the same directory.

    It runs while any process holds a claim: from `start()` to `stop()`, or to the process's end, however it ends. A
    forked child shares its parent's claim. The options count when the server is launched: a process that joins a
    running server gets it unchanged.

        with EmbeddedServer(ephemeral=True, durable=False) as server:
            psycopg.connect(server.dsn())

    Args:
        root: the server's own directory, empty at first. None: the per-user default,
            `<home>/pg<major>-default`; a fresh temporary directory if `ephemeral`.
        durable: False turns fsync and similar settings off: faster, but a crash may lose data. For tests.
        ephemeral: delete all files when the last user has gone.
        settings: options of postgresql.conf, which override the defaults.
        bindir: the directory of PostgreSQL's programs. None: PGQUEUE_PG_BINDIR, a wheel, the system's.
        port: a TCP port on 127.0.0.1, with a password. None: a Unix socket only, for this user.
        environment: variables for the server's processes, besides a few of its own; the caller's do not reach it.
        standby_of: the DSN of a primary, of the same account. The server begins as a copy of it, and follows it.

    Raises:
        ServerError: there are no PostgreSQL programs (looked for only if `root` is None).
    """

    def __init__(
        self,
        root: StrPath | None = None,
        *,
        durable: bool = True,
        ephemeral: bool = False,
        settings: Mapping[str, str] | None = None,
        bindir: StrPath | None = None,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
        standby_of: str | None = None,
    ) -> None:
        self.ephemeral = ephemeral
        if root is not None:
            self.root = Path(root).absolute()
        elif ephemeral:
            self.root = Path(tempfile.gettempdir(), f"pgqueue-{secrets.token_hex(6)}").absolute()
        else:
            self.root = home() / f"pg{binaries.discover(bindir).major}-default"
        self._cluster = Cluster(
            self.root, durable, dict(settings or {}), bindir, port, dict(environment or {}), standby_of
        )
        self._claim: int | None = None
        self._postmaster: reaper.Postmaster | None = None

    def start(self) -> Self:
        """Claim the server, start it unless it runs, and create the database `pgqueue` if it is missing.

        May be called again, also after the server was stopped or killed.

        Raises:
            ServerError: the server cannot be started; the message has the reason and the remedy.
        """
        try:
            with self._gate() as gate:
                self._take_claim()
                try:
                    self._ensure_reaper()
                    self._postmaster = reaper.find(self.root) or self._cluster.launch(gate)
                    self._create_database("pgqueue")
                except BaseException:
                    self.stop()
                    raise
        except OSError as error:
            raise ServerError(
                f"the embedded server in {self.root} cannot be started: {error}; "
                "set PGQUEUE_HOME to another directory, or PGQUEUE_DSN to a server of your own"
            ) from error
        return self

    def stop(self) -> None:
        """Drop this claim. The server stops in the background once no process holds a claim."""
        # Closed and not unlocked: a forked child shares the lock and may still use the server.
        if self._claim is not None:
            os.close(self._claim)
        self._claim = self._postmaster = None

    @property
    def pid(self) -> int | None:
        """The postmaster's pid; None if the server is not started."""
        return self._postmaster.pid if self._postmaster else None

    def keep(self) -> None:
        """Let the server stay after its last user has gone, until `halt()`. Call it on a started server."""
        (self.root / reaper.KEEP).touch()

    def halt(self) -> bool:
        """Stop the server now, even if kept or in use. True if it ran. Raises ServerError if it cannot be stopped."""
        try:
            with reaper.gate(self.root):
                (self.root / reaper.KEEP).unlink(missing_ok=True)
                return reaper.halt(self.root)
        except FileNotFoundError:  # it was never started
            return False
        except OSError as error:
            raise ServerError(f"the embedded server in {self.root} cannot be stopped: {error}") from error

    def dsn(self, dbname: str = "pgqueue", *, tcp: bool = False) -> str:
        """The DSN of a database of the started server, as a URI.

        Args:
            dbname: the database's name.
            tcp: use the TCP port and the password instead of the Unix socket.

        Raises:
            ServerError: the server is not started, or `tcp` is set and it has no TCP port.
        """
        if self._postmaster is None:
            raise ServerError("the embedded server is not started")
        if not tcp:
            return socket_dsn(self._postmaster, dbname)
        if not self._postmaster.listens_on:
            raise ServerError("the embedded server was launched without a TCP port: pass port=")
        password = (self.root / reaper.PASSWORD).read_text().strip()
        where = f"{self._postmaster.listens_on}:{self._postmaster.port}"
        return f"postgresql://postgres:{password}@{where}/{quote(dbname, safe='')}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @contextlib.contextmanager
    def _gate(self) -> Iterator[int]:
        with contextlib.ExitStack() as stack:
            while True:
                _make_directory(self.root)
                try:
                    self._check_ours()
                    gate = stack.enter_context(reaper.gate(self.root, create=True))
                    break
                except FileNotFoundError:  # an ephemeral server's directory was deleted just now
                    continue
            yield gate

    def _check_ours(self) -> None:
        """Refuse a directory that had other contents before: deleting `data` would delete them."""
        found = os.listdir(self.root)
        if found and reaper.GATE not in found:  # the gate is made first and deleted last
            raise ServerError(f"{self.root} is not empty: give the embedded server a directory of its own")

    def _take_claim(self) -> None:
        claim = reaper.open_lock(self.root / reaper.USERS, create=True)
        fcntl.flock(claim, fcntl.LOCK_SH)
        former, self._claim = self._claim, claim
        if former is not None:
            os.close(former)

    def _ensure_reaper(self) -> None:
        """Start a reaper unless there is one. It inherits its lock, held, so no second starter can start another."""
        life = reaper.try_exclusive(self.root / reaper.REAPER, create=True)
        if life is None:
            return
        ephemeral = "ephemeral" if self.ephemeral else "lasting"
        try:
            subprocess.run(
                [_python(), "-I", "-S", reaper.__file__, str(self.root), str(life), ephemeral],
                check=True,
                pass_fds=(life,),  # and no other descriptor: an inherited pipe would never be closed
                cwd="/",
                env=account.ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except subprocess.CalledProcessError as error:
            raise ServerError(f"the reaper of the embedded server did not start: {error}") from error
        finally:
            os.close(life)

    def _create_database(self, name: str) -> None:
        import psycopg  # not at the top: a look at the status does not need it
        from psycopg.errors import DuplicateDatabase, UniqueViolation
        from psycopg.sql import SQL, Identifier

        try:
            with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
                found = connection.execute(
                    "select from pg_catalog.pg_database where datname operator(pg_catalog.=) %s", [name]
                ).fetchone()
                if found is None:
                    # A killed starter's own CREATE DATABASE may still be running in the server.
                    with contextlib.suppress(DuplicateDatabase, UniqueViolation):
                        connection.execute(SQL("create database {}").format(Identifier(name)))
        except psycopg.Error as error:
            raise ServerError(f"the server in {self.root} has no database {name}: {error}") from error


def home() -> Path:
    """The directory of this user's servers: PGQUEUE_HOME, else the platform's directory for application data."""
    if chosen := os.environ.get("PGQUEUE_HOME"):
        return Path(chosen).absolute()
    if os.geteuid() == 0:  # root's own home is closed to the account that PostgreSQL runs as
        return Path("/var/lib/pgqueue")
    try:
        import platformdirs
    except ImportError as error:
        raise ServerError(f"cannot find the data directory without platformdirs: {binaries.HINT}") from error
    return platformdirs.user_data_path("pgqueue")


def socket_dsn(postmaster: reaper.Postmaster, dbname: str) -> str:
    """The DSN of the Unix socket. hostaddr is empty, since PGHOSTADDR would override the host."""
    where = f"host={quote(postmaster.run)}&port={postmaster.port}&hostaddr="
    return f"postgresql://postgres@/{quote(dbname, safe='')}?{where}"


def _make_directory(path: Path) -> None:
    """Make a directory and its missing parents. As root, the account can pass them with any umask."""
    if path.exists():
        return
    _make_directory(path.parent)
    path.mkdir(0o700, exist_ok=True)
    if os.geteuid() == 0:
        path.chmod(0o711)


def _python() -> str:
    """A Python interpreter. sys.executable is another program where Python is embedded, for example in uWSGI."""
    if Path(sys.executable).name.startswith(("python", "pypy")):
        return sys.executable
    return str(Path(sysconfig.get_path("scripts"), "python3"))
