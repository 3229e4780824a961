"""Idle clients: what the server's backends use for clients that wait for a task in one queue, and nothing is put."""

from __future__ import annotations

import statistics
import time

from .. import takers
from ..bench import QUEUE, Bench, connect
from ..children import Child
from ..cpu import BackendTime
from ..findings import Findings, Lines, Row

CLIENTS = (1, 10, 50, 100)
LIMIT = 5  # % of a core, for the most clients
ROUNDS = 3  # at most: one takes half a minute


def measure(bench: Bench) -> Findings:
    seconds = bench.size(6, 1)
    shares: dict[int, list[float]] = {n: [] for n in CLIENTS}
    for _ in range(min(bench.rounds, ROUNDS)):
        for n in CLIENTS:
            shares[n].append(_share(bench, n, seconds))
    found = {n: statistics.median(each) for n, each in shares.items()}
    most = CLIENTS[-1]
    each = found[50] / 50, found[most] / most
    rows = [
        Row(
            f"{most} idle clients, of a core", f"{found[most]:.1f} %", "-", None, f"<= {LIMIT} %", found[most] <= LIMIT
        ),
        Row(
            f"{most} idle clients, each, against each of 50",
            f"{each[1]:.3f} %",
            f"{each[0]:.3f} %",
            each[1] / each[0],
            "<= 1.10",
            each[1] <= each[0] * 1.1,
        ),
    ]
    curve = {"backends": [(float(n), share) for n, share in found.items()]}
    return Findings(rows, [Lines("idle clients", "clients", "% of a core", curve)])


def _share(bench: Bench, n: int, seconds: float) -> float:
    with bench.server.database() as dsn, connect(dsn) as conn, Child(takers.idle, dsn, QUEUE, n) as child:
        child.hear()
        time.sleep(bench.size(4, 1))  # each has asked who ticked: a connection's first statements are compiled
        used = BackendTime(conn)
        began = time.perf_counter()
        time.sleep(seconds)
        return 100 * used.seconds() / (time.perf_counter() - began)
