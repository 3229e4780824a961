"""Lanes: a claim beside a lane with 100,000 tasks in it, and eight takers that drain lanes, against the same without.

The takers are plain loops of take and ack, one by one and in batches of 10 and of 100. A batch has one task of each
lane at most, so eight batches of 100 occupy most of the lanes, and the next batch finds few free ones. The tasks are
put by the client, since a put decides which tasks are blocked.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

import pgqueue

from .. import conventional, takers
from ..bench import QUEUE, Bench, connect, empty
from ..children import Child
from ..findings import Findings, Row, at_least, rate, within
from ..rounds import take_turns

TAKERS, LANES = 8, 1000


def measure(bench: Bench) -> Findings:
    with bench.server.database() as dsn:
        findings = Findings([_beside_a_busy_lane(dsn, bench.size(100_000, 20_000), bench.size(500, 300))])
    for batch, each in ((1, bench.size(5, 2)), (10, bench.size(15, 5)), (100, bench.size(30, 10))):
        with bench.server.database() as dsn:
            findings.rows.append(_drains(bench, dsn, batch, LANES * each))
    return findings


def _beside_a_busy_lane(dsn: str, backlog: int, claims: int) -> Row:
    with pgqueue.Client(dsn) as client:
        queue = client.queue(QUEUE)
        for _ in range(backlog // 10_000):
            queue.put_many((conventional.item(k) for k in range(10_000)), lane="busy")
        queue.put_many([conventional.item(k) for k in range(LANES)], lane=[f"lane {k}" for k in range(LANES)])
        spent = []
        for _ in range(claims):
            began = time.perf_counter()
            task = queue.take(timeout=0)
            spent.append(time.perf_counter() - began)
            if task is None:
                raise RuntimeError("there is a task in another lane")
    claim = statistics.median(spent)
    name = f"take(1) beside a lane of {backlog:,} and {LANES:,} others, median"
    return within(name, claim, 0.003)


def _drains(bench: Bench, dsn: str, batch: int, n: int) -> Row:
    with connect(dsn) as conn, pgqueue.Client(dsn) as client:
        queue = client.queue(QUEUE)

        def drain(lanes: list[str] | None) -> Callable[[], float]:
            def run() -> float:
                empty(conn)
                conn.execute("TRUNCATE pgqueue.lane_check")
                conn.execute("UPDATE pgqueue.queue SET lanes = false")
                for _ in range(n // LANES):
                    queue.put_many([conventional.item(k) for k in range(LANES)], lane=lanes)
                conn.execute("VACUUM ANALYZE pgqueue.task")
                seconds = _take_all(dsn, batch)
                if queue.stats()["total"]:
                    raise RuntimeError("the takers did not get through")
                return n / seconds

            return run

        contenders = {"lanes": drain([f"lane {k}" for k in range(LANES)]), "none": drain(None)}
        ran = take_turns(bench.rounds, contenders)
    ratio = ran.ratio("lanes", "none")
    how = "one by one" if batch == 1 else f"in batches of {batch}"
    measured, reference = rate(ran.median("lanes")), f"{rate(ran.median('none'))} (no lanes)"
    return at_least(f"{TAKERS} takers drain {LANES:,} lanes {how}", measured, reference, ratio, 0.5)


def _take_all(dsn: str, batch: int) -> float:
    with ExitStack() as stack:
        children = [stack.enter_context(Child(takers.take_all, dsn, QUEUE, batch)) for _ in range(TAKERS)]
        for child in children:
            child.hear()
        began = time.perf_counter()
        for child in children:
            child.tell("go")
        for child in children:
            child.hear()
        return time.perf_counter() - began
