"""A database cluster in the server's directory: create it, recover it, configure it, launch its postmaster.

All of it happens behind the gate, and never in a cluster that runs (see server.py).

The server's options are in a server.conf outside of the data directory. It includes the cluster's postgresql.conf and
is written at each launch. So nothing is ever written into the data directory, which belongs to another account if the
caller is root. Programs run inside the server's directory and name files relative to it: pg_ctl passes its options
through a shell, where a path with a `$` would break.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pgqueue.embedded import account, binaries, reaper
from pgqueue.errors import ServerError

SETTINGS = {"timezone": "UTC", "log_timezone": "UTC", "jit": "off", "cluster_name": "pgqueue"}
NOT_DURABLE = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
DEFAULT_PORT = 5432  # without TCP the port is only a part of the socket's name
LONGEST_RUN = 85  # bytes; with /.s.PGSQL.65535 it must fit into sun_path: 103 on macOS, 107 on Linux
LARGEST_LOG = 10_000_000  # bytes; a larger log is moved aside at the next launch
ORPHANS_GONE_WITHIN = 5.0  # seconds that the sessions of a killed postmaster may take to end


@dataclass(frozen=True)
class Cluster:
    """The cluster of an EmbeddedServer, for one launch."""

    root: Path
    durable: bool
    settings: Mapping[str, str]
    bindir: str | os.PathLike[str] | None
    port: int | None
    environment: Mapping[str, str]
    standby_of: str | None = None

    def launch(self, gate: int) -> reaper.Postmaster:
        """Start the postmaster, with a new cluster if there is none. Raises OSError or ServerError.

        `gate` is the descriptor that holds the gate.
        """
        data = self.root / reaper.DATA
        user = account.choose(data)
        if user.uid is not None:
            self.root.chmod(self.root.stat().st_mode | 0o111)
        if not user.can_enter(self.root):
            raise ServerError(
                f"the account {user.name}, which PostgreSQL runs as, cannot enter {self.root}: "
                "set PGQUEUE_HOME to a directory that every account can enter"
            )
        programs = binaries.reachable(binaries.discover(self.bindir), user, self.root)
        if not data.exists() and self.standby_of is not None:
            self._copy(self.standby_of, programs, user, gate)
        elif not data.exists():
            self._initdb(programs, user, gate)
        _check_major(data, programs)
        stale = reaper.read(self.root)
        if stale is not None:
            self._forget(stale)
        self._configure(user)
        self._run_postmaster(programs, user, retry=stale is not None)
        postmaster = reaper.find(self.root)
        if postmaster is None:
            raise ServerError(f"the embedded server ended at once:\n{self._log_tail()}")
        return postmaster

    def _copy(self, primary: str, programs: binaries.Binaries, user: account.Account, gate: int) -> None:
        unfinished = self._make_unfinished(user)
        options = ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast"]
        options += ["-D", reaper.UNFINISHED, "-d", primary]
        try:
            result = user.run(programs.bindir / "pg_basebackup", *options, cwd=self.root, pass_fds=(gate,))
        except FileNotFoundError:
            raise ServerError(f"{programs.bindir} has no pg_basebackup, which a standby needs") from None
        if result.returncode != 0:
            raise ServerError(f"pg_basebackup of PostgreSQL {programs.version} failed: {result.stderr.strip()}")
        unfinished.rename(self.root / reaper.DATA)

    def _make_unfinished(self, user: account.Account) -> Path:
        unfinished = self.root / reaper.UNFINISHED
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(0o700)
        return user.own(unfinished)

    def _initdb(self, programs: binaries.Binaries, user: account.Account, gate: int) -> None:
        unfinished = self._make_unfinished(user)
        _write(self.root / reaper.PASSWORD, secrets.token_urlsafe(24), 0o600, user)
        options = ["--locale=C"]
        if programs.major >= 17:  # upper and lower case as in UTF-8, with C's order
            options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        if not self.durable:
            options += ["--no-sync"]
        # Trust over the socket: only the server's account and root can enter its directory (mode 0700).
        options += ["--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={reaper.PASSWORD}"]
        options += ["-D", reaper.UNFINISHED, "-U", "postgres", "-E", "UTF8"]
        # initdb goes on if this process is killed. It holds the gate, so the next starter waits for its end.
        result = user.run(programs.bindir / "initdb", *options, cwd=self.root, pass_fds=(gate,))
        if result.returncode != 0:
            raise ServerError(f"initdb of PostgreSQL {programs.version} failed:\n{result.stderr.strip()}")
        unfinished.rename(self.root / reaper.DATA)

    def _forget(self, stale: reaper.Postmaster) -> None:
        """Remove a dead postmaster's pid and lock files: PostgreSQL believes a zombie's, or a reused pid.

        Removing them is safe: sessions that outlive their postmaster still hold its shared memory, and a new postmaster
        refuses to start as long as they do.
        """
        stale.forget_socket()
        (self.root / reaper.DATA / "postmaster.pid").unlink(missing_ok=True)
        reaper.forget_run(self.root, stale)

    def _configure(self, user: account.Account) -> None:
        """Write server.conf, and make the directories of the socket and the log."""
        run = self.root / reaper.RUN
        if len(os.fsencode(run)) > LONGEST_RUN:
            # A random name, since any account may occupy a known name in /tmp. Joiners read it in postmaster.pid.
            run = Path(tempfile.mkdtemp(prefix="pgqueue-", dir="/tmp"))
        run.mkdir(0o700, exist_ok=True)
        user.own(run)
        settings = {**SETTINGS, **({} if self.durable else NOT_DURABLE), **self.settings}
        settings["unix_socket_directories"] = '"{}"'.format(str(run).replace('"', '""'))
        settings["listen_addresses"] = "" if self.port is None else "127.0.0.1"
        settings["port"] = str(self.port or DEFAULT_PORT)
        lines = [f"include '{reaper.DATA}/postgresql.conf'"]
        lines += [f"{name} = {_quote(value)}" for name, value in settings.items()]
        _write(self.root / reaper.CONF, "\n".join(lines), 0o644)
        log = self.root / reaper.LOG
        if log.exists() and log.stat().st_size > LARGEST_LOG:
            log.replace(self.root / reaper.OLD_LOG)
        log.touch(0o600)
        user.own(log)

    def _run_postmaster(self, programs: binaries.Binaries, user: account.Account, *, retry: bool) -> None:
        """Launch the postmaster in a session of its own, where no Ctrl-C reaches it, and wait until it is ready.

        With `retry`, repeat it for a while: orphaned sessions of the last postmaster may still be there.
        """
        command = [str(programs.bindir / "pg_ctl"), "start", "-w", "-t", f"{reaper.READY_WITHIN:.0f}"]
        command += ["-D", reaper.DATA, "-l", reaper.LOG, "-o", f"-c config_file={reaper.CONF}"]
        deadline = time.monotonic() + (ORPHANS_GONE_WITHIN if retry else 0)
        (self.root / reaper.STARTING).touch()
        while (result := user.run(*command, cwd=self.root, environment=self.environment)).returncode != 0:
            if time.monotonic() > deadline:
                break
            time.sleep(reaper.POLL)
        (self.root / reaper.STARTING).unlink(missing_ok=True)
        if result.returncode != 0:
            raise ServerError(
                f"PostgreSQL {programs.version} in {self.root} does not start: {result.stderr.strip()}\n"
                f"The end of its log:\n{self._log_tail()}"
            )

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join((self.root / reaper.LOG).read_text(errors="replace").splitlines()[-15:])
        return ""


def _check_major(data: Path, programs: binaries.Binaries) -> None:
    major = (reaper.read_file(data / "PG_VERSION") or "").strip()
    if major != str(programs.major):
        raise ServerError(
            f"{data} is of PostgreSQL {major}, the programs in {programs.bindir} are {programs.version}: "
            f"set PGQUEUE_PG_BINDIR to those of PostgreSQL {major}, or move the data with pg_dumpall"
        )


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n")
    return f"'{escaped}'"


def _write(path: Path, text: str, mode: int, owner: account.Account | None = None) -> None:
    """Replace a file. At no time is it readable to more accounts than `mode` allows."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text + "\n")
    if owner is not None:
        owner.own(path)
