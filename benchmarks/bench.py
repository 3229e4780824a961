"""The Bench that every measure gets: the server, the length of the run, and the common steps on a database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from . import conventional, pgbench
from .findings import Findings
from .server import Server

QUEUE = "bench"


@dataclass(frozen=True)
class Bench:
    server: Server
    rounds: int
    quick: bool

    def size(self, full: int, quick: int) -> int:
        """`full` or `quick`, by the length of this run."""
        return quick if self.quick else full

    def pgbench(self, dsn: str, script: str, **length: int) -> float:
        return pgbench.rate(self.server.pgbench, dsn, script, **length)


Measure = Callable[[Bench], Findings]


def connect(dsn: str) -> psycopg.Connection[Any]:
    """A connection in autocommit, as in an application that saves round trips."""
    return psycopg.connect(dsn, autocommit=True, connect_timeout=10)


def empty(conn: psycopg.Connection[Any]) -> None:
    """Begin a round with empty tables: no rows, no dead rows, no checkpoint that is due."""
    conn.execute("TRUNCATE conventional, pgqueue.task, pgqueue.take")
    conn.execute("CHECKPOINT")


def fill(conn: psycopg.Connection[Any], n: int, *, delay: str | None = None) -> None:
    """Insert n tasks into both designs' tables, without their functions, and analyze the tables."""
    data = conventional.text(0)
    conn.execute("SELECT pgqueue.queue_id(%s)", (QUEUE,))
    conn.execute(
        "INSERT INTO pgqueue.task (queue_id, state, run_at, data)"
        " SELECT pgqueue.queue_id(%s), CASE WHEN %s::interval IS NULL THEN 'R' ELSE 'D' END, now() + %s::interval,"
        " %s::text::jsonb FROM generate_series(1, %s)",
        (QUEUE, delay, delay, data, n),
    )
    if delay is None:
        conn.execute(
            "INSERT INTO conventional (queue_id, data) SELECT 1, %s::text::jsonb FROM generate_series(1, %s)", (data, n)
        )
    conn.execute("VACUUM ANALYZE pgqueue.task, conventional")
    conn.execute("SELECT pgqueue._fold_deltas()")  # after a raw INSERT the next tick would have to count all rows
    conn.execute("CHECKPOINT")
