"""Take, handle, ack: one task at a time by one taker, against two conventional ways run by pgbench.

The first uses two transactions, UPDATE to take and DELETE to ack, so that a task survives its taker. The second uses
one DELETE ... RETURNING: a task is gone before it was handled.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pgqueue

from .. import conventional
from ..bench import QUEUE, Bench, connect, empty, fill
from ..findings import Findings, Row, at_least, rate
from ..rounds import take_turns

OURS = "take, ack"
TWO = "UPDATE, then DELETE (two transactions)"
ONE = "DELETE ... RETURNING (one, not crash-safe)"
SCRIPTS = {TWO: conventional.TAKE_THEN_DELETE, ONE: conventional.DELETE_AT_ONCE}


def measure(bench: Bench) -> Findings:
    n = bench.size(5_000, 2_000)
    with bench.server.database() as dsn, connect(dsn) as conn, pgqueue.Client(dsn) as client:
        queue = client.queue(QUEUE)
        queue.take(0)  # connects

        def filled(step: Callable[[], float]) -> Callable[[], float]:
            def run() -> float:
                empty(conn)
                fill(conn, n * 2)  # never down to an empty queue
                return step()

            return run

        contenders = {OURS: filled(lambda: _rate(queue, n))}
        for name, script in SCRIPTS.items():
            contenders[name] = filled(lambda script=script: bench.pgbench(dsn, script, transactions=n))  # type: ignore[misc]
        ran = take_turns(bench.rounds, contenders)
    ours = rate(ran.median(OURS))
    two, one = (f"{rate(ran.median(name))} ({name} by pgbench)" for name in (TWO, ONE))
    return Findings(
        [
            at_least("take, handle, ack one by one", ours, two, ran.ratio(OURS, TWO), 0.75),
            Row("... against a task that is lost with its taker", ours, one, ran.ratio(OURS, ONE)),
        ]
    )


def _rate(queue: pgqueue.Queue, n: int) -> float:
    began = time.perf_counter()
    for _ in range(n):
        task = queue.take(0)
        if task is None:
            raise RuntimeError("the queue was empty too early")
        task.ack()
    return n / (time.perf_counter() - began)
