"""The servers of the demo on a cluster: embedded ones of its own, which end with it and leave no files.

The first server has a synchronous standby: a commit waits until the standby has it on disk. So if the first server
dies, the standby has every task that a client was told of.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .. import migrate
from ..embedded import EmbeddedServer
from ..errors import Error

ROOM = 120  # MB on the disk for each server
SETTINGS = {"shared_buffers": "32MB", "max_wal_size": "64MB", "min_wal_size": "32MB"}
IN_STEP_WITHIN = 30.0  # seconds that the standby may take to stream
PAUSE = 0.02


class Servers:
    """A context manager. `dsns`: of each server, in the order of their numbers, which begin with 1."""

    def __init__(self, n: int) -> None:
        _check_room(n + 1)
        self._opened = ExitStack()
        self._all = [EmbeddedServer(ephemeral=True, settings=SETTINGS) for _ in range(n)]
        self._standby: EmbeddedServer | None = None
        self.dsns: list[str] = []

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor(len(self._all)) as starting:
                list(starting.map(self._start, self._all, range(1, len(self._all) + 1)))
            first = self._all[0].dsn()
            self._standby = EmbeddedServer(ephemeral=True, settings=SETTINGS, standby_of=first)
            self._opened.enter_context(self._standby)
            self.dsns = [_of_both(first, self._standby.dsn()), *(server.dsn() for server in self._all[1:])]
            _make_synchronous(first)
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    def kill_first(self) -> int:
        """Kill the first server by SIGKILL. Returns the pid of its postmaster."""
        pid = self._all[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid

    def promote(self) -> None:
        """Promote the standby of the first server. Returns when it takes writes."""
        assert self._standby is not None
        _run(self._standby.dsn(), "SELECT pg_catalog.pg_promote(true, 60)")

    def restart_first(self) -> str:
        """Start the first server again, beside its former standby. Returns the DSN of both, this one first."""
        assert self._standby is not None
        return _of_both(self._all[0].start().dsn(), self._standby.dsn())

    def count(self, queue: str) -> tuple[int, int]:
        """How many tasks of a queue are on the first server, and on its former standby."""
        assert self._standby is not None
        sql = "SELECT pg_catalog.count(*) FROM pgqueue.tasks WHERE queue OPERATOR(pg_catalog.=) %s"
        here, there = (_run(server.dsn(), sql, queue) for server in (self._all[0], self._standby))
        return int(here), int(there)

    def _start(self, server: EmbeddedServer, number: int) -> None:
        self._opened.enter_context(server)
        migrate.up(server.dsn(), server=number)


def _check_room(n: int) -> None:
    """Raise Error if the disk has no room for so many servers."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free // 1_000_000
    if free < n * ROOM:
        raise Error(f"{n} servers need {n * ROOM} MB in {folder}, and {free} MB are free: set TMPDIR to another folder")


def _of_both(one: str, other: str) -> str:
    """A DSN with two hosts, of which clients use the primary."""
    first, second = conninfo_to_dict(one), conninfo_to_dict(other)
    hosts: dict[str, Any] = {name: f"{first[name]},{second[name]}" for name in ("host", "port")}
    return make_conninfo("", **first | hosts | {"hostaddr": ",", "target_session_attrs": "read-write"})


def _make_synchronous(primary: str) -> None:
    """Have commits wait for the standby."""
    streams = "SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication WHERE {}"
    _await(primary, streams.format("state OPERATOR(pg_catalog.=) 'streaming'"))
    _run(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    _run(primary, "SELECT pg_catalog.pg_reload_conf()")
    _await(primary, streams.format("sync_state OPERATOR(pg_catalog.=) 'sync'"))


def _await(dsn: str, query: str) -> None:
    until = time.monotonic() + IN_STEP_WITHIN
    while not _run(dsn, query):
        if time.monotonic() > until:
            raise Error(f"the standby did not follow its primary within {IN_STEP_WITHIN:.0f} s")
        time.sleep(PAUSE)


def _run(dsn: str, query: str, *args: object) -> Any:
    """The first column of the first row."""
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as conn:
        cursor = conn.execute(query.encode(), args or None)
        return (cursor.fetchone() or (None,))[0] if cursor.description else None
