"""Bulk put from Python objects, against a bare COPY of prepared text.

The COPY encodes no JSON and returns no ids, so the ratio shows the part of the server's own speed that is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, LiteralString

import psycopg

import pgqueue

from .. import conventional
from ..bench import QUEUE, Bench, connect, empty
from ..findings import Findings, Row, at_least, rate
from ..rounds import take_turns

INTO_THEIRS = "COPY conventional (queue_id, data) FROM STDIN"
INTO_OURS = "COPY copy_of_task (queue_id, data) FROM STDIN"
OURS, THEIRS, COPY_OF_OURS = "put_many", "COPY, conventional table", "COPY, table like pgqueue's"


def measure(bench: Bench) -> Findings:
    n = bench.size(100_000, 30_000)
    items = [conventional.item(i) for i in range(n)]
    ready = "".join(f"1\t{conventional.text(i)}\n" for i in range(n)).encode()
    with bench.server.database() as dsn, connect(dsn) as conn, pgqueue.Client(dsn) as client:
        conn.execute("CREATE TABLE copy_of_task (LIKE pgqueue.task INCLUDING ALL)")
        queue = client.queue(QUEUE)
        queue.put_many(items[:1000])  # connects

        def timed(step: Callable[[], object]) -> Callable[[], float]:
            return lambda: n / _seconds(conn, step)

        ran = take_turns(
            bench.rounds,
            {
                OURS: timed(lambda: queue.put_many(items)),
                THEIRS: timed(lambda: _copy(conn, INTO_THEIRS, ready)),
                COPY_OF_OURS: timed(lambda: _copy(conn, INTO_OURS, ready)),
            },
        )
    ours = ran.median(OURS)
    rows = [Row("bulk put from Python objects", rate(ours), "-", None, "100,000/s", ours >= 100_000)]
    for name in (THEIRS, COPY_OF_OURS):
        ratio = ran.ratio(OURS, name)
        where = name.removeprefix("COPY, ")
        rows.append(at_least(f"bulk put, against COPY into a {where}", rate(ours), rate(ran.median(name)), ratio, 0.75))
    return Findings(rows)


def _seconds(conn: psycopg.Connection[Any], step: Callable[[], object]) -> float:
    conn.execute("TRUNCATE copy_of_task")
    empty(conn)
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _copy(conn: psycopg.Connection[Any], statement: LiteralString, ready: bytes) -> None:
    with conn.cursor().copy(statement) as copy:
        copy.write(ready)
