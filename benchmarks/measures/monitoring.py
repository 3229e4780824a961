"""The queries of a monitor, with millions of tasks in ten queues and in every state."""

from __future__ import annotations

import statistics
import time
from typing import Any, LiteralString

import psycopg

from ..bench import Bench, connect
from ..findings import Findings, within

QUEUES, TAKEN, POLLS = 10, 1000, 21
LIMIT = 0.010

#: A third of the tasks in the first queue. Of twenty: one delayed, buried, kept as done, and in one of 1,000 lanes.
FILL = """
INSERT INTO pgqueue.task (queue_id, priority, state, run_at, done_at, lane, key, error, data)
SELECT CASE WHEN g %% 20 = 4 THEN 2 WHEN g %% 3 = 0 THEN 1 ELSE 3 + g %% 8 END, -(g %% 50 = 7)::int,
       (CASE g %% 20 WHEN 1 THEN 'D' WHEN 2 THEN 'B' WHEN 3 THEN 'F'
                     WHEN 4 THEN CASE WHEN g <= 20000 THEN 'R' ELSE 'L' END ELSE 'R' END)::"char",
       CASE g %% 20 WHEN 1 THEN now() + interval '1 h' + g * interval '1 s' END,
       CASE g %% 20 WHEN 3 THEN now() - g * interval '1 ms' END,
       CASE g %% 20 WHEN 4 THEN 'lane' || g / 20 %% 1000 END,
       CASE g %% 20 WHEN 5 THEN 'key' || g END,
       CASE g %% 20 WHEN 2 THEN 'ValueError: no' END,
       jsonb_build_object('to', 'user' || g || '@example.org', 'text', repeat('x', 60))
  FROM generate_series(1, %s) g
"""

ASKED: dict[str, LiteralString] = {
    "queues": "SELECT * FROM pgqueue.queues",
    "stats": "SELECT * FROM pgqueue.stats",
    "rates": "SELECT * FROM pgqueue.rates",
    "takes": "SELECT * FROM pgqueue.takes",
    "sessions": "SELECT * FROM pgqueue.sessions",
    "listeners": "SELECT * FROM pgqueue.listeners",
    "locks": "SELECT * FROM pgqueue.locks",
    "tables": "SELECT * FROM pgqueue.tables",
    "snapshots": "SELECT * FROM pgqueue.snapshots",
    "health": "SELECT * FROM pgqueue.health",
    "tasks: one by its id": "SELECT * FROM pgqueue.tasks WHERE id = 1003",
    "tasks: one by its key": "SELECT * FROM pgqueue.tasks WHERE queue = 'q1' AND key = 'key1005' AND stored <> 'F'",
    "tasks: the newest": "SELECT * FROM pgqueue.tasks ORDER BY id DESC LIMIT 100",
    "tasks: buried": "SELECT * FROM pgqueue.tasks WHERE queue_id = 1 AND stored = 'B' ORDER BY id LIMIT 100",
    "find_tasks: ready": "SELECT * FROM pgqueue.find_tasks('q1', 'ready')",
    "find_tasks: taken": "SELECT * FROM pgqueue.find_tasks('q1', 'taken')",
    "find_tasks: delayed": "SELECT * FROM pgqueue.find_tasks('q1', 'delayed')",
    "find_tasks: buried": "SELECT * FROM pgqueue.find_tasks('q1', 'buried')",
    "find_tasks: blocked": "SELECT * FROM pgqueue.find_tasks('q2', 'blocked')",
    "find_tasks: done": "SELECT * FROM pgqueue.find_tasks('q1', 'done')",
    "why: a queue": "SELECT * FROM pgqueue.why('q1')",
    "why: a task": "SELECT * FROM pgqueue.why(44044)",
}


def measure(bench: Bench) -> Findings:
    n = bench.size(2_000_000, 200_000)
    findings = Findings()
    with bench.server.database() as dsn, connect(dsn) as conn, connect(dsn) as holder:
        conn.execute("SELECT pgqueue.queue_id('q' || i) FROM generate_series(1, %s) i", (QUEUES,))
        conn.execute("UPDATE pgqueue.queue SET lanes = true WHERE name = 'q2'")
        conn.execute(FILL, (n,))
        conn.execute("VACUUM ANALYZE pgqueue.task")
        holder.execute("SELECT pgqueue.open_session(label => 'host:1:worker')")
        holder.execute("SELECT count(*) FROM pgqueue.take_many('{q1}', %s)", (TAKEN,))
        holder.execute("SELECT pgqueue.try_lock('lock' || i) FROM generate_series(1, 10) i")
        conn.execute("SELECT pgqueue.promote_all()")
        for name, query in ASKED.items():
            rows, seconds = _ask(conn, query)
            findings.rows.append(within(f"{name}, of {n:,} tasks", seconds, LIMIT, f"{rows} rows"))
    return findings


def _ask(conn: psycopg.Connection[Any], query: LiteralString) -> tuple[int, float]:
    """The number of rows and the median seconds, on one connection without prepared statements."""
    times = []
    for _ in range(POLLS):
        began = time.perf_counter()
        found = conn.execute(query, prepare=False).fetchall()
        times.append(time.perf_counter() - began)
    return len(found), statistics.median(times)
