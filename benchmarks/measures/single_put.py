"""One put at a time by one client, without a waiting taker, against pgbench's one-row INSERT."""

from __future__ import annotations

import time

import pgqueue

from .. import conventional
from ..bench import QUEUE, Bench, connect, empty
from ..report import Bars, Findings, Row, rate
from ..rounds import take_turns

OURS, THEIRS = "put", "INSERT by pgbench"


def measure(bench: Bench) -> Findings:
    seconds = bench.size(2, 1)
    with bench.server.database() as dsn, connect(dsn) as conn, pgqueue.Client(dsn) as client:
        queue = client.queue(QUEUE)
        queue.put(None)

        def ours() -> float:
            empty(conn)
            return _rate(queue, seconds)

        def theirs() -> float:
            empty(conn)
            return bench.pgbench(dsn, conventional.ONE_PUT, seconds=seconds)

        ran = take_turns(bench.rounds, {OURS: ours, THEIRS: theirs})
    ratio = ran.ratio(OURS, THEIRS)
    row = Row(
        "single put from Python, no taker",
        rate(ran.median(OURS)),
        f"{rate(ran.median(THEIRS))} (one-row INSERT by pgbench)",
        ratio,
        ">= 0.55",
        ratio >= 0.55,
    )
    bars = {"pgqueue put": ran.median(OURS), THEIRS: ran.median(THEIRS)}
    return Findings([row], [Bars("single put, one client", "tasks/s", bars)])


def _rate(queue: pgqueue.Queue, seconds: float) -> float:
    item = conventional.item(7)
    n = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        queue.put(item)
        n += 1
    return n / (time.perf_counter() - began)
