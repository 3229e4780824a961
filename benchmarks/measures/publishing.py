"""Publishing to an exchange with a hundred bindings: to one queue of the hundred, and to all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import psycopg

import pgqueue

from .. import conventional
from ..bench import Bench, connect, empty
from ..findings import Findings, Row, milliseconds

BINDINGS = 100
ITEM = conventional.item(7)


def measure(bench: Bench) -> Findings:
    n, wide = bench.size(1_000, 100), bench.size(50, 10)
    with bench.server.database() as dsn, connect(dsn) as conn, pgqueue.Client(dsn) as client:
        _bind(conn, client)

        def timed(step: Callable[[], None]) -> float:
            times = []
            for _ in range(bench.rounds):
                empty(conn)
                began = time.perf_counter()
                step()
                times.append(time.perf_counter() - began)
            return statistics.median(times)

        one = timed(lambda: _publish(client, "direct", "k50", n, 1))
        every = timed(lambda: _publish(client, "fanout", "", wide, BINDINGS)) / wide
    return Findings(
        [
            Row(f"{n:,} publishes to one of {BINDINGS} bindings", milliseconds(one)),
            Row(f"a publish to {BINDINGS} queues", milliseconds(every)),
        ]
    )


def _bind(conn: psycopg.Connection[Any], client: pgqueue.Client) -> None:
    conn.execute("SELECT pgqueue.queue_id('q' || i) FROM generate_series(0, %s) i", (BINDINGS - 1,))
    for type in ("direct", "fanout"):
        client.exchanges.declare(f"bench {type}", type)
    for k in range(BINDINGS):
        for type in ("direct", "fanout"):
            client.exchanges.bind(f"q{k}", f"bench {type}", f"k{k}")


def _publish(client: pgqueue.Client, type: str, key: str, n: int, queues: int) -> None:
    for _ in range(n):
        if client.exchanges.publish(f"bench {type}", key, ITEM) != queues:
            raise RuntimeError("a publish did not reach its queues")
