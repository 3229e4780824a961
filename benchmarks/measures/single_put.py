"""One put at a time by one client, without a waiting taker, against pgbench's one-row INSERT."""

from __future__ import annotations

import time

import pgqueue

from .. import conventional
from ..bench import QUEUE, Bench, connect, empty
from ..findings import Findings, at_least, rate
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
    reference = f"{rate(ran.median(THEIRS))} (one-row INSERT by pgbench)"
    return Findings([at_least("put one by one, one thread", rate(ran.median(OURS)), reference, ratio, 0.6)])


def _rate(queue: pgqueue.Queue, seconds: float) -> float:
    item = conventional.item(7)
    n = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        queue.put(item)
        n += 1
    return n / (time.perf_counter() - began)
