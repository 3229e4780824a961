"""A claim from SQL, as a program in another language makes it, while tasks of the same queue are in flight.

Such a program has no cursor, which in the Python client remembers where the first free task was.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import psycopg

from ..bench import QUEUE, Bench, connect, fill
from ..findings import Findings, Lines, milliseconds, within

IN_FLIGHT = (0, 1_000, 10_000, 50_000)
JUDGED, LIMIT = 10_000, 0.002


def measure(bench: Bench) -> Findings:
    counts, claims = IN_FLIGHT[: bench.size(4, 3)], bench.size(100, 20)
    found = {n: _claim(bench, n, claims) for n in counts}
    row = within(f"a claim from SQL, {JUDGED:,} in flight", found[JUDGED], LIMIT, f"{milliseconds(found[0])} (none)")
    curve = {"claim": [(n / 1000, found[n] * 1e3) for n in counts]}
    return Findings([row], [Lines("a claim from SQL, by tasks in flight", "thousand tasks in flight", "ms", curve)])


def _claim(bench: Bench, n: int, claims: int) -> float:
    """The median seconds of a claim; each task is acked, so that as many stay in flight."""
    with bench.server.database() as dsn, connect(dsn) as conn, connect(dsn) as holder:
        fill(conn, n + 2 * claims)
        held = 0
        while held < n:
            held += _take_many(holder, min(n - held, 1000), held)
        conn.execute("VACUUM ANALYZE pgqueue.take")
        spent = []
        for _ in range(claims):
            began = time.perf_counter()
            row = conn.execute("SELECT id, token FROM pgqueue.take(%s)", (QUEUE,)).fetchone()
            spent.append(time.perf_counter() - began)
            if row is None:
                raise RuntimeError("a ready task was not taken")
            conn.execute("SELECT pgqueue.ack(%s, %s)", row)
        return statistics.median(spent)


def _take_many(conn: psycopg.Connection[Any], n: int, after: int) -> int:
    """Take up to n tasks behind the first `after`, as a client's cursor does; returns how many."""
    last = conn.execute("SELECT max(id) FROM (SELECT id FROM pgqueue.task ORDER BY id LIMIT %s) t", (after,)).fetchone()
    position = (0, last[0]) if after and last else (None, None)
    taken = conn.execute(
        "SELECT count(*) FROM pgqueue.take_many(ARRAY [%s], %s, after_priority => ARRAY [%s::int],"
        " after_id => ARRAY [%s::int8])",
        (QUEUE, n, *position),
    ).fetchone()
    if not taken or not taken[0]:
        raise RuntimeError("ready tasks were not taken")
    return int(taken[0])
