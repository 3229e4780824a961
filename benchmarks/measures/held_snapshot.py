"""Put, take and ack while another transaction holds a snapshot, so that no dead row can be removed.

Two databases on one server, one with a held snapshot, take turns of one cycle each, so that other load on the machine
meets both alike. The worst window of the one is compared with the median of the other's: all windows have to be fast
enough, in each run. The conventional design slows down without limit, so it is stopped once its time is over.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg

import pgqueue

from .. import conventional
from ..bench import QUEUE, Bench, connect
from ..findings import Findings, Lines, Row, at_least, rate

BATCH, WINDOW = 100, 5_000
LAST = 5  # windows that are compared, after all the others
HELD, FREE, THEIRS = "pgqueue, snapshot held", "pgqueue, no snapshot", "conventional, snapshot held"


def measure(bench: Bench) -> Findings:
    n, runs, patience = bench.size(150_000, 20_000), bench.size(3, 1), bench.size(15, 3)
    pairs = [_pair(bench, n) for _ in range(runs)]
    with _theirs(bench) as cycle:
        theirs = _slowing(cycle, n, patience)
    return _findings(pairs, theirs, n)


def _pair(bench: Bench, n: int) -> dict[str, list[float]]:
    """The rates of each window, with a snapshot held and without one."""
    with ExitStack() as stack:
        cycles = {name: stack.enter_context(_ours(bench, hold=name == HELD)) for name in (HELD, FREE)}
        rates: dict[str, list[float]] = {name: [] for name in cycles}
        for _ in range(n // WINDOW):
            seconds = dict.fromkeys(cycles, 0.0)
            for _ in range(WINDOW // BATCH):
                for name, cycle in cycles.items():
                    began = time.perf_counter()
                    cycle()
                    seconds[name] += time.perf_counter() - began
            for name, each in seconds.items():
                rates[name].append(WINDOW / each)
    return rates


def _slowing(cycle: Callable[[], None], n: int, patience: float) -> list[float]:
    """The rates of each window, until `patience` seconds are over."""
    rates: list[float] = []
    while len(rates) < n // WINDOW and sum(WINDOW / each for each in rates) < patience:
        rates.append(WINDOW / _run(cycle, WINDOW // BATCH, patience))
    return rates


def _findings(pairs: list[dict[str, list[float]]], theirs: list[float], n: int) -> Findings:
    rows = []
    for number, rates in enumerate(pairs, 1):
        free = statistics.median(rates[FREE])
        worst = min(rates[HELD])
        what = f"put+take+ack under a held snapshot, worst {WINDOW:,} of {n:,} tasks, run {number}"
        rows.append(at_least(what, rate(worst), f"{rate(free)} (none held)", worst / free, 0.7))
    last = {name: statistics.median(each for rates in pairs for each in rates[name][-LAST:]) for name in (HELD, FREE)}
    reference = f"{rate(last[FREE])} (none held)"
    rows += [
        at_least(
            f"put+take+ack under a held snapshot, after {n:,} tasks",
            rate(last[HELD]),
            reference,
            last[HELD] / last[FREE],
            0.8,
        ),
        Row(
            "... the conventional design",
            "-",
            f"from {rate(theirs[0])} to {rate(theirs[-1])} within {len(theirs) * WINDOW:,} tasks",
        ),
    ]
    curves = {**pairs[0], THEIRS: theirs}
    lines = {name: [((k + 1) * WINDOW / 1000, each) for k, each in enumerate(of)] for name, of in curves.items()}
    return Findings(rows, [Lines("put+take+ack under a held snapshot", "thousand tasks done", "tasks/s", lines)])


def _run(cycle: Callable[[], None], times: int, patience: float) -> float:
    """Seconds for `times` cycles, extrapolated from those that ran within `patience` seconds."""
    began = time.perf_counter()
    done = 0
    while done < times and time.perf_counter() - began < patience:
        cycle()
        done += 1
    return (time.perf_counter() - began) * times / done


@contextmanager
def _ours(bench: Bench, *, hold: bool) -> Iterator[Callable[[], None]]:
    items = [conventional.item(n) for n in range(BATCH)]
    with bench.server.database() as dsn, pgqueue.Client(dsn) as client, _snapshot(dsn, hold):
        queue = client.queue(QUEUE)

        def cycle() -> None:
            queue.put_many(items)
            queue.ack_many(queue.take_many(BATCH, timeout=0))

        yield cycle


@contextmanager
def _theirs(bench: Bench) -> Iterator[Callable[[], None]]:
    items = "[" + ",".join(conventional.text(n) for n in range(BATCH)) + "]"
    with bench.server.database() as dsn, connect(dsn) as conn, _snapshot(dsn, True):

        def cycle() -> None:
            conn.execute(conventional.PUT_MANY, (items,))
            taken = conn.execute(conventional.TAKE_MANY, (BATCH,)).fetchall()
            conn.execute(conventional.ACK_MANY, ([id for id, _ in taken],))

        yield cycle


@contextmanager
def _snapshot(dsn: str, hold: bool) -> Iterator[psycopg.Connection[Any] | None]:
    if not hold:
        yield None
        return
    with connect(dsn) as conn:
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT count(*) FROM pgqueue.queue")
        yield conn
        conn.execute("ROLLBACK")
