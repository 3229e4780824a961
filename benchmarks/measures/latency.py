"""Idle pick-up: from the moment before a put to the moment when a waiting taker in another process has the task.

Against the least that psycopg can do: INSERT and NOTIFY in one transaction, LISTEN, an UPDATE ... SKIP LOCKED.
"""

from __future__ import annotations

import statistics
from itertools import chain
from typing import Any

import psycopg

import pgqueue

from .. import takers
from ..bench import QUEUE, Bench, connect
from ..children import Child
from ..findings import Findings, Lines, at_most, milliseconds, percentile, within
from ..samples import samples


def measure(bench: Bench) -> Findings:
    n = bench.size(200, 60)
    ours: list[list[float]] = []
    bare: list[list[float]] = []
    with bench.server.database() as dsn, connect(dsn) as conn, pgqueue.Client(dsn) as client:
        queue = client.queue(QUEUE)
        with Child(takers.wait_for_each, dsn, QUEUE) as waiter, Child(takers.listen_for_each, dsn) as listener:
            waiter.hear()
            listener.hear()
            for _ in range(bench.rounds + 1):
                ours.append(samples(waiter, queue.put, n))
                bare.append(samples(listener, lambda moment: _put(conn, moment), n))
    return _findings(ours[1:], bare[1:])  # without the first, which warms up


def _findings(ours: list[list[float]], bare: list[list[float]]) -> Findings:
    all_ours, all_bare = sorted(chain(*ours)), sorted(chain(*bare))
    ratio = statistics.median(statistics.median(a) / statistics.median(b) for a, b in zip(ours, bare, strict=True))
    median, reference = statistics.median(all_ours), statistics.median(all_bare)
    last, last_bare = percentile(all_ours, 0.99), percentile(all_bare, 0.99)
    name = "bare psycopg, put-notify-take"
    rows = [
        at_most("idle pick-up, median", milliseconds(median), f"{milliseconds(reference)} ({name})", ratio, 1.2),
        within("idle pick-up, p99", last, 0.005, f"{milliseconds(last_bare)} ({name})"),
    ]
    lines = {"pgqueue": _distribution(all_ours), "bare psycopg": _distribution(all_bare)}
    return Findings(rows, [Lines("idle pick-up", "milliseconds", "% of tasks", lines, logarithmic=True)])


def _put(conn: psycopg.Connection[Any], moment: float) -> None:
    with conn.transaction():
        conn.execute("INSERT INTO conventional (queue_id, data) VALUES (1, %s::text::jsonb)", (repr(moment),))
        conn.execute("NOTIFY bare")


def _distribution(ordered: list[float]) -> list[tuple[float, float]]:
    return [(seconds * 1e3, 100 * (k + 1) / len(ordered)) for k, seconds in enumerate(ordered)]
