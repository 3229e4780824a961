"""Faults on our tables: locks, DDL, VACUUM FULL, long transactions and old snapshots.

None of them breaks a connection, so none excuses anything: no lock is lost, and no task is given to another process.
Meanwhile puts and takes may wait for the table, and no tick may: the connections of the listeners are watched.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from ..ledger import Violation
from .fault import Scene

MODES: tuple[LiteralString, ...] = ("ACCESS EXCLUSIVE", "SHARE")
FIRST = ("session", "task", "take", "queue", "lock_holder")  # what a short run should see
WATCH = 0.02  # seconds between two looks at the listeners' connections
BRIEF = 10  # looks; a wait that fewer meet is for a transaction of the load that is about to commit


def lock(scene: Scene) -> None:
    """LOCK TABLE: each of our tables in turn, in each mode."""
    with scene.server.connect() as admin:
        tables = _tables(admin)
        table, mode = tables[scene.turn // len(MODES) % len(tables)], MODES[scene.turn % len(MODES)]
        with _watched(scene, f"LOCK TABLE {table} IN {mode} MODE"), admin.transaction():
            admin.execute(sql.SQL("LOCK TABLE {} IN {} MODE").format(_name(table), sql.SQL(mode)))
            scene.sleep(scene.seconds)


def alter(scene: Scene) -> None:
    """ALTER TABLE in a transaction that stays open for a while, and is rolled back."""
    _and_roll_back(scene, "ALTER TABLE {} ADD COLUMN faults int")


def create_index(scene: Scene) -> None:
    """CREATE INDEX in a transaction that stays open for a while, and is rolled back."""
    _and_roll_back(scene, "CREATE INDEX faults ON {} ((1))")


def _and_roll_back(scene: Scene, statement: LiteralString) -> None:
    with scene.server.connect() as admin:
        tables = _tables(admin)
        table = tables[scene.turn % len(tables)]
        with _watched(scene, statement.format(table)), admin.transaction(force_rollback=True):
            admin.execute(sql.SQL(statement).format(_name(table)))
            scene.sleep(scene.seconds)


def vacuum_full(scene: Scene) -> None:
    """VACUUM FULL of all our tables."""
    with scene.server.connect() as admin:
        for table in _tables(admin):
            with _watched(scene, f"VACUUM FULL {table}"):
                admin.execute(sql.SQL("VACUUM FULL {}").format(_name(table)))


def open_transaction(scene: Scene) -> None:
    """A transaction that has read all tables, put a task and closed its session, and stays open; then a rollback."""
    with scene.server.connect() as admin, _watched(scene, "an open transaction"):
        admin.execute("SELECT pgqueue.open_session()")
        with admin.transaction(force_rollback=True):
            for table in _tables(admin):
                admin.execute(sql.SQL("SELECT count(*) FROM {}").format(_name(table)))
            admin.execute("SELECT pgqueue.put('shared', '{\"label\": \"rolled back\"}')")
            admin.execute("SELECT pgqueue.close_session(pgqueue.own_session())")
            scene.sleep(scene.seconds)


def snapshot(scene: Scene) -> None:
    """An idle transaction holds a snapshot, so no dead row can be removed."""
    with scene.server.connect() as admin:
        admin.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with admin.transaction():
            admin.execute("SELECT count(*) FROM pgqueue.task")
            scene.sleep(scene.seconds)


def _tables(admin: psycopg.Connection[Any]) -> list[str]:
    found = [row[0] for row in admin.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'pgqueue' ORDER BY 1")]
    return sorted(found, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))


def _name(table: str) -> sql.Identifier:
    return sql.Identifier("pgqueue", table)


@contextmanager
def _watched(scene: Scene, what: str) -> Iterator[None]:
    """In the meantime no listener's connection waits for a lock of a table or row, except briefly.

    The pids are read before, since a locked table cannot be read.
    """
    watch = _Watch(scene)
    watch.start()
    try:
        yield
    finally:
        if waited := watch.end():
            scene.seen.append(Violation(time.monotonic(), "tick waits", f"{what}: {waited}"))


class _Watch:
    """Looks at the listeners' connections, in a thread of its own.

    A wait is as long as the looks that met it. Its time by the clock is simpler, but has all of a stall of the machine,
    which costs the looks one.
    """

    def __init__(self, scene: Scene) -> None:
        self._admin = scene.server.connect()
        query = "SELECT backend_pid FROM pgqueue.session WHERE id > 0"  # below 0: sessions of plain SQL
        self._pids = [row[0] for row in self._admin.execute(query)]
        self._over = threading.Event()
        self._found = Counter[tuple[str, datetime]]()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> str:
        """The statements that waited, each with the looks that met it."""
        self._over.set()
        self._thread.join()
        self._admin.close()
        return "; ".join(f"{looks} looks met {query}" for (query, _), looks in self._found.items() if looks > BRIEF)

    def _look(self) -> None:
        query = """
            SELECT left(regexp_replace(a.query, '\\s+', ' ', 'g'), 60), l.waitstart
              FROM pg_stat_activity a
              JOIN pg_locks l ON l.pid = a.pid AND NOT l.granted AND l.locktype <> 'advisory'
             WHERE a.pid = ANY (%s) AND l.waitstart IS NOT NULL
        """
        while not self._over.wait(WATCH):
            self._found.update(self._admin.execute(query, [self._pids]).fetchall())
