"""Times out of bounds: the functions refuse them, and rows in which raw SQL wrote them hold up no take."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sampling import sampled
from statements import put, rows

from pgqueue._values.arguments import MAX_SECONDS

TOO_LONG = "1000000000.000001 s"
CALLS = {  # each function with a time, and the time; {} is what is tried
    "put delay": "put('q', '1', delay => {})",
    "put ttr": "put('q', '1', ttr => {})",
    "put ttl": "put('q', '1', ttl => {})",
    "put with a key": "put('q', '1', key => 'k', ttl => {})",
    "put_many delay": "put_many('q', '[1]', delay => {})",
    "put_many ttr": "put_many('q', '[1]', ttr => {})",
    "put_many ttl": "put_many('q', '[1]', ttl => {})",
    "publish delay": "publish('', 'q', '1', delay => {})",
    "publish ttr": "publish('', 'q', '1', ttr => {})",
    "publish ttl": "publish('', 'q', '1', ttl => {})",
    "create delay": "create_queue('new', delay => {})",
    "create ttr": "create_queue('new', ttr => {})",
    "create ttl": "create_queue('new', ttl => {})",
    "create keep_done": "create_queue('new', keep_done => {})",
    "create expires": "create_queue('new', expires => {})",
    "alter": "alter_queue('q', jsonb_build_object('ttl', {}::text))",
    "pause": "pause_queue('q', {})",
    "release delay": "release((SELECT id FROM t), (SELECT token FROM t), delay => {})",
    "release every": "release((SELECT id FROM t), (SELECT token FROM t), every => {})",
    "fail delay": "fail((SELECT id FROM t), (SELECT token FROM t), delay => {})",
    "fail keep": "fail((SELECT id FROM t), (SELECT token FROM t), keep => {})",
    "finish": "finish((SELECT id FROM t), (SELECT token FROM t), keep => {})",
    "finish_many": "finish_many(ARRAY (SELECT id FROM t), ARRAY (SELECT token FROM t), keep => {})",
    "touch": "touch((SELECT id FROM t), (SELECT token FROM t), more => {})",
    "claim ttl": "claim_messages('q', ttl => {})",
    "claim grace": "claim_messages('q', grace => {})",
    "renew ttl": "renew_claim('q', 1, ttl => {})",
    "renew grace": "renew_claim('q', 1, grace => {})",
    "status": "set_status('k', '1', ttl => {})",
    "session": "open_session(grace => {})",
}
ZERO = {"put delay", "put_many delay", "publish delay", "create delay", "pause", "release delay", "fail delay", "touch"}
ZERO |= {"claim grace", "renew grace", "session"}


@pytest.fixture
def q(db: psycopg.Connection) -> psycopg.Connection:
    """With a task that is taken, and one that is not."""
    put(db, "q")
    put(db, "q")
    db.execute("CREATE TEMP TABLE t AS SELECT id, token FROM pgqueue.take('q')")
    return db


def infinite(conn: psycopg.Connection) -> list[str]:
    return ["infinity", "-infinity"] if conn.info.server_version >= 170000 else []


@pytest.mark.parametrize("call", CALLS)
def test_a_time_that_is_too_long_or_too_short_is_refused(q: psycopg.Connection, call: str) -> None:
    too_short = ["-1 us"] if call in ZERO else ["0", "-1 us"]
    for time in [TOO_LONG, "100 years", "170000000 years", *too_short, *infinite(q)]:
        with pytest.raises(psycopg.DatabaseError, match=r"must be (over )?0 to 1e\+09 seconds, not ") as raised:
            q.execute("SELECT pgqueue." + CALLS[call].format(f"interval '{time}'"))
        assert raised.value.sqlstate == (
            "PQ042" if call in ("finish", "finish_many", "fail keep", "status") else "PQ002"
        )


@pytest.mark.parametrize("call", CALLS)
def test_the_longest_and_the_shortest_are_not(q: psycopg.Connection, call: str) -> None:
    """And the tick, the takers and the views go on with them."""
    for time in (f"{MAX_SECONDS:.0f} s", "0" if call in ZERO else "1 us"):
        with q.transaction(force_rollback=True):
            q.execute("SELECT pgqueue." + CALLS[call].format(f"interval '{time}'"))
            goes_on(q)


@pytest.mark.parametrize(
    "moment", ["'infinity'", "'-infinity'", "'294276-01-01'", "clock_timestamp() + interval '1000000001 s'"]
)
@pytest.mark.parametrize("call", ["put('q', '1', {})", "put_many('q', '[1]', {})", "publish('', 'q', '1', {})"])
def test_a_run_at_out_of_bounds_is_refused(q: psycopg.Connection, call: str, moment: str) -> None:
    with pytest.raises(psycopg.DatabaseError, match=r"at most 1e.09 seconds from now") as raised:
        q.execute("SELECT pgqueue." + call.format(f"run_at => {moment}"))
    assert raised.value.sqlstate == "PQ002"


def test_raw_sql_cannot_give_a_queue_such_times(q: psycopg.Connection) -> None:
    for column_ in ("delay", "ttr", "ttl", "keep_done", "expires"):
        with pytest.raises(psycopg.errors.CheckViolation):
            q.execute(f"UPDATE pgqueue.queue SET {column_} = '{TOO_LONG}'")


# --- rows that raw SQL wrote

MOMENTS = ["infinity", "-infinity", "294276-01-01", "9999-12-31 23:59:59.999999", "4700-01-01 BC"]
TIMES = ["170000 years", "-170000 years", TOO_LONG, "0"]
PLANTED = [
    *((f"{column_} = '{moment}'", "R") for column_ in ("created_at", "ready_at", "expires_at") for moment in MOMENTS),
    *((f"run_at = '{moment}'", "D") for moment in MOMENTS),
    *((f"buried_at = '{moment}'", "B") for moment in MOMENTS),
    *((f"done_at = '{moment}'", "F") for moment in MOMENTS),
    *((f"ttr = '{time}'", "R") for time in TIMES),
]


def goes_on(conn: psycopg.Connection) -> None:
    rows(conn, "SELECT pgqueue.promote_all(), pgqueue.clean_up(), pgqueue.sweep()")
    rows(conn, "SELECT * FROM pgqueue.next_due(ARRAY ['q'])")
    rows(conn, "SELECT * FROM pgqueue.stats")
    rows(conn, "SELECT * FROM pgqueue.health")


@pytest.mark.parametrize(("planted", "state"), sampled(PLANTED, keep=7))
def test_a_planted_row_is_in_nobodys_way(db: psycopg.Connection, planted: str, state: str) -> None:
    """Python reads the rows of each claim, and the tasks around the planted one are taken."""
    for options in ({}, {"lane": "a"}):
        with db.transaction(force_rollback=True):
            bad, good = put(db, "q", **options), put(db, "q")
            ready = "run_at = now()," if state == "D" else ""
            db.execute(f"UPDATE pgqueue.task SET {ready} state = '{state}' WHERE id = %s", [bad])
            db.execute(f"UPDATE pgqueue.task SET {planted} WHERE id = %s", [bad])
            go_on_around(db, bad, good)


def go_on_around(db: psycopg.Connection, bad: int, good: int) -> None:
    for claim in ("take_many(ARRAY ['q'], 3)", "claim_messages('q')", "pop('q', 3)"):
        with db.transaction(force_rollback=True):
            assert good in [row["id"] for row in all_of(db, claim)]
            goes_on(db)
    with db.transaction(force_rollback=True):
        for id in (bad, good):
            all_of(db, f"take_id({id})")
        goes_on(db)
    with db.transaction(force_rollback=True):
        taken = [all_of(db, "take('q')") for _ in range(2)]
        assert good in [row["id"] for found in taken for row in found]
    goes_on(db)


def all_of(conn: psycopg.Connection, call: str) -> list[dict[str, Any]]:
    return conn.cursor(row_factory=dict_row).execute(f"SELECT * FROM pgqueue.{call}").fetchall()
