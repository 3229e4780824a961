"""A primary and its standby: after each failover the old primary is rebuilt as the standby of the new one."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgqueue.embedded import account, binaries, reaper

from .servers import Cluster, Server

IN_STEP_WITHIN = 60.0  # seconds that a new standby may take to stream


class Pair(Server):
    """Two clusters, one of which is the primary. `dsn` names both, and asks for the one that takes writes."""

    ours = True

    def __init__(self, folder: Path, bindir: Path | None, *, synchronous: bool) -> None:
        self._synchronous, self._bindir = synchronous, bindir
        roots = [folder / "a", folder / "b"]
        for root in roots:
            root.mkdir()
            root.chmod(0o711)
        settings = {"hot_standby": "on"}
        self._primary = Cluster(roots[0], bindir, settings)
        self._standby = Cluster(roots[1], bindir, settings, fill=False)
        try:
            self._make_standby()
        except BaseException:
            self.close()
            raise
        hosts = [conninfo_to_dict(one.dsn) for one in (self._primary, self._standby)]
        self.dsn = make_conninfo(
            host=",".join(str(one["host"]) for one in hosts),
            port=",".join(str(one["port"]) for one in hosts),
            user=str(hosts[0]["user"]),
            dbname=str(hosts[0]["dbname"]),
            target_session_attrs="read-write",
        )

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return self._primary.connect(**options)

    def fail_over(self) -> None:
        """The primary crashes, and the standby is promoted. Returns when the new primary takes writes."""
        self._primary.halt("immediate")
        with self._standby.connect() as admin:
            admin.execute("SELECT pg_promote(true, 60)")
        self._primary, self._standby = self._standby, self._primary

    def mend(self) -> None:
        """Make the old primary the standby. Until then the new one has none, and does not wait for one."""
        shutil.rmtree(self._standby.root / reaper.DATA)
        self._make_standby()

    def _make_standby(self) -> None:
        root = self._standby.root
        data = root / reaper.DATA
        user = account.choose(self._primary.root / reaper.DATA)
        programs = binaries.reachable(binaries.discover(self._bindir), user, root)
        (root / reaper.GATE).touch(0o600)  # the mark of a folder that belongs to an embedded server
        data.mkdir(0o700)
        user.own(data)
        done = user.run(
            programs.bindir / "pg_basebackup", "-D", data, "-d", self._primary.dsn, "-R", "-X", "stream", "-c", "fast"
        )
        if done.returncode != 0:
            raise RuntimeError(f"pg_basebackup failed: {done.stderr.strip()}")
        self._standby.start()
        self._wait_until("streaming", "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")
        if self._synchronous:
            self._set("synchronous_standby_names", "*")
            self._wait_until("synchronous", "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")

    def _set(self, name: str, value: str) -> None:
        with self._primary.connect() as admin:
            admin.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
            admin.execute("SELECT pg_reload_conf()")

    def _wait_until(self, what: str, query: str) -> None:
        deadline = time.monotonic() + IN_STEP_WITHIN
        with self._primary.connect() as admin:
            while admin.execute(query).fetchone() == (0,):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the standby was not {what} within {IN_STEP_WITHIN:g} s")
                time.sleep(0.02)

    def close(self) -> None:
        self._primary.close()
        self._standby.close()
