"""Ten thousand queues: their statistics, a scrape by Prometheus, and the health checks.

Of a scrape there are two figures: its time, and the CPU time that this process spends, which reads the answer and
formats it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import psycopg

import pgqueue
from pgqueue.monitors.prometheus import PgqueueCollector

from .. import conventional
from ..bench import Bench, connect
from ..findings import Findings, Lines, Row, milliseconds, within

QUEUES = (100, 1_000, 10_000)
TASKS = 10  # in each queue
HEALTH = "SELECT * FROM pgqueue.health"
ONE, ALL, SCRAPE, FORMAT, CHECKS = "stats of one", "stats of all", "a scrape", "a scrape, CPU of its client", "health"
LIMITS = {ONE: 0.001, ALL: 0.060, SCRAPE: None, FORMAT: 0.2, CHECKS: 0.020}  # seconds, with the most queues

FILL = """
INSERT INTO pgqueue.task (queue_id, state, run_at, data)
SELECT id, 'R', now(), %s::text::jsonb FROM pgqueue.queue, generate_series(1, %s)
"""


def measure(bench: Bench) -> Findings:
    counts = QUEUES[: bench.size(3, 2)]
    found = {n: _ask(bench, n) for n in counts}
    most = counts[-1]
    rows = []
    for name, limit in LIMITS.items():
        seconds = found[most][name]
        what = f"{most:,} queues: {name}"
        rows.append(within(what, seconds, limit) if limit else Row(what, milliseconds(seconds)))
    lines = {name: [(n, found[n][name] * 1e3) for n in counts] for name in LIMITS}
    return Findings(rows, [Lines("reading statistics, by queues", "queues", "ms", lines, logarithmic=True)])


def _ask(bench: Bench, n: int) -> dict[str, float]:
    """Median seconds of each question."""
    times = bench.size(11, 3)
    with bench.server.database() as dsn, connect(dsn) as conn, pgqueue.Client(dsn) as client:
        _fill(conn, n)
        queue = client.queue("q7")
        collector = PgqueueCollector(client, timeout=None)
        return {
            ONE: _median(time.perf_counter, queue.stats, times),
            ALL: _median(time.perf_counter, client.stats, times),
            SCRAPE: _median(time.perf_counter, collector.text, times),
            FORMAT: _median(time.process_time, collector.text, times),
            CHECKS: _median(time.perf_counter, lambda: conn.execute(HEALTH).fetchall(), times),
        }


def _fill(conn: psycopg.Connection[Any], n: int) -> None:
    conn.execute("SELECT pgqueue.queue_id('q' || i) FROM generate_series(1, %s) i", (n,))
    conn.execute(FILL, (conventional.text(0), TASKS))
    conn.execute("VACUUM ANALYZE pgqueue.task, pgqueue.queue")
    conn.execute("SELECT pgqueue._fold_deltas()")
    conn.execute("VACUUM ANALYZE")


def _median(clock: Callable[[], float], step: Callable[[], object], times: int) -> float:
    spent = []
    for _ in range(times + 1):
        began = clock()
        step()
        spent.append(clock() - began)
    return statistics.median(spent[1:])  # without the first, which warms up
