"""The CPU time of processes and of the server's backends, as Linux counts it for each thread.

The time by the clock depends on what else the machine does. The CPU time depends much less on it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

PIDS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    " AND application_name LIKE %s"
)


class BackendTime:
    """The CPU time that all backends of one database have used since the object was made.

    `name` chooses those of some applications, as LIKE does. The backends have to stay until the time is read, and to
    run on this machine.
    """

    def __init__(self, conn: psycopg.Connection[Any], name: str = "%") -> None:
        self._conn = conn
        self._name = name
        self._before = self._read()

    def seconds(self) -> float:
        now = self._read()
        return sum(ns - self._before.get(pid, 0) for pid, ns in now.items()) / 1e9

    def _read(self) -> dict[int, int]:
        pids = [pid for (pid,) in self._conn.execute(PIDS, (self._name,)).fetchall()]
        return {pid: _nanoseconds(pid) for pid in pids}


class TreeTime:
    """The CPU time of a process and its children so far. Of a child that has ended it is what was read last."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: dict[int, float] = {}

    def seconds(self) -> float:
        for pid in (self._pid, *children(self._pid)):
            if found := seconds(pid):
                self._known[pid] = found
        return sum(self._known.values())


def children(pid: int) -> list[int]:
    """Those of the main thread of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def postmaster(conn: psycopg.Connection[Any]) -> int:
    """The parent of all processes of the server, which has to run on this machine."""
    stat = Path(f"/proc/{conn.info.backend_pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def seconds(pid: int) -> float:
    """The CPU time of all threads of a process that live; 0 if it has ended."""
    found = 0
    for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += _read(stat)
    return found / 1e9


def _read(stat: Path) -> int:
    return int(stat.read_text().split()[0])


def _nanoseconds(pid: int) -> int:
    try:
        return _read(Path(f"/proc/{pid}/schedstat"))
    except FileNotFoundError:
        raise RuntimeError(
            f"/proc/{pid}/schedstat is not there: the server must run on this machine, under Linux"
        ) from None
