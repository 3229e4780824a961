"""Delays and deadlines in SQL: nobody keeps timers, and whoever comes first makes ready what is due."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, eventually
from statements import column, pass_time, put, row, rows, state, take, value
from stepping import waiting

Connect = Any
DUE = "SELECT queue, seconds FROM pgqueue.next_due(%s)"


def test_a_take_past_its_ttr_is_ready_again_with_no_maintenance(db: psycopg.Connection, connect: Connect) -> None:
    other = connect()
    id = put(db, "q", ttr="1 h")
    _, late = take(db, "q")
    assert rows(other, "SELECT * FROM pgqueue.take('q')") == []
    pass_time(db, "59 min 59.8 s")
    assert eventually(lambda: column(other, "SELECT id FROM pgqueue.take('q')")) == [id]
    assert row(db, "SELECT attempts, error FROM pgqueue.tasks") == (1, "the time to run was over")
    assert row(db, "SELECT problem FROM pgqueue.ack(%s, %s)", id, late) == ("taken by another",)


@pytest.mark.slow
def test_a_touch_keeps_a_take_past_its_first_ttr(db: psycopg.Connection) -> None:
    put(db, "q", ttr="2 s")
    id, token = take(db, "q")
    db.execute("SELECT pgqueue.touch(%s, %s, more => '10 s')", [id, token])
    db.execute("SELECT pg_sleep(2.1)")
    assert rows(db, "SELECT * FROM pgqueue.take('q')") == []
    assert row(db, "SELECT state FROM pgqueue.ack(%s, %s)", id, token) == ("done",)


@pytest.mark.slow
def test_bury_survives_the_deadline(db: psycopg.Connection) -> None:
    put(db, "q", ttr="2 s")
    id, token = take(db, "q")
    assert row(db, "SELECT state FROM pgqueue.bury(%s, %s)", id, token) == ("buried",)
    db.execute("SELECT pg_sleep(2.1)")
    assert rows(db, "SELECT * FROM pgqueue.take('q')") == []
    assert state(db, id) == "buried"


def test_promote_counts_what_it_made_ready(db: psycopg.Connection) -> None:
    q = value(db, "SELECT pgqueue.queue_id('q')")
    put(db, "q", ttr="0.02 s")
    take(db, "q")
    put(db, "q", delay="0.02 s")
    put(db, "q", delay="1 h")
    put(db, "other", delay="0.02 s")
    db.execute("SELECT pg_sleep(0.03)")
    assert value(db, "SELECT pgqueue._promote(%s)", q) == 2
    assert value(db, "SELECT pgqueue._promote(%s)", q) == 0
    assert column(db, "SELECT state FROM pgqueue.task ORDER BY id") == ["R", "R", "D", "D"]


def test_promote_all_is_for_every_queue(db: psycopg.Connection) -> None:
    for name in ("a", "b", "c"):
        put(db, name, delay="0.02 s")
    put(db, "later", delay="1 h")
    db.execute("SELECT pg_sleep(0.03)")
    assert value(db, "SELECT pgqueue.promote_all()") == 3
    assert value(db, "SELECT pgqueue.promote_all()") == 0


def test_only_one_promotes_all_at_a_time(db: psycopg.Connection, connect: Connect) -> None:
    put(db, "q", delay="0.02 s")
    other = connect(autocommit=False)
    other.execute("SELECT pgqueue.promote_all()")
    db.execute("SELECT pg_sleep(0.03)")
    assert value(db, "SELECT pgqueue.promote_all()") == 0
    other.rollback()
    assert value(db, "SELECT pgqueue.promote_all()") == 1


def test_promote_takes_a_thousand_of_each_kind(db: psycopg.Connection) -> None:
    many = "SELECT pgqueue.put_many('q', (SELECT jsonb_agg(i) FROM generate_series(1, 1100) i), {} => '0.02 s')"
    db.execute(many.format("ttr"))
    db.execute("SELECT FROM pgqueue.take_many('{q}', 1100)")
    db.execute(many.format("delay"))
    db.execute("SELECT pg_sleep(0.03)")
    q = value(db, "SELECT pgqueue.queue_id('q')")
    assert [value(db, "SELECT pgqueue._promote(%s)", q) for _ in range(3)] == [2000, 200, 0]


# --- next_due


def test_nothing_is_due_until_somebody_puts(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.queue_id('empty')")
    buried = put(db, "buried")
    db.execute("SELECT pgqueue.bury(%s)", [buried])
    put(db, "held")
    take(db, "held")
    assert sorted(rows(db, DUE, ["empty", "buried", "held", "unknown"])) == [
        ("buried", None),
        ("empty", None),
        ("held", None),
    ]


def test_a_ready_task_is_due_now(db: psycopg.Connection, connect: Connect) -> None:
    put(db, "q")
    assert rows(db, DUE, ["q"]) == [("q", 0)]
    other = connect(autocommit=False)
    take(other, "q")  # locked by a transaction that may yet roll back
    assert rows(db, DUE, ["q"]) == [("q", 0)]


@pytest.mark.parametrize("kind", ["delay", "ttr"])
def test_the_next_moment_counts(db: psycopg.Connection, kind: str) -> None:
    passed = Stopwatch()
    put(db, "q", **{kind: "2 h"})
    put(db, "q", **{kind: "1 min"})
    if kind == "ttr":
        take(db, "q"), take(db, "q")
    left = value(db, "SELECT seconds FROM pgqueue.next_due('{q}')")
    assert 60 - passed() < left <= 60


def test_the_earlier_of_delay_and_deadline_counts(db: psycopg.Connection) -> None:
    put(db, "q", ttr="1 min")
    take(db, "q")
    put(db, "q", delay="2 h")
    assert value(db, "SELECT seconds <= 60 FROM pgqueue.next_due('{q}')") is True
    put(db, "q", delay="10 s")
    assert value(db, "SELECT seconds <= 10 FROM pgqueue.next_due('{q}')") is True


def test_what_is_overdue_is_due_now(db: psycopg.Connection) -> None:
    put(db, "q", delay="0.01 s")
    db.execute("SELECT pg_sleep(0.02)")
    assert rows(db, DUE, ["q"]) == [("q", 0)]


# --- a claim that meets a promotion

CLAIMS = {
    "take": "SELECT id FROM pgqueue.take('q')",
    "take_many": "SELECT id FROM pgqueue.take_many(ARRAY ['q'], 5)",
    "pop": "SELECT id FROM pgqueue.pop('q')",
    "claim_messages": "SELECT id FROM pgqueue.claim_messages('q')",
}
PROMOTE = "SELECT pgqueue.promote_all()"


def is_over(conn: psycopg.Connection, kind: str, **options: str) -> int:
    """A task of the queue q that was delayed, or taken, until now; its id."""
    id = put(conn, "q", **options, **({"delay": "1 ms"} if kind == "delay" else {"ttr": "1 ms"}))
    if kind == "ttr":
        take(conn, "q")
    eventually(lambda: value(conn, "SELECT seconds <= 0 FROM pgqueue.next_due('{q}')"))
    return id


@pytest.mark.parametrize("kind", ["delay", "ttr"])
@pytest.mark.parametrize("options", [{}, {"lane": "a"}], ids=["free", "lane"])
@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_claim_waits_for_a_promotion_that_is_under_way(
    db: psycopg.Connection, connect: Connect, kind: str, options: dict[str, str], claim: str, end: str
) -> None:
    """T1, a tick, has made the task ready and not yet committed; T2 claims."""
    id = is_over(db, kind, **options)
    t1, t2 = connect(autocommit=False), connect()

    def claims() -> list[Any]:
        """What T2 finds; None if the machine stood still for longer than T2 waits."""
        assert value(t1, PROMOTE) == 1
        try:
            with waiting(t2, db, claim) as found:
                getattr(t1, end)()
            return found.result()
        except AssertionError:
            t1.rollback()
            return []

    assert eventually(claims) == [(id,)]


def test_a_claim_does_not_wait_long_nor_if_another_task_is_ready(db: psycopg.Connection, connect: Connect) -> None:
    is_over(db, "delay")
    t1 = connect(autocommit=False)
    t1.execute("SELECT FROM pgqueue.task FOR UPDATE")
    db.execute("SET lock_timeout = '2 s'")
    assert rows(db, CLAIMS["take"]) == []  # and no error
    assert value(db, "SHOW lock_timeout") == "2s"
    assert rows(db, "SELECT id FROM pgqueue.take_many(ARRAY ['q', 'other'], 5)") == []
    other = put(db, "q")
    db.execute("SET lock_timeout = 0; SET statement_timeout = '5 s'")
    assert rows(db, CLAIMS["take"]) == [(other,)]
