"""take(1) while 10,000 tasks of the queue are in flight, held by another process, against the same with none.

The mean and not the median: some claims start at the queue's head and walk over all tasks in flight.
"""

from __future__ import annotations

import pgqueue

from ..bench import QUEUE, Bench, connect, fill
from ..findings import Findings, at_most, milliseconds
from ..rounds import take_turns
from ..steps import taker


def measure(bench: Bench) -> Findings:
    n, takes = 10_000, bench.size(500, 300)
    crowded, alone = f"{n:,} in flight", "none"
    with bench.server.database() as full, bench.server.database() as empty, pgqueue.Client(full) as holder:
        with connect(full) as conn:
            fill(conn, n)
        held = sum(len(holder.queue(QUEUE).take_many(1000, timeout=0)) for _ in range(n // 1000))
        if held != n:
            raise RuntimeError(f"{held} tasks could be taken, not {n}")
        with taker(full) as among_many, taker(empty) as among_none:
            ran = take_turns(bench.rounds * 2, {crowded: lambda: among_many(takes), alone: lambda: among_none(takes)})
    ratio = ran.ratio(crowded, alone)
    measured, reference = (milliseconds(ran.median(name)) for name in (crowded, alone))
    return Findings([at_most(f"take(1), {n:,} in flight, mean", measured, f"{reference} (none)", ratio, 2)])
