"""What jobs and batches cost: tasks for a second of CPU time of the worker, of this process, and of the server.

By the clock, two runs on one machine differ by more than these layers cost. One worker process, handlers that do
nothing. A drain begins with all tasks there. With a batch, putting them counts too, and so does the task at its end;
the worker has had a small one before, since the first calls of a connection compile their functions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import psycopg

import pgqueue

from .. import conventional, cpu, takers
from ..bench import QUEUE, Bench, connect
from ..children import LIMIT, Child
from ..findings import Findings, Row, at_least, rate
from ..rounds import take_turns

CHUNK = 500  # tasks in a put_many
PLAIN, JOB = "plain handler", "job"
WORK = {PLAIN: takers.work, JOB: takers.work_jobs}


def measure(bench: Bench) -> Findings:
    n = bench.size(20_000, 5_000)
    members = bench.size(100_000, 2_000)
    sizes = [size for size in (2_000, 10_000, 100_000) if size <= members]
    with bench.server.database() as dsn, connect(dsn) as conn, pgqueue.Client(dsn) as client:

        def drained(kind: str) -> Callable[[], float]:
            def run() -> float:
                _no_batch(client, n)
                with Child(WORK[kind], dsn, QUEUE) as child:
                    child.hear()
                    return n / _seconds(conn, child, lambda: child.tell("go"))

            return run

        def handled(size: int, put: Callable[[pgqueue.Client, int], None]) -> Callable[[], float]:
            def run() -> float:
                with Child(takers.work_jobs, dsn, QUEUE) as child:
                    child.hear()
                    child.tell("go")
                    _seconds(conn, child, lambda: put(client, CHUNK))
                    return size / _seconds(conn, child, lambda: put(client, size))

            return run

        ran = take_turns(bench.rounds, {kind: drained(kind) for kind in WORK})
        rows = [_row("drain of jobs", ran.median(JOB), ran.median(PLAIN), PLAIN, ran.ratio(JOB, PLAIN), 0.95)]
        for size in sizes:
            ran = take_turns(bench.rounds, {"with": handled(size, _batch), "without": handled(size, _no_batch)})
            what = f"put and drain of {size:,} jobs in a batch"
            rows.append(
                _row(what, ran.median("with"), ran.median("without"), "no batch", ran.ratio("with", "without"), 0.7)
            )
    return Findings(rows)


def _row(what: str, ours: float, theirs: float, name: str, ratio: float, least: float) -> Row:
    return at_least(f"{what}, for a second of CPU time", rate(ours), f"{rate(theirs)} ({name})", ratio, least)


def _batch(client: pgqueue.Client, n: int) -> None:
    with client.batch(pgqueue.Put(QUEUE, _item(0))) as batch:
        _put(client, n, batch)


def _no_batch(client: pgqueue.Client, n: int) -> None:
    _put(client, n, None)


def _put(client: pgqueue.Client, n: int, batch: Any) -> None:
    queue, items = client.queue(QUEUE), [_item(i) for i in range(CHUNK)]
    for _ in range(n // CHUNK):
        queue.put_many(items, batch=batch)


def _item(n: int) -> dict[str, Any]:
    return {"job": "work", "args": conventional.item(n)}


def _seconds(conn: psycopg.Connection[Any], child: Child, begin: Callable[[], None]) -> float:
    """The seconds of CPU time until no task is left."""
    conn.execute("VACUUM ANALYZE pgqueue.task")
    conn.execute("SELECT pgqueue._fold_deltas()")
    backends, before = cpu.BackendTime(conn), cpu.seconds(os.getpid()) + cpu.seconds(child.pid)
    begin()
    deadline = time.perf_counter() + LIMIT
    while conn.execute("SELECT FROM pgqueue.task LIMIT 1").fetchone() is not None:
        if time.perf_counter() > deadline:
            raise TimeoutError("the worker did not get through")
        time.sleep(0.02)
    return backends.seconds() + cpu.seconds(os.getpid()) + cpu.seconds(child.pid) - before
