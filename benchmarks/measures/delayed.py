"""Taking a ready task while a million delayed ones are in the same queue, against the same take without them."""

from __future__ import annotations

from ..bench import Bench, connect, fill
from ..findings import Findings, at_most, milliseconds
from ..rounds import take_turns
from ..steps import taker


def measure(bench: Bench) -> Findings:
    n, takes = bench.size(1_000_000, 100_000), bench.size(500, 300)
    crowded, alone = f"{n:,} delayed", "none"
    with bench.server.database() as full, bench.server.database() as empty:
        with connect(full) as conn:
            fill(conn, n, delay="1 day")
        with taker(full) as among_many, taker(empty) as among_none:
            ran = take_turns(bench.rounds * 2, {crowded: lambda: among_many(takes), alone: lambda: among_none(takes)})
    ratio = ran.ratio(crowded, alone)
    measured, reference = (milliseconds(ran.median(name)) for name in (crowded, alone))
    return Findings([at_most(f"take of a ready task, {n:,} delayed", measured, f"{reference} (none)", ratio, 1.1)])
