"""The CPU time of processes and of the server's backends, as Linux counts it for each thread.

The time by the clock depends on what else the machine does. The CPU time depends much less on it.
"""

from __future__ import annotations

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


def seconds(pid: int) -> float:
    """The CPU time of all threads of a process that live."""
    return sum(_read(stat) for stat in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def _read(stat: Path) -> int:
    return int(stat.read_text().split()[0])


def _nanoseconds(pid: int) -> int:
    try:
        return _read(Path(f"/proc/{pid}/schedstat"))
    except FileNotFoundError:
        raise RuntimeError(
            f"/proc/{pid}/schedstat is not there: the server must run on this machine, under Linux"
        ) from None
