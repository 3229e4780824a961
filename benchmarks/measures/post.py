"""Post to wait: from the moment before a post to the moment when wait() in another process has returned.

Against the least that psycopg can do: NOTIFY on one connection, LISTEN and notifies() on another.
"""

from __future__ import annotations

import statistics
from itertools import chain

import pgqueue

from .. import takers
from ..bench import Bench, connect
from ..children import Child
from ..findings import Findings, Row, at_most, milliseconds, percentile
from ..samples import samples

CHANNEL = "bench"


def measure(bench: Bench) -> Findings:
    n = bench.size(300, 100)
    ours: list[list[float]] = []
    bare: list[list[float]] = []
    with (
        bench.server.database() as dsn,
        connect(dsn) as conn,
        pgqueue.Client(dsn) as client,
        Child(takers.wait_on_channel, dsn, CHANNEL) as waiter,
        Child(takers.listen_on_channel, dsn) as listener,
    ):
        waiter.hear()
        listener.hear()
        for _ in range(bench.rounds + 1):
            ours.append(samples(waiter, lambda moment: client.post(CHANNEL, repr(moment)), n))
            bare.append(
                samples(listener, lambda moment: conn.execute("SELECT pg_notify('bare', %s)", (repr(moment),)), n)
            )
    return _findings(ours[1:], bare[1:])


def _findings(ours: list[list[float]], bare: list[list[float]]) -> Findings:
    all_ours, all_bare = sorted(chain(*ours)), sorted(chain(*bare))
    ratio = statistics.median(statistics.median(a) / statistics.median(b) for a, b in zip(ours, bare, strict=True))
    median, reference = statistics.median(all_ours), statistics.median(all_bare)
    late, late_bare = percentile(all_ours, 0.99), percentile(all_bare, 0.99)
    bare_median = f"{milliseconds(reference)} (bare psycopg, NOTIFY and LISTEN)"
    return Findings(
        [
            at_most("post to wait, median", milliseconds(median), bare_median, ratio, 1.3),
            Row("post to wait, p99", milliseconds(late), milliseconds(late_bare), late / late_bare),
        ]
    )
