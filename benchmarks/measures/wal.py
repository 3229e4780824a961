"""Write-ahead log for each task that is put, taken and acked in batches of 100, against the conventional design's.

Full-page writes are switched off for this measure, since their pages depend on the last checkpoint and not on the
design. On a server that the benchmark did not start they stay on, for both designs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import psycopg

import pgqueue

from .. import conventional
from ..bench import QUEUE, Bench, connect, empty
from ..findings import Findings, Row
from ..rounds import take_turns

BATCH = 100
OURS, THEIRS = "pgqueue", "conventional"


def measure(bench: Bench) -> Findings:
    batches = bench.size(100, 30)
    items = [conventional.item(n) for n in range(BATCH)]
    array = "[" + ",".join(conventional.text(n) for n in range(BATCH)) + "]"
    without = bench.server.set("full_page_writes", "off")
    try:
        with bench.server.database() as dsn, connect(dsn) as conn, pgqueue.Client(dsn) as client:
            queue = client.queue(QUEUE)

            def ours() -> None:
                queue.put_many(items)
                queue.ack_many(queue.take_many(BATCH, timeout=0))

            def theirs() -> None:
                conn.execute(conventional.PUT_MANY, (array,))
                taken = conn.execute(conventional.TAKE_MANY, (BATCH,)).fetchall()
                conn.execute(conventional.ACK_MANY, ([id for id, _ in taken],))

            contenders = {
                name: _bytes_per_task(conn, cycle, batches) for name, cycle in ((OURS, ours), (THEIRS, theirs))
            }
            ran = take_turns(bench.rounds, contenders)
    finally:
        bench.server.set("full_page_writes", "on")
    ratio = ran.ratio(OURS, THEIRS)
    measured, reference = (f"{statistics.median(ran.values[name]):,.0f} bytes" for name in (OURS, THEIRS))
    note = "full-page writes off" if without else "full-page writes included"
    return Findings([Row(f"WAL per put+take+ack, batches of {BATCH}", measured, f"{reference} ({note})", ratio)])


def _bytes_per_task(conn: psycopg.Connection[Any], cycle: Callable[[], None], batches: int) -> Callable[[], float]:
    def run() -> float:
        empty(conn)
        cycle()
        before = _position(conn)
        for _ in range(batches):
            cycle()
        return (_position(conn) - before) / (batches * BATCH)

    return run


def _position(conn: psycopg.Connection[Any]) -> float:
    row = conn.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
    return float(row[0]) if row else 0.0
