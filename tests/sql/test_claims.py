"""Claims of messages in SQL, as Zaqar's: who holds what, and until when."""

from __future__ import annotations

import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from claiming import age, claim, filled, held, life, problem
from eventually import Stopwatch, eventually
from planner import plans, without_autovacuum
from statements import column, put, row, rows, state, take, value
from stepping import waiting

Connect = Any
SECOND = timedelta(seconds=1)

# --- claiming


def test_the_oldest_first_and_then_the_next(db: psycopg.Connection) -> None:
    ids = filled(db, 5)
    assert claim(db, 2)[1] == ids[:2]
    assert claim(db, 2)[1] == ids[2:4]
    assert claim(db, 2)[1] == ids[4:]
    assert claim(db) == (None, [])


@pytest.mark.parametrize("queue", ["q", "never made"])
def test_nothing_to_claim_makes_no_claim(db: psycopg.Connection, queue: str) -> None:
    put(db, "q", delay="1 h")
    assert claim(db, queue=queue) == (None, [])
    assert rows(db, "SELECT * FROM pgqueue.claim") == []


def test_skips_what_is_taken_delayed_expired_or_locked(db: psycopg.Connection, connect: Connect) -> None:
    taken, expired, locked, free = put(db, "q"), put(db, "q", ttl="1 ms"), put(db, "q"), put(db, "q")
    put(db, "q", delay="1 h")
    assert take(db, "q")[0] == taken
    eventually(lambda: life(db, expired) < timedelta())
    other = connect(autocommit=False)
    other.execute("SELECT FROM pgqueue.task WHERE id = %s FOR UPDATE", [locked])
    assert claim(db)[1] == [free]


def test_each_message_is_checked_by_itself(db: psycopg.Connection) -> None:
    """In the original a claim takes all that follows the first free message, also what others claimed."""
    ids = filled(db, 10)
    first, _ = claim(db, 5)
    second, _ = claim(db, 5)
    value(db, "SELECT pgqueue.release_claim('q', %s)", first)
    third, claimed = claim(db, 10)
    assert claimed == ids[:5]
    assert (held(db, second), held(db, third)) == (ids[5:], ids[:5])


def test_racing_claims_share_nothing(db: psycopg.Connection, connect: Connect) -> None:
    ids = filled(db, 120)

    def work(conn: psycopg.Connection) -> list[int]:
        mine: list[int] = []
        while found := claim(conn, 7)[1]:
            mine += found
        return mine

    with ThreadPoolExecutor(6) as pool:
        parts = list(pool.map(work, [connect() for _ in range(6)]))
    assert sorted(id for part in parts for id in part) == ids


def test_pq002_for_what_cannot_be(db: psycopg.Connection) -> None:
    put(db, "q")
    for n, ttl, grace in [(0, "1 s", "1 s"), (-1, "1 s", "1 s"), (1, "0", "1 s"), (1, "1 s", "-1 s")]:
        with pytest.raises(psycopg.DatabaseError, match=r"messages|ttl is positive") as raised:
            claim(db, n, ttl, grace)
        assert raised.value.sqlstate == "PQ002"
    assert rows(db, "SELECT * FROM pgqueue.take") == []


def test_a_claim_is_nobodys(db: psycopg.Connection, connect: Connect) -> None:
    """It outlives its connection, and any other goes on with it."""
    id = put(db, "q")
    conn = connect()
    token, _ = claim(conn)
    conn.execute("SELECT pgqueue.close_session(pgqueue.open_session())")
    conn.close()
    value(db, "SELECT freed FROM pgqueue.sweep()")
    assert held(db, token) == [id]
    assert row(db, "SELECT session, holder FROM pgqueue.tasks") == (0, "a claim")


def test_paused_and_exclusive_queues(db: psycopg.Connection, connect: Connect) -> None:
    value(db, "SELECT pgqueue.create_queue('q', exclusive => true)")
    id = put(db, "q")
    with pytest.raises(psycopg.DatabaseError, match="exclusive") as raised:
        claim(connect())
    assert raised.value.sqlstate == "PQ033"
    db.execute("UPDATE pgqueue.queue SET paused_until = now() + '1 h'")
    assert claim(db) == (None, [])
    db.execute("UPDATE pgqueue.queue SET paused_until = NULL")
    assert claim(db)[1] == [id]


def test_a_lane_gives_one_message_at_a_time(db: psycopg.Connection) -> None:
    first, second, free = put(db, "q", lane="a"), put(db, "q", lane="a"), put(db, "q")
    token, ids = claim(db)
    assert ids == [first, free]
    assert claim(db) == (None, [])
    assert problem(db, first, token) is None
    assert claim(db)[1] == [second]


