"""What the soak looks at: the memory of the programs, and the connections, tables and rows of the database."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from .programs import Program

EVERY = 10.0  # seconds
YOUNG = 8.0  # seconds for which a program's memory says nothing: it loads its modules

SIZES = """
    SELECT sum(pg_table_size(oid)) / 1e6, sum(pg_indexes_size(oid)) / 1e6
      FROM pg_class WHERE relnamespace = 'pgqueue'::regnamespace AND relkind = 'r'
"""
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'pgqueue'::regnamespace AND relkind = 'r'"
NAMED = ("task", "take", "session", "queue", "binding", "status")
FEW = 20  # rows: a table that never has more is shown only if it is named
GROWS = "history"  # the counts of each minute, for some days


@dataclass(frozen=True)
class Kind:
    """How far the last third of a series may be above the middle third, and still be flat: a share, and an amount."""

    unit: str
    share: float
    amount: float

    def is_flat(self, middle: float, last: float) -> bool:
        return last <= middle * (1 + self.share) + self.amount


MEMORY = Kind("MB", 0.02, 1.0)
SIZE = Kind("MB", 0.2, 1.0)  # autovacuum comes once a minute
ROWS = Kind("rows", 0.2, 20.0)
NUMBER = Kind("", 0.1, 2.0)  # they are fewer for a moment after a crash
DELTAS = Kind("rows", 0.0, 1000.0)  # a tick folds them when they are 1,000, or five seconds old (sql/2_base/stats.sql)


class Samples:
    """Takes a sample every ten seconds in a thread. A sample without the database is taken while that is away."""

    def __init__(self, programs: Iterable[Program], connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._programs, self._connect = list(programs), connect
        self._ending = threading.Event()
        self.series: dict[str, tuple[Kind, list[float]]] = {}
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(EVERY):
            for program in self._programs:
                if time.monotonic() - program.began > YOUNG:
                    self._add(f"memory of {program.name}", MEMORY, program.memory())
            try:
                with self._connect() as conn:
                    self._look(conn)
            except psycopg.Error:
                pass

    def _look(self, conn: psycopg.Connection[Any]) -> None:
        (connections,) = conn.execute(CONNECTIONS).fetchall()[0]
        tables, indexes = conn.execute(SIZES).fetchall()[0]
        counts = {table: _count(conn, table) for (table,) in conn.execute(TABLES).fetchall() if table != GROWS}
        self._add("connections", NUMBER, connections)
        self._add("size of tables", SIZE, float(tables))
        self._add("size of indexes", SIZE, float(indexes))
        for table, count in counts.items():
            self._add(f"rows of {table}", DELTAS if table == "delta" else ROWS, count)

    def _add(self, name: str, kind: Kind, value: float) -> None:
        self.series.setdefault(name, (kind, []))[1].append(value)


def _count(conn: psycopg.Connection[Any], table: str) -> int:
    query = sql.SQL("SELECT count(*) FROM pgqueue.{}").format(sql.Identifier(table))
    return int(conn.execute(query).fetchall()[0][0])


def thirds(values: list[float]) -> tuple[float, float, float]:
    """The medians of the first, the middle and the last third."""
    n = max(len(values) // 3, 1)
    return statistics.median(values[:n]), statistics.median(values[n:-n] or values), statistics.median(values[-n:])


def table(series: Mapping[str, tuple[Kind, list[float]]]) -> tuple[list[str], list[str]]:
    """The lines of a table, and what is not flat."""
    lines = ["| | first third | middle | last third | most |", "|---|--:|--:|--:|--:|"]
    grown = []
    for name, (kind, values) in series.items():
        if kind.unit == "rows" and max(values) <= FEW and name.removeprefix("rows of ") not in NAMED:
            continue
        first, middle, last = thirds(values)
        cells = [_shown(value, kind) for value in (first, middle, last, max(values))]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        if not kind.is_flat(middle, last):
            grown.append(f"{name} grew from {_shown(middle, kind)} to {_shown(last, kind)}")
    return lines, grown


def _shown(value: float, kind: Kind) -> str:
    number = f"{value:.1f}" if kind.unit == "MB" else f"{value:,.0f}"
    return f"{number} {kind.unit}".strip()
