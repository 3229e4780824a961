"""Draining a backlog with worker processes, against pgbench running the conventional SQL in batches of 100.

pgbench gets the number of clients that is fastest on this machine. A drain lasts from the start signal to
connected workers until the table is empty, with all acks committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, LiteralString

import psycopg

from .. import conventional, takers
from ..bench import QUEUE, Bench, connect, empty, fill
from ..children import LIMIT, Child
from ..findings import Findings, Lines, Row, at_least, rate
from ..rounds import take_turns

CLIENTS = (1, 2, 4)
BATCH = 100
OURS = {1: "pgqueue, one process", 2: "pgqueue, two processes", 4: "pgqueue, four processes"}
THEIRS = {clients: f"conventional, pgbench -c {clients}" for clients in CLIENTS}


def measure(bench: Bench) -> Findings:
    n = bench.size(100_000, 30_000)
    with bench.server.database() as dsn, connect(dsn) as conn:

        def filled(step: Callable[[], float]) -> Callable[[], float]:
            def run() -> float:
                empty(conn)
                fill(conn, n)
                return step()

            return run

        def conventionally(clients: int) -> Callable[[], float]:
            return filled(
                lambda: bench.pgbench(dsn, conventional.BATCH, clients=clients, transactions=n // BATCH) * BATCH
            )

        def with_workers(processes: int) -> Callable[[], float]:
            return filled(lambda: n / _drain(conn, dsn, processes))

        contenders = {THEIRS[clients]: conventionally(clients) for clients in CLIENTS}
        ran = take_turns(bench.rounds, contenders | {OURS[k]: with_workers(k) for k in OURS})
    best = ran.best(*THEIRS.values())
    reference = f"{rate(ran.median(best))} ({best}, batches of {BATCH})"
    one, two = (rate(ran.median(OURS[k])) for k in (1, 2))
    rows = [
        at_least("drain, one worker process", one, reference, ran.ratio(OURS[1], best), 1),
        at_least("drain, two worker processes", two, f"{one} (one)", ran.ratio(OURS[2], OURS[1]), 1.25),
        Row("... against the conventional design", two, reference, ran.ratio(OURS[2], best)),
    ]
    lines = {
        "pgqueue workers": [(k, ran.median(name)) for k, name in OURS.items()],
        "pgbench, conventional": [(k, ran.median(name)) for k, name in THEIRS.items()],
    }
    return Findings(rows, [Lines("drain", "processes or clients", "tasks/s", lines)])


def _drain(conn: psycopg.Connection[Any], dsn: str, processes: int) -> float:
    """Seconds from the start signal to connected workers until no task is left."""
    last = conn.execute("SELECT max(id) FROM pgqueue.task").fetchone()
    with ExitStack() as stack:
        children = [stack.enter_context(Child(takers.work, dsn, QUEUE)) for _ in range(processes)]
        for child in children:
            child.hear()
        began = time.perf_counter()
        for child in children:
            child.tell("go")
        _await_nothing(conn, "SELECT FROM pgqueue.task WHERE id = %s", last)  # a cheap probe
        _await_nothing(conn, "SELECT FROM pgqueue.task LIMIT 1")
        return time.perf_counter() - began


def _await_nothing(conn: psycopg.Connection[Any], query: LiteralString, args: Sequence[Any] | None = None) -> None:
    deadline = time.perf_counter() + LIMIT
    while conn.execute(query, args).fetchone() is not None:
        if time.perf_counter() > deadline:
            raise TimeoutError("the workers did not get through")
        time.sleep(0.002)