# --- how long


def test_messages_live_as_long_as_the_claim_and_its_grace(db: psycopg.Connection) -> None:
    short, long, ever = put(db, "q", ttl="60 s"), put(db, "q", ttl="1000 s"), put(db, "q")
    passed = Stopwatch()
    before = life(db, long)
    token, _ = claim(db, 10, "100 s", "50 s")
    lives = life(db, short), life(db, long)
    assert (150 - passed()) * SECOND < lives[0] <= 150 * SECOND
    assert before - passed() * SECOND < lives[1] < before
    assert life(db, ever) is None
    assert value(db, "SELECT pgqueue.renew_claim('q', %s, '500 s', '600 s')", token)
    lives = life(db, short), life(db, long)
    assert (1100 - passed()) * SECOND < lives[0] <= 1100 * SECOND
    assert (1100 - passed()) * SECOND < lives[1] <= 1100 * SECOND


def test_the_claim_counts_and_not_the_messages_ttr(db: psycopg.Connection) -> None:
    put(db, "q", ttr="1 ms"), put(db, "q", ttr="1 h")
    passed = Stopwatch()
    token, _ = claim(db, 10, "100 s")
    assert value(db, "SELECT max(deadline) - min(deadline) FROM pgqueue.tasks") == timedelta()
    left = value(db, "SELECT max(deadline) - clock_timestamp() FROM pgqueue.tasks")
    assert (100 - passed()) * SECOND < left <= 100 * SECOND
    assert len(held(db, token) or []) == 2


def test_renew_restarts_the_age(db: psycopg.Connection) -> None:
    put(db, "q")
    passed = Stopwatch()
    token, _ = claim(db, 10, "100 s", "70 s")
    db.execute("UPDATE pgqueue.claim SET renewed_at = renewed_at - interval '30 s'")
    get = "SELECT ttl, grace, age FROM pgqueue.get_claim('q', %s)"
    ttl, grace, old = rows(db, get, token)[0]
    assert (ttl, grace) == (100 * SECOND, 70 * SECOND)
    assert 30 * SECOND <= old < (30 + passed()) * SECOND
    value(db, "SELECT pgqueue.renew_claim('q', %s, '40 s', '0')", token)
    ttl, grace, new = rows(db, get, token)[0]
    assert (ttl, grace) == (40 * SECOND, timedelta())
    assert timedelta() <= new < passed() * SECOND


@pytest.mark.parametrize("end", ["expired", "released", "never", "of another queue"])
def test_a_claim_that_is_not_there(db: psycopg.Connection, end: str) -> None:
    id = put(db, "q")
    token, _ = claim(db)
    if end == "expired":
        age(db, token)
    elif end == "released":
        value(db, "SELECT pgqueue.release_claim('q', %s)", token)
    queue, asked = ("other" if end == "of another queue" else "q"), (token + 1 if end == "never" else token)
    assert held(db, asked, queue) is None
    assert value(db, "SELECT pgqueue.renew_claim(%s, %s)", queue, asked) is False
    assert (state(db, id) == "taken") == (end in ("never", "of another queue"))


def test_the_end_needs_no_maintenance(db: psycopg.Connection) -> None:
    ids = filled(db, 3)
    first, _ = claim(db, 2)
    age(db, first)
    second, claimed = claim(db)
    assert claimed == ids
    assert column(db, "SELECT attempts FROM pgqueue.tasks ORDER BY id") == [1, 1, 0]
    assert held(db, first) is None
    assert column(db, "SELECT token FROM pgqueue.claim") == [second]


def test_renewing_as_it_ends(db: psycopg.Connection, connect: Connect) -> None:
    """A renewal that had to wait for one that made the claim shorter finds it over."""
    put(db, "q")
    token, _ = claim(db)
    holder = connect(autocommit=False)
    age(holder, token)
    with waiting(connect(), db, "SELECT pgqueue.renew_claim('q', %s)", token) as renewed:
        holder.commit()
    assert renewed.result() == [(False,)]
    assert state(db, 1) == "ready"


def test_a_held_message_is_not_touched(db: psycopg.Connection) -> None:
    """Without a ttr that would leave it without a deadline, and nobody's for ever."""
    id = put(db, "q")
    token, _ = claim(db)
    before = value(db, "SELECT deadline FROM pgqueue.tasks")
    assert row(db, "SELECT * FROM pgqueue.touch(%s, %s)", id, token) == ("taken", "taken by another", "a claim", None)
    assert value(db, "SELECT deadline FROM pgqueue.tasks") == before


