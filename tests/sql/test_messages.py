"""Deleting messages in SQL, as Zaqar's: who may, and what a claim holds afterwards."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from claiming import age, claim, filled, held, problem
from statements import column, put, row, rows, state, take, value
from stepping import waiting

Connect = Any


def test_the_four_refusals(db: psycopg.Connection) -> None:
    mine, others, free = filled(db, 3)
    one, _ = claim(db, 1)
    two, _ = claim(db, 1)
    before = rows(db, "SELECT id, state FROM pgqueue.tasks ORDER BY id")
    assert problem(db, mine) == "claimed"
    assert problem(db, free, one) == "not claimed"
    assert problem(db, others, one) == "claimed by another"
    assert problem(db, others, one ^ 1) == "no claim"
    age(db, one)
    assert problem(db, others, one) == "no claim"
    assert problem(db, mine, one) == "not claimed"
    assert [id for id, _ in before] == column(db, "SELECT id FROM pgqueue.tasks ORDER BY id")
    assert problem(db, mine) is None
    assert problem(db, free) is None
    assert problem(db, others, two) is None
    assert rows(db, "SELECT * FROM pgqueue.tasks") == rows(db, "SELECT * FROM pgqueue.take") == []


def test_a_message_that_is_not_there_is_deleted(db: psycopg.Connection) -> None:
    id = put(db, "other")
    for missing in (id, id + 1):
        assert problem(db, missing) is None
        assert problem(db, missing, 1) is None
    assert state(db, id) == "ready"


@pytest.mark.parametrize("now", ["delayed", "buried"])
def test_nobody_holds_what_is_set_aside(db: psycopg.Connection, now: str) -> None:
    id = put(db, "q", delay="1 h" if now == "delayed" else "0")
    if now == "buried":
        db.execute("SELECT pgqueue.bury(%s)", [id])
    assert problem(db, id, 1) == "not claimed"
    assert problem(db, id) is None
    assert state(db, id) is None


def test_what_a_taker_holds_is_claimed_as_well(db: psycopg.Connection) -> None:
    put(db, "q")
    id, _ = take(db, "q")
    assert problem(db, id) == "claimed"


def test_done_messages_are_kept_where_the_queue_says_so(db: psycopg.Connection) -> None:
    id = put(db, "q")
    db.execute("UPDATE pgqueue.queue SET keep_done = '1 h'")
    token, _ = claim(db)
    assert problem(db, id, token) is None
    assert state(db, id) == "done"
    assert problem(db, id) is None
    assert state(db, id) == "done"


def test_deleting_waits_for_a_claim_that_is_being_made(db: psycopg.Connection, connect: Connect) -> None:
    id = put(db, "q")
    claimer = connect(autocommit=False)
    claim(claimer)
    with waiting(connect(), db, "SELECT pgqueue.delete_message('q', %s)", id) as asked:
        claimer.commit()
    assert asked.result() == [("claimed",)]
    assert state(db, id) == "taken"


def test_pq002_at_an_older_snapshot(db: psycopg.Connection, connect: Connect) -> None:
    id = put(db, "q")
    conn = connect()
    conn.execute("SET default_transaction_isolation = 'repeatable read'")
    with pytest.raises(psycopg.DatabaseError, match="READ COMMITTED") as raised:
        problem(conn, id)
    assert raised.value.sqlstate == "PQ002"
    assert state(db, id) == "ready"


def test_the_number_of_claimed_ones_falls_with_each_that_is_deleted(db: psycopg.Connection) -> None:
    ids = filled(db, 5)
    token, _ = claim(db, 3)
    stats = "SELECT free, claimed, total FROM pgqueue.message_stats('q')"
    assert row(db, stats) == (2, 3, 5)
    problem(db, ids[0], token)
    assert row(db, stats) == (2, 2, 4)
    db.execute("SELECT pgqueue.bury(%s, %s)", [ids[1], token])
    assert row(db, stats) == (3, 1, 4)
    age(db, token)
    assert row(db, stats) == (4, 0, 4)
    assert held(db, token) is None


def test_many_are_deleted_claimed_or_not(db: psycopg.Connection) -> None:
    free, claimed, other = put(db, "q"), put(db, "q"), put(db, "other")
    left = put(db, "q")
    value(db, "SELECT pgqueue.put('q', '0', priority => -1)")
    claim(db, 1)
    deleted = column(db, "SELECT id FROM pgqueue.delete_messages('q', %s)", [claimed, 12345, free, other, claimed])
    assert deleted == [free, claimed]
    assert (state(db, left), state(db, other)) == ("ready", "ready")


def test_calls_are_counted(db: psycopg.Connection) -> None:
    ids = filled(db, 3)
    token, _ = claim(db)
    problem(db, ids[0], token)
    value(db, "SELECT pgqueue.renew_claim('q', %s)", token)
    value(db, "SELECT pgqueue.release_claim('q', %s)", token)
    problem(db, ids[1])
    counted = "SELECT verb, sum(calls) FROM pgqueue.delta WHERE calls > 0 GROUP BY verb"
    assert dict(rows(db, counted)) == {"put": 3, "take": 3, "ack": 1, "touch": 2, "release": 2, "delete": 1}
