"""A monitor's poll: the statistics of thirty queues with millions of tasks, and the same after a hundred thousand tasks
under a held snapshot.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import psycopg

from ..bench import Bench, connect, fill
from ..findings import Findings, milliseconds, within

QUEUES, BATCH, POLLS = 30, 100, 50
LIMIT = 0.005


def measure(bench: Bench) -> Findings:
    n, handled = bench.size(1_000_000, 100_000), bench.size(100_000, 20_000)
    with bench.server.database() as dsn, connect(dsn) as conn, connect(dsn) as holder:
        conn.execute("SELECT pgqueue.queue_id('q' || i) FROM generate_series(2, %s) i", (QUEUES,))
        fill(conn, n)
        first = _poll(conn)
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM pgqueue.queue")
        _handle(conn, handled)
        held = _poll(conn)
        holder.execute("ROLLBACK")
    return Findings(
        [
            within(f"poll of {QUEUES} queues, {n:,} tasks", first, LIMIT),
            within(
                f"the same after {handled:,} tasks under a held snapshot",
                held,
                LIMIT,
                f"{milliseconds(first)} (before)",
            ),
        ]
    )


def _handle(conn: psycopg.Connection[Any], n: int) -> None:
    """Put, take and ack, with the ticks of a listener and a cursor as the client has."""
    put = "SELECT pgqueue.put_many('q2', (SELECT jsonb_agg(i) FROM generate_series(1, %s) i))"
    position: tuple[int | None, int | None] = (None, None)
    for batch in range(n // BATCH):
        conn.execute(put, (BATCH,))
        taken = conn.execute(
            "SELECT id, token, priority FROM pgqueue.take_many('{q2}', %s, after_priority => ARRAY [%s::int],"
            " after_id => ARRAY [%s::int8])",
            (BATCH, *position),
        ).fetchall()
        ids, tokens, priorities = zip(*taken, strict=True)
        conn.execute("SELECT * FROM pgqueue.ack_many(%s, %s)", (list(ids), list(tokens)))
        position = (priorities[-1], ids[-1])
        if batch % 10 == 0:
            conn.execute("SELECT pgqueue.promote_all()")


def _poll(conn: psycopg.Connection[Any]) -> float:
    """The median seconds of a poll on one connection."""
    conn.execute("SELECT pgqueue.promote_all()")
    times = []
    for _ in range(POLLS):
        began = time.perf_counter()
        found = conn.execute("SELECT * FROM pgqueue.stats").fetchall()
        times.append(time.perf_counter() - began)
        if len(found) != QUEUES:
            raise RuntimeError(f"{len(found)} queues were seen, not {QUEUES}")
    return statistics.median(times)