# --- giving back


def test_release_gives_back_what_is_left_and_may_be_repeated(db: psycopg.Connection) -> None:
    ids = filled(db, 3)
    token, _ = claim(db)
    assert problem(db, ids[0], token) is None
    assert value(db, "SELECT pgqueue.release_claim('q', %s)", token) == 2
    assert value(db, "SELECT pgqueue.release_claim('q', %s)", token) == 0
    assert rows(db, "SELECT id, state, attempts, error FROM pgqueue.tasks ORDER BY id") == [
        (ids[1], "ready", 0, None),
        (ids[2], "ready", 0, None),
    ]


def test_what_is_given_back_wakes_takers(db: psycopg.Connection, connect: Connect) -> None:
    put(db, "q")
    token, _ = claim(db)
    q = value(db, "SELECT pgqueue.queue_id('q')")
    taker = connect()
    taker.execute(f'LISTEN "pgqueue:{q}"')
    taker.execute("SELECT pgqueue.arm(ARRAY [%s])", [q])
    value(db, "SELECT pgqueue.release_claim('q', %s)", token)
    assert [note.channel for note in taker.notifies(timeout=10, stop_after=1)] == [f"pgqueue:{q}"]


def test_max_takes_counts_claims_whose_time_was_over_and_none_that_was_released(db: psycopg.Connection) -> None:
    value(db, "SELECT pgqueue.create_queue('q', max_takes => 2, dead_letter => '', dead_letter_key => 'dead')")
    id = put(db, "q")
    for end in ("released", "expired", "released", "expired"):
        token, claimed = claim(db)
        assert claimed == [id]
        age(db, token) if end == "expired" else value(db, "SELECT pgqueue.release_claim('q', %s)", token)
    assert claim(db) == (None, [])
    assert value(db, "SELECT queue FROM pgqueue.tasks") == "dead"
    assert row(db, "SELECT died_in, reason FROM pgqueue.dead_letters") == ("q", "delivery_limit")


def test_old_claims_do_not_pile_up(db: psycopg.Connection) -> None:
    filled(db, 30)
    for _ in range(25):
        age(db, claim(db, 1, "1 s")[0])
    claim(db), claim(db)
    assert value(db, "SELECT count(*) FROM pgqueue.claim WHERE expires_at <= now()") == 0


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_renewal_does_not_wait_for_an_ack(db: psycopg.Connection, connect: Connect, end: str) -> None:
    """Else the others' new deadlines would not count before that ends, and the next ack could deadlock with it."""
    acked, left = filled(db, 2)
    token, _ = claim(db, 10, "100 s")
    acker = connect(autocommit=False)
    assert problem(acker, acked, token) is None
    db.execute("SET lock_timeout = '5 s'")
    assert value(db, "SELECT pgqueue.renew_claim('q', %s, '500 s')", token)
    assert value(db, "SELECT max(deadline) - min(deadline) FROM pgqueue.tasks") > 300 * SECOND
    assert problem(acker, left, token) is None
    getattr(acker, end)()
    assert (held(db, token) or []) == ([] if end == "commit" else [acked, left])


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_what_is_being_settled_is_not_given_back(db: psycopg.Connection, connect: Connect, end: str) -> None:
    acked, left = filled(db, 2)
    token, _ = claim(db, 10, "100 s")
    acker = connect(autocommit=False)
    assert problem(acker, acked, token) is None
    db.execute("SET lock_timeout = '5 s'")
    assert value(db, "SELECT pgqueue.release_claim('q', %s)", token) == 1
    getattr(acker, end)()
    assert state(db, acked) == (None if end == "commit" else "taken")
    assert state(db, left) == "ready"
    age(db, token)
    assert claim(db)[1] == ([left] if end == "commit" else [acked, left])


def test_what_another_claim_has_now_is_left_to_it(db: psycopg.Connection) -> None:
    id = put(db, "q")
    one, _ = claim(db)
    db.execute("SELECT pgqueue.release(%s, %s)", [id, one])
    two, _ = claim(db)
    deadline = value(db, "SELECT deadline FROM pgqueue.tasks")
    assert (held(db, one), held(db, two)) == ([], [id])
    assert value(db, "SELECT pgqueue.renew_claim('q', %s, '1000 s')", one)
    assert value(db, "SELECT deadline FROM pgqueue.tasks") == deadline
    assert value(db, "SELECT pgqueue.release_claim('q', %s)", one) == 0
    assert held(db, two) == [id]


