"""What a role does with its own queues is not felt in the queues of others."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from statements import rows, value

Connect = Callable[..., psycopg.Connection]

LANES = "lanes => ARRAY (SELECT 'lane ' || g FROM generate_series(1, %(n)s) g)"


def filled(db: psycopg.Connection, queue: str, n: int, options: str = "") -> None:
    """Put n tasks."""
    puts = "(SELECT jsonb_agg(jsonb_build_object('k', g)) FROM generate_series(1, %(n)s) g)"
    db.execute(f"SELECT pgqueue.put_many(%(queue)s, {puts}, {options})".replace(", )", ")"), {"queue": queue, "n": n})


def taken(conn: psycopg.Connection, queue: str, n: int) -> int:
    return int(value(conn, "SELECT count(*) FROM pgqueue.take_many(ARRAY [%s], %s)", queue, n))


@pytest.mark.parametrize("kind", ["lanes", "limits"])
def test_an_open_transaction_that_takes_keeps_no_other_queue_from_its_tasks(
    db: psycopg.Connection, connect: Connect, kind: str
) -> None:
    for queue, n in (("theirs", 300), ("ours", 60)):
        db.execute("SELECT pgqueue.create_queue(%s)", [queue])
        if kind == "limits":
            rows(db, "SELECT pgqueue.set_limit(%s, concurrency => 1, argument => 'k')", queue)
        filled(db, queue, n, LANES if kind == "lanes" else "")
    with connect(autocommit=False) as other:
        assert taken(other, "theirs", 300) == 300
        assert taken(db, "ours", 60) == 60


@pytest.mark.parametrize("queue", [1, 2, 2**24 - 1])
def test_each_queue_has_buckets_of_its_own(db: psycopg.Connection, queue: int) -> None:
    buckets = "SELECT pgqueue._bucket_in_queue(%s, g::text) AS k FROM generate_series(1, 5000) g"
    assert value(db, f"SELECT count(DISTINCT k) FROM ({buckets}) b", queue) == 256
    assert not rows(db, f"{buckets} INTERSECT {buckets}", queue, queue + 1)
