"""Put, take and ack while another transaction holds a snapshot, so that no dead row can be removed.

Three databases on one server: pgqueue with a held snapshot, pgqueue without one, and the conventional design with one.
The first two take turns of one cycle each, so that other load on the machine meets both alike. The third one slows down
without limit, so it is stopped once its time is over.
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
from ..report import Findings, Lines, Row, rate

BATCH = 100
LAST = 5  # windows that are compared, after all the others
HELD, FREE, THEIRS = "pgqueue, snapshot held", "pgqueue, no snapshot", "conventional, snapshot held"


def measure(bench: Bench) -> Findings:
    n, window = bench.size(500_000, 50_000), 5_000
    patience = bench.size(40, 8)
    with ExitStack() as stack:
        cycles = {
            HELD: stack.enter_context(_ours(bench, hold=True)),
            FREE: stack.enter_context(_ours(bench, hold=False)),
            THEIRS: stack.enter_context(_theirs(bench)),
        }
        rates: dict[str, list[float]] = {name: [] for name in cycles}
        for _ in range(n // window + LAST):
            seconds = dict.fromkeys((HELD, FREE), 0.0)
            for _ in range(window // BATCH):
                for name in seconds:
                    seconds[name] += _run(cycles[name], 1, patience)
            if sum(window / each for each in rates[THEIRS]) < patience:
                seconds[THEIRS] = _run(cycles[THEIRS], window // BATCH, patience)
            for name, each in seconds.items():
                rates[name].append(window / each)
    return _findings(rates, n, window)


def _findings(rates: dict[str, list[float]], n: int, window: int) -> Findings:
    ratios = [held / free for held, free in zip(rates[HELD], rates[FREE], strict=True)]
    ratio, worst = statistics.median(ratios[-LAST:]), min(ratios)
    held, free = (statistics.median(rates[name][-LAST:]) for name in (HELD, FREE))
    theirs = rates[THEIRS]
    fell = f"from {rate(theirs[0])} to {rate(theirs[-1])}"
    rows = [
        Row(
            f"put+take+ack under a held snapshot, after {n:,} tasks",
            rate(held),
            f"{rate(free)} (none held)",
            ratio,
            ">= 0.8",
            ratio >= 0.8,
        ),
        Row(f"... in the worst of all windows of {window:,} tasks", "-", "-", worst, ">= 0.7", worst >= 0.7),
        Row("... the conventional design", "-", f"{fell} within {len(theirs) * window:,} tasks"),
    ]
    lines = {name: [((k + 1) * window / 1000, each) for k, each in enumerate(of)] for name, of in rates.items()}
    title = f"put+take+ack in batches of {BATCH}, with a snapshot held"
    return Findings(rows, [Lines(title, "thousand tasks done", "tasks/s", lines)])


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
