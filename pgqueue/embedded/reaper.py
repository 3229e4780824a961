"""The end of an embedded server: find its users, check that it is alive, stop it, delete it.

Run by its path, this file is the reaper: one detached process per server, which waits until the last user has gone and
then stops the server. Imported, it gives the server's starters the same locks and the same check of "alive". It imports
the standard library only, since a bare interpreter runs it. The reaper may outlive an upgrade of the package, and of
the PostgreSQL binaries too, so it never calls pg_ctl.

The files of a server's directory, and the meaning of each:

    gate.lock      held exclusively by the process that starts or stops the server, only while it does so;
                   initdb inherits it, since a starter's death does not end its initdb
    users.lock     held shared by every user for as long as it uses the server: its claim
    reaper.lock    held exclusively by the reaper for its life; a starter locks it and passes it to the reaper
    starting       a postmaster was launched and may not have written its pid file yet
    keep           the server stays after its last user has gone
    data           PGDATA; its postmaster.pid has the port, the socket's directory and the status

The locks are flock()s: the kernel releases them however a process dies. A list of pids in a file would be simpler, but
it would keep the pid of a killed process, and the server with it, indefinitely.

The reaper waits for an exclusive lock on the claims, without polling. The lock proves nothing about the next instant,
since a new user may wait for it. So the reaper releases it, enters the gate, and tries again: while it holds the gate,
no new user can arrive.

If the caller is root, the account of the server has written `data`, and may have written anything there. So nothing in
it is trusted: a process is the server's if the account owns it and it works in `data`, and a socket if it is in a
directory that this package makes, and the account listens on it. Without that a forged postmaster.pid has root stop
another cluster, and delete files where only root may.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GATE, USERS, REAPER = "gate.lock", "users.lock", "reaper.lock"
STARTING, KEEP = "starting", "keep"
DATA, RUN, LOG, OLD_LOG = "data", "run", "postgres.log", "postgres.log.1"
CONF, PASSWORD, UNFINISHED, BINARIES = "server.conf", "password", "initdb.tmp", "binaries"
OURS = (STARTING, KEEP, DATA, RUN, LOG, OLD_LOG, CONF, PASSWORD, UNFINISHED, BINARIES, USERS, REAPER)

POLL = 0.02  # seconds between two looks at a state that has no event to wait for
READY_WITHIN = 120.0  # seconds a postmaster may take to recover from a crash
STOPPED_WITHIN = 30.0  # seconds a fast shutdown may take before an immediate one
ANSWERS_WITHIN = 5.0  # seconds a postmaster may take to answer a new session
LAUNCHED_WITHIN = 5.0  # seconds from the launch of a postmaster to its pid file

STARTUP = b"user\0postgres\0\0"  # the parameters of a startup message
CANNOT_CONNECT_NOW = b"\0C57P03\0"  # a field of an error: its SQLSTATE

_NUMBER = re.compile("[0-9]{1,9}")
_TEMPORARY = re.compile("/tmp/pgqueue-[A-Za-z0-9_]+")


class Postmaster(NamedTuple):
    """The contents of postmaster.pid."""

    pid: int
    port: int
    run: str
    listens_on: str
    ready: bool
    owner: int

    @property
    def socket(self) -> Path:
        return Path(self.run, f".s.PGSQL.{self.port}")

    def accepts(self) -> bool:
        """True if a server of the account listens on the socket."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(self.socket))
                if hasattr(socket, "SO_PEERCRED"):
                    uid: int = struct.unpack("iii", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
                    return uid == self.owner  # the fields are pid, uid, gid
            except OSError:
                return False
        return True

    def recovers(self) -> bool:
        """True while it refuses sessions since it recovers from a crash, or is starting.

        A server that stops one of its processes with a signal closes a new connection without an answer.
        """
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(ANSWERS_WITHIN)
            try:
                probe.connect(str(self.socket))
                probe.sendall(struct.pack("!ii", 8 + len(STARTUP), 3 << 16) + STARTUP)
                answer = probe.recv(1000)
            except ConnectionError:
                return True
            except OSError:  # no answer, or no socket
                return False
        return not answer or (answer[:1] == b"E" and CANNOT_CONNECT_NOW in answer and b"shutting down" not in answer)

    def forget_socket(self) -> None:
        """Remove the socket's files. Their directory is held open: the account may put a link in its place."""
        with contextlib.suppress(OSError):
            directory = os.open(self.run, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(directory).st_uid == self.owner:
                    for leftover in (f"{self.socket.name}.lock", self.socket.name):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(leftover, dir_fd=directory)
            finally:
                os.close(directory)


def read(root: Path) -> Postmaster | None:
    """The contents of postmaster.pid, which may be stale; None if there is none."""
    text = read_file(root / DATA / "postmaster.pid")
    if text is None:
        return None
    lines = [line.strip() for line in text.splitlines()]
    lines += [""] * (8 - len(lines))  # the postmaster writes it little by little
    pid, port = (int(line) if _NUMBER.fullmatch(line) else 0 for line in (lines[0], lines[3]))
    owner = os.stat(root / DATA).st_uid
    run = lines[4] if owner == os.geteuid() or _is_temporary(lines[4], owner) else str(root / RUN)
    return Postmaster(pid, port, run, lines[5], lines[7] == "ready", owner)


def read_file(path: Path) -> str | None:
    """The text of a small file of the account's; None if there is none. Neither a link nor a pipe is followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no file: remove it")
        return file.read(10_000).decode(errors="replace")


def _is_temporary(run: str, owner: int) -> bool:
    """Whether it is a directory that cluster.py made for a socket whose own place has too long a name."""
    if not _TEMPORARY.fullmatch(run):
        return False
    try:
        found = os.lstat(run)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == owner


def find(root: Path) -> Postmaster | None:
    """The running postmaster once it is ready; None if there is none. TimeoutError if it does not become ready.

    The check connects to the socket and does not trust the pid file: a killed postmaster stays a zombie until process 1
    waits for it, which in many containers never happens, and pg_ctl takes a zombie for a live server.
    """
    began = time.monotonic()
    while True:
        postmaster = read(root)
        waited = time.monotonic() - began
        if postmaster is not None and postmaster.ready and postmaster.accepts():
            return postmaster
        if postmaster is None or not is_servers(root, postmaster):
            # The file may be stale or still empty: a postmaster that was launched is about to write its own.
            if waited > LAUNCHED_WITHIN or not (root / STARTING).exists():
                return None
        elif waited > READY_WITHIN:
            raise TimeoutError(
                f"process {postmaster.pid} holds {root / DATA / 'postmaster.pid'} "
                f"but was not ready on {postmaster.socket} within {READY_WITHIN:.0f} s"
            )
        time.sleep(POLL)


def is_postgres(pid: int) -> bool:
    """True if `pid` is a live process called postgres: neither a zombie nor another program given the pid."""
    if pid <= 0:
        return False
    try:
        name, rest = Path(f"/proc/{pid}/stat").read_text().split("(", 1)[1].rsplit(")", 1)
        state = rest.split()[0]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return False
        command = ["ps", "-o", "state=", "-o", "comm=", "-p", str(pid)]  # no /proc on macOS
        state, _, name = subprocess.run(command, capture_output=True, text=True).stdout.strip().partition(" ")
    return not state.startswith("Z") and name.strip().rpartition("/")[2] == "postgres"


def is_servers(root: Path, postmaster: Postmaster) -> bool:
    """True if the process of the pid file is the server's: the account's, and at work in `data`."""
    if not is_postgres(postmaster.pid):
        return False
    process = Path(f"/proc/{postmaster.pid}")
    try:
        if not process.exists():
            command = ["ps", "-o", "uid=", "-p", str(postmaster.pid)]  # no /proc on macOS
            return subprocess.run(command, capture_output=True, text=True).stdout.strip() == str(postmaster.owner)
        if process.stat().st_uid != postmaster.owner:
            return False
        with contextlib.suppress(PermissionError):  # root in a container may not look; its uid then decides
            return (process / "cwd").samefile(root / DATA)
        return True
    except FileNotFoundError:
        return False


def halt(root: Path) -> bool:
    """Stop the server by a fast shutdown. Returns True if there was one. Call it behind the gate.

    A server that recovers from a crash is stopped by an immediate shutdown: its next start recovers as well. A fast one
    would wait until the files are synced, which takes as long as the disk needs; and the postmaster of PostgreSQL 18
    does not end if it gets the signal then.
    """
    postmaster = find(root)
    (root / STARTING).unlink(missing_ok=True)
    if postmaster is None:
        return False
    fast, immediate = signal.SIGINT, signal.SIGQUIT
    for number in (immediate,) if postmaster.recovers() else (fast, immediate):
        if not is_servers(root, postmaster):  # or a pid of another container, which must not be killed
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(postmaster.pid, number)
        deadline = time.monotonic() + STOPPED_WITHIN
        while is_servers(root, postmaster) and time.monotonic() < deadline:
            time.sleep(POLL)
    forget_run(root, postmaster)
    return True


def forget_run(root: Path, postmaster: Postmaster) -> None:
    """Remove the socket's directory if it had to be outside of the server's directory."""
    if postmaster.run and Path(postmaster.run) != root / RUN:
        postmaster.forget_socket()
        with contextlib.suppress(OSError):
            os.rmdir(postmaster.run)


def delete(root: Path) -> None:
    """Delete a stopped server, and only its own files. Call it behind the gate.

    The gate's file is deleted last: a process that waits at it then sees that the file is another one, and begins
    again. Until then no process can create the deleted files again. The file stays if anything else stays, since it
    marks the directory as the server's own.
    """
    for name in OURS:
        shutil.rmtree(root / name, ignore_errors=True)
        with contextlib.suppress(OSError):
            (root / name).unlink()
    if os.listdir(root) == [GATE]:
        (root / GATE).unlink()
        with contextlib.suppress(OSError):  # another starter uses it already, or the parent may not be changed
            root.rmdir()


def open_lock(path: Path, *, create: bool = False) -> int:
    """Open a lock file. Programs that this process starts do not inherit it."""
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)


@contextlib.contextmanager
def gate(root: Path, *, create: bool = False) -> Iterator[int]:
    """Hold the lock that starting and stopping the server need. FileNotFoundError if the directory is gone.

    Yields the descriptor that holds the lock. A program inherits it if its work must be over before the lock is free.
    The lock is released and not just closed, since a process that was forked in the meantime holds the same descriptor.
    """
    while True:
        descriptor = open_lock(root / GATE, create=create)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _same_file(descriptor, root / GATE):
                yield descriptor
                return
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    """False if the file was deleted (with an ephemeral server) while this process waited for its lock."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def try_exclusive(path: Path, *, create: bool = False) -> int | None:
    """A descriptor that holds `path` exclusively, or None if another process holds it."""
    descriptor = open_lock(path, create=create)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def wait_for_users(root: Path) -> None:
    """Block until no process holds a claim. The file is opened again each time: it may have been replaced."""
    descriptor = open_lock(root / USERS)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.close(descriptor)


def reap(root: Path, life: int, *, ephemeral: bool) -> None:
    """Stop the server when its last user has gone. `life` is the descriptor that holds reaper.lock."""
    while True:
        wait_for_users(root)
        with gate(root):
            unused = try_exclusive(root / USERS)
            if unused is None:  # a new user claimed it in between
                continue
            os.close(unused)
            try:
                if not (root / KEEP).exists():
                    halt(root)
                    if ephemeral:
                        delete(root)
            finally:
                os.close(life)  # before the gate opens: the next starter must see that it has no reaper
            return


def detach() -> None:
    """Detach from the process that started the reaper. That process need not wait, and its signals do not reach the
    reaper.

    The reaper ends after the users, so it needs no signal to end. A signal meant for the users (Ctrl-C, a hang-up, a
    service manager's SIGTERM to all processes) would leave the server without a reaper.
    """
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def main(root: str, life: str, ephemeral: str) -> None:
    detach()
    with contextlib.suppress(FileNotFoundError):  # the whole directory was removed: PostgreSQL sees it too
        reap(Path(root), int(life), ephemeral=ephemeral == "ephemeral")


if __name__ == "__main__":
    main(*sys.argv[1:])