# --- all at once


@pytest.mark.slow
def test_racing_claims_renewals_and_ends(db: psycopg.Connection, connect: Connect) -> None:
    """Every message is acked once, whatever ends before its time; and nothing deadlocks."""
    ids = filled(db, 200)
    over = threading.Event()

    def work(conn: psycopg.Connection, seed: int) -> list[int]:
        choose, done = random.Random(seed), []
        while rows(conn, "SELECT FROM pgqueue.task LIMIT 1"):
            token, claimed = claim(conn, choose.randint(1, 9), choose.choice(["1 ms", "60 s"]))
            choose.shuffle(claimed)
            for id in claimed[: choose.randint(0, 9)]:
                if value(conn, "SELECT state FROM pgqueue.ack(%s, %s)", id, token) == "done":
                    done.append(id)
            if token is not None:
                value(conn, "SELECT pgqueue.release_claim('q', %s)", token)
        return done

    def renew(conn: psycopg.Connection) -> None:
        while not over.is_set():
            for token in column(conn, "SELECT token FROM pgqueue.claim"):
                value(conn, "SELECT pgqueue.renew_claim('q', %s, '30 s')", token)

    with ThreadPoolExecutor(6) as pool:
        renewing = [pool.submit(renew, connect()) for _ in range(2)]
        working = [pool.submit(work, connect(), seed) for seed in range(4)]
        try:
            done = [id for worker in working for id in worker.result()]
        finally:
            over.set()
    for renewer in renewing:
        renewer.result()
    assert sorted(done) == ids
    assert rows(db, "SELECT * FROM pgqueue.take") == rows(db, "SELECT * FROM pgqueue.task") == []


# --- plans


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM pgqueue.claim_messages('q', 5)",
        "SELECT * FROM pgqueue.get_claim('q', {claim})",
        "SELECT * FROM pgqueue.renew_claim('q', {claim})",
        "SELECT * FROM pgqueue.release_claim('q', {claim})",
        "SELECT * FROM pgqueue.delete_message('q', 1, {claim})",
        "SELECT * FROM pgqueue.delete_message('q', 50)",
        "SELECT * FROM pgqueue.delete_messages('q', '{{1, 2, 50}}')",
    ],
)
def test_no_table_is_scanned(db: psycopg.Connection, dsn: str, query: str) -> None:
    """Whatever the planner was told: here, that all are empty."""
    without_autovacuum(db, "task", "take", "claim")
    db.execute("ANALYZE pgqueue.task, pgqueue.take, pgqueue.claim")
    db.execute("SELECT pgqueue.put_many('q', (SELECT jsonb_agg(i) FROM generate_series(1, 3000) i))")
    token, _ = claim(db, 20)
    claim(db, 20)
    text = "\n".join(plans(dsn, query.format(claim=token)))
    assert re.search(r"Seq Scan on (task|take|claim)\b|Bitmap|hashed SubPlan", text) is None, text


# --- what shows


def test_the_view_takes_shows_the_ids_of_claims_and_no_other_token(db: psycopg.Connection) -> None:
    (claimed,), taken = filled(db, 1), put(db, "other")
    token, _ = claim(db)
    take(db, "other")
    assert rows(db, "SELECT id, claim FROM pgqueue.takes ORDER BY id") == [(claimed, token), (taken, None)]


def test_age_and_ttl_of_messages(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('q', listed => true)")
    limited = value(db, "SELECT id FROM pgqueue.put('q', '1', ttl => '1 h')")
    endless = put(db, "q")
    db.execute(
        "UPDATE pgqueue.task SET created_at = created_at - interval '5 s', ready_at = ready_at - interval '5 s',"
        " expires_at = expires_at - interval '5 s'"
    )
    told = "extract(epoch FROM {})::int, extract(epoch FROM {})::int"
    pair = [(limited, 5, 3600), (endless, 5, None)]
    assert rows(db, f"SELECT id, {told.format('age', 'ttl')} FROM pgqueue.list_messages('q')") == pair
    times = told.format("message_age", "message_ttl")
    assert rows(db, f"SELECT id, {times} FROM pgqueue.claim_messages('q', ttl => '10 min')") == pair
    token = value(db, "SELECT claim FROM pgqueue.takes LIMIT 1")
    assert rows(db, f"SELECT id, {times} FROM pgqueue.get_claim('q', %s)", token) == pair
    query = f"SELECT id, {told.format('age', 'ttl')} FROM pgqueue.delete_messages('q', %s)"
    assert rows(db, query, [limited, endless]) == pair
