"""Limits in SQL: never more than allowed, whatever crosses what. The theory of limits/meters.sql, race by race."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from eventually import eventually
from statements import column, row, rows, state, value
from stepping import die

Connect = Callable[..., psycopg.Connection]

TICK = "SELECT pgqueue.promote_all()"


def job(conn: psycopg.Connection, name: str = "send", queue: str = "q", options: str = "", **args: Any) -> int:
    """Put a task of a job with these arguments."""
    data = json.dumps({"job": name, "args": args})
    return int(value(conn, f"SELECT id FROM pgqueue.put(%s, %s{options})", queue, data))


def taken(conn: psycopg.Connection, n: int = 100, queue: str = "q") -> list[Any]:
    return column(conn, "SELECT id FROM pgqueue.take_many(ARRAY [%s], %s)", queue, n)


def limit(conn: psycopg.Connection, terms: str, queue: str = "q") -> None:
    rows(conn, f"SELECT pgqueue.queue_id(%s), pgqueue.set_limit(%s, {terms})", queue, queue)


def settled(conn: psycopg.Connection) -> None:
    """Let ticks work until no transaction follows an earlier form of a limit."""
    eventually(lambda: rows(conn, TICK) and not rows(conn, "SELECT FROM pgqueue.task_limit WHERE changing"))


def checks(conn: psycopg.Connection) -> int:
    return int(value(conn, "SELECT count(*) FROM pgqueue.meter_check"))


def fails(conn: psycopg.Connection, query: str, *args: Any) -> str | None:
    with pytest.raises(psycopg.Error) as raised:
        conn.execute(query, args)
    return raised.value.sqlstate


@pytest.fixture(autouse=True)
def looked(db: psycopg.Connection, impatient: None) -> None:
    db.execute(TICK)


# --- at most n at once


def test_at_most_n_are_taken_and_each_end_lets_the_next_begin(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 2")
    one, two, three, four = (job(db) for _ in range(4))
    assert state(db, one) == "waiting"
    assert taken(db) == [one, two]
    assert taken(db) == []
    assert row(db, "SELECT running, waiting FROM pgqueue.limits") == (2, 2)
    rows(db, "SELECT pgqueue.ack(%s)", two)
    assert taken(db) == [three]
    assert taken(db) == []
    assert (state(db, three), state(db, four)) == ("taken", "waiting")


@pytest.mark.parametrize("claim", ["take", "take_many", "pop", "claim_messages", "take_id"])
def test_every_claim_keeps_to_the_limit(db: psycopg.Connection, connect: Connect, claim: str) -> None:
    limit(db, "concurrency => 1")
    first, second = job(db), job(db)
    query = {
        "take": "SELECT id FROM pgqueue.take('q')",
        "take_many": "SELECT id FROM pgqueue.take_many('{q}', 9)",
        "pop": "SELECT id FROM pgqueue.pop('q', 9)",
        "claim_messages": "SELECT id FROM pgqueue.claim_messages('q', 9)",
        "take_id": f"SELECT {second} FROM pgqueue.take_id({second}) WHERE token IS NOT NULL",
    }[claim]
    other = connect()
    with db.transaction():
        rows(db, "SELECT pgqueue.open_session()")
        expected = second if claim == "take_id" else first
        assert column(db, query) == [expected]
        assert taken(other) == []
        assert row(other, "SELECT problem FROM pgqueue.take_id(%s)", first + second - expected) == ("busy",)
    assert taken(other) == ([second] if claim == "pop" else [])


@pytest.mark.parametrize(
    "end",
    [
        "ack(%s)",
        "delete(%s)",
        "bury(%s)",
        "release(%s, delay => '1 h')",
        "fail(%s, error => 'no')",
        "finish(%s)",
        "release_all('q')",
    ],
)
def test_every_end_frees_the_slot(db: psycopg.Connection, end: str) -> None:
    limit(db, "concurrency => 1")
    first, second = job(db, options=", priority => 5"), job(db, options=", priority => 9")
    assert taken(db) == [first]
    assert taken(db) == []
    named = (first,) if "%s" in end else ()
    rows(db, f"SELECT pgqueue.{end}", *named)
    comes_back = state(db, first) in ("ready", "waiting")
    assert taken(db) == [first if comes_back else second]
    assert taken(db) == []


def test_a_task_that_dies_frees_the_slot_also_as_a_dead_letter_under_another_limit(db: psycopg.Connection) -> None:
    rows(db, "SELECT pgqueue.create_queue('q', dead_letter => '', dead_letter_key => 'dead')")
    limit(db, "concurrency => 1")
    limit(db, "concurrency => 1", "dead")
    first, second, other = job(db), job(db), job(db, queue="dead")
    assert taken(db, queue="dead") == [other]
    assert taken(db) == [first]
    rows(db, "SELECT pgqueue.bury(%s)", first)
    assert taken(db) == [second]
    assert taken(db, queue="dead") == []
    rows(db, "SELECT pgqueue.ack(%s)", other)
    assert taken(db, queue="dead") == [first]


def test_a_queue_limit_holds_for_jobs_without_one_of_their_own(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1")
    limit(db, "job => 'free', concurrency => 3")
    plain, other = job(db), job(db, "other")
    free = [job(db, "free") for _ in range(4)]
    raw = value(db, "SELECT id FROM pgqueue.put('q', '7')")
    assert taken(db) == [plain, *free[:3]]
    rows(db, "SELECT pgqueue.ack(%s)", plain)
    assert taken(db) == [other]
    assert state(db, raw) == "waiting"


def test_tasks_without_a_limit_pass_and_keep_their_order(db: psycopg.Connection) -> None:
    limit(db, "job => 'send', concurrency => 1")
    one, free, two, late = job(db), job(db, "free"), job(db), job(db, "free")
    assert taken(db, 2) == [one, free]
    assert taken(db) == [late]
    assert state(db, two) == "waiting"


def test_each_value_of_the_argument_has_its_own_count(db: psycopg.Connection) -> None:
    limit(db, "job => 'send', concurrency => 1, argument => 'to'")
    ada, again, bob = job(db, to="ada"), job(db, to="ada"), job(db, to="bob")
    seven, equal, text = job(db, to=7), job(db, to=7.0), job(db, to="7")
    missing, null = job(db), job(db, to=None)
    assert taken(db) == [ada, bob, seven, text, missing]
    assert [state(db, id) for id in (again, equal, null)] == ["waiting"] * 3
    rows(db, "SELECT pgqueue.ack_many(%s)", [ada, seven, missing])
    assert taken(db) == [again, equal, null]


@pytest.mark.parametrize(
    "data", ["7", '"send"', "[1]", "null", '{"job": 7}', '{"args": 3}', '{"job": "send", "args": [1]}']
)
def test_data_of_any_shape_has_a_meter(db: psycopg.Connection, data: str) -> None:
    limit(db, "concurrency => 1, argument => 'to'")
    ids = [value(db, "SELECT id FROM pgqueue.put('q', %s)", data) for _ in range(2)]
    assert taken(db) == [ids[0]]


def test_a_long_value_and_an_equal_one_share_a_count(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1, argument => 'to'")
    first, equal, other = job(db, to="x" * 10000), job(db, to="x" * 10000), job(db, to="x" * 9999 + "y")
    assert taken(db) == [first, other]
    assert state(db, equal) == "waiting"


def test_a_busy_key_does_not_keep_the_others_waiting(db: psycopg.Connection) -> None:
    """More keys have room than a claim looks at: those that it left open go behind the others."""
    limit(db, "concurrency => 1000, argument => 'to'")
    late = [job(db, to=f"late {n}", options=", priority => 0") for n in range(3)]
    db.execute("DELETE FROM pgqueue.meter_check")  # their checks come last
    for n in range(40):
        rows(
            db,
            "SELECT pgqueue.put_many('q', (SELECT jsonb_agg(%s::jsonb) FROM generate_series(1, 20)), priority => 5)",
            json.dumps({"job": "send", "args": {"to": n}}),
        )
    db.execute("INSERT INTO pgqueue.meter_check (queue_id, meter) SELECT queue_id, meter FROM pgqueue.task LIMIT 3")
    got: list[int] = []
    for _ in range(30):
        got += taken(db, 1)
    assert set(late) <= set(got)


# --- a rate


def test_so_many_begin_at_once_and_the_rest_when_tokens_come(db: psycopg.Connection) -> None:
    limit(db, "rate => 20, burst => 3, per => '1000 s'")
    ids = [job(db) for _ in range(5)]
    assert taken(db) == ids[:3]
    assert taken(db) == []
    (due,) = column(db, "SELECT seconds FROM pgqueue.next_due('{q}')")
    assert 0 < due <= 50
    db.execute("UPDATE pgqueue.bucket SET filled_at = filled_at - interval '50 s', due_at = due_at - interval '50 s'")
    assert taken(db) == [ids[3]]
    assert row(db, "SELECT waiting, next_at > now() FROM pgqueue.limits") == (1, True)


def test_an_ack_gives_no_token_back_and_a_second_beginning_needs_one(db: psycopg.Connection) -> None:
    limit(db, "rate => 1, per => '1 h', burst => 2")
    first, second, third = (job(db) for _ in range(3))
    assert taken(db) == [first, second]
    rows(db, "SELECT pgqueue.ack(%s), pgqueue.release(%s)", first, second)
    assert taken(db) == []
    assert (state(db, second), state(db, third)) == ("waiting", "waiting")


def test_rate_and_concurrency_of_one_limit_both_hold(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1, rate => 1, per => '1 h', burst => 2")
    first, second, third = (job(db) for _ in range(3))
    assert taken(db) == [first]
    rows(db, "SELECT pgqueue.ack(%s)", first)
    assert taken(db) == [second]
    rows(db, "SELECT pgqueue.ack(%s)", second)
    assert taken(db) == []
    assert state(db, third) == "waiting"


@pytest.mark.parametrize("step", ["- interval '1 day'", "+ interval '1 day'"])
def test_a_step_of_the_clock_gives_a_full_bucket_at_most_and_stops_nothing(db: psycopg.Connection, step: str) -> None:
    limit(db, "rate => 100, per => '1 s', burst => 2")
    ids = [job(db) for _ in range(6)]
    assert taken(db) == ids[:2]
    db.execute(f"UPDATE pgqueue.bucket SET filled_at = filled_at {step}, due_at = now()")
    assert len(taken(db)) <= 2
    got: list[int] = []
    eventually(lambda: got.extend(taken(db)) or state(db, ids[-1]) == "taken")


def test_a_tick_wakes_takers_when_a_token_is_there(db: psycopg.Connection, connect: Connect) -> None:
    limit(db, "rate => 100")
    job(db)
    queue = value(db, "SELECT id FROM pgqueue.queue WHERE name = 'q'")
    db.execute("DELETE FROM pgqueue.meter_check")
    db.execute(
        "INSERT INTO pgqueue.bucket SELECT queue_id, meter, 0, now(), now() FROM pgqueue.task WHERE queue_id = %s",
        [queue],
    )
    listener = connect()
    listener.execute(f'LISTEN "pgqueue:{queue}"')
    rows(listener, "SELECT * FROM pgqueue.arm(%s)", [queue])
    db.execute(TICK)
    assert [note.channel for note in listener.notifies(timeout=10, stop_after=1)] == [f"pgqueue:{queue}"]


def test_buckets_of_keys_that_rest_are_removed(db: psycopg.Connection) -> None:
    limit(db, "rate => 10, argument => 'to'")
    limit(db, "rate => 1, per => '1 h', argument => 'to'", "slow")
    job(db, to=1)
    job(db, queue="slow", to=1)
    assert (len(taken(db)), len(taken(db, queue="slow"))) == (1, 1)
    db.execute("UPDATE pgqueue.bucket SET filled_at = filled_at - interval '2 s'")
    db.execute("SELECT pgqueue.clean_up()")
    assert column(db, "SELECT q.name FROM pgqueue.bucket b JOIN pgqueue.queue q ON q.id = b.queue_id") == ["slow"]


# --- tasks that come back


@pytest.mark.parametrize("how", ["deadline", "session", "crash"])
def test_a_task_keeps_its_slot_until_it_is_back(db: psycopg.Connection, connect: Connect, how: str) -> None:
    limit(db, "concurrency => 1")
    first = job(db, options=", ttr => '1 h'")
    second = job(db)
    holder = connect()
    assert taken(holder) == [first]
    if how == "deadline":
        db.execute("UPDATE pgqueue.take SET deadline = now() - interval '1 s'")
    elif how == "session":
        holder.close()
        eventually(lambda: taken(db) or value(db, "SELECT freed FROM pgqueue.sweep()"))
    else:
        db.execute("TRUNCATE pgqueue.take, pgqueue.session")  # what a crash of the server does
        rows(db, "SELECT pgqueue.open_session()")
    assert taken(db) in ([first], [])
    assert column(db, "SELECT task_id FROM pgqueue.take WHERE task_id IN (%s, %s)", first, second) == [first]
    assert taken(db) == []


def test_a_retry_waits_for_its_delay_without_a_slot_and_then_for_one(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1")
    first, second = job(db), job(db)
    assert taken(db) == [first]
    rows(db, "SELECT pgqueue.release(%s, delay => '1 h', error => 'no')", first)
    assert taken(db) == [second]
    db.execute("UPDATE pgqueue.task SET run_at = now() WHERE id = %s", [first])
    assert taken(db) == []
    rows(db, "SELECT pgqueue.ack(%s)", second)
    assert taken(db) == [first]


@pytest.mark.parametrize("verb", ["kick('q', 9)", "kick_task({0})", "release_all('q')"])
def test_what_becomes_ready_by_other_ways_waits_as_well(db: psycopg.Connection, verb: str) -> None:
    limit(db, "concurrency => 1")
    ids = [job(db, options=", delay => '1 h'") for _ in range(3)]
    running = job(db)
    assert taken(db) == [running]
    rows(db, f"SELECT pgqueue.{verb.format(ids[0])}")
    assert len(taken(db)) == (1 if "release" in verb else 0)
    assert value(db, "SELECT count(*) FROM pgqueue.take") == 1


def test_a_published_task_waits_as_well(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1")
    for _ in range(3):
        rows(db, "SELECT pgqueue.publish('', 'q', '1')")
    assert [len(taken(db)) for _ in range(3)] == [1, 0, 0]


@pytest.mark.slow
def test_suspects_that_a_session_refuses_hold_no_slot(db: psycopg.Connection, connect: Connect) -> None:
    limit(db, "concurrency => 2")
    db.execute("SELECT pgqueue.alter_queue('q', '{\"max_takes\": 9}')")
    ids = [job(db) for _ in range(3)]
    for _ in range(2):  # the second death makes them suspects
        holder = connect()
        assert taken(holder) == ids[:2]
        die(holder, db)
        db.execute("UPDATE pgqueue.session SET started_at = started_at - interval '1 h'")  # longer than the takes below
        eventually(lambda: value(db, "SELECT freed FROM pgqueue.sweep()") or not rows(db, "SELECT FROM pgqueue.take"))
    assert taken(db) == [ids[0]]  # one suspect at a time
    assert taken(db) == [ids[2]]  # and another task in the other slot


def test_an_expired_task_takes_no_slot(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1")
    old, young = job(db, options=", ttl => '1 h'"), job(db)
    db.execute("UPDATE pgqueue.task SET expires_at = now() - interval '1 s' WHERE id = %s", [old])
    assert taken(db) == [young]
    db.execute(TICK)
    assert state(db, old) is None


def test_a_replaced_task_follows_the_limit_of_its_new_data(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1, argument => 'to'")
    running = job(db, to="ada")
    waits = job(db, to="ada", options=", key => 'k'")
    assert taken(db) == [running]
    assert job(db, to="bob", options=", key => 'k', if_exists => 'replace'") == waits
    assert taken(db) == [waits]


# --- races, step by step


def test_two_claims_at_once_admit_no_more_than_the_limit(db: psycopg.Connection, connect: Connect) -> None:
    limit(db, "concurrency => 1")
    first, second = job(db), job(db)
    one, two = connect(), connect()
    with one.transaction():
        assert taken(one) == [first]
        assert taken(two) == []  # and it does not wait
    assert taken(two) == []
    rows(one, "SELECT pgqueue.ack(%s)", first)
    assert taken(two) == [second]


def test_a_put_that_commits_after_the_slot_was_freed_is_not_forgotten(db: psycopg.Connection, connect: Connect) -> None:
    """T1 puts; T2 frees the only slot, and its check is dropped before T1 commits."""
    limit(db, "concurrency => 1")
    first = job(db)
    assert taken(db) == [first]
    one = connect(autocommit=False)
    late = job(one)
    rows(db, "SELECT pgqueue.ack(%s)", first)
    assert taken(db) == []
    assert checks(db) == 0
    one.commit()
    assert taken(db) == [late]


def test_a_transaction_does_not_drop_its_own_check(db: psycopg.Connection, connect: Connect) -> None:
    """T1 acks and claims: it sees no task that waits. T2 puts one, and sees a full meter. Then T1 commits."""
    limit(db, "concurrency => 1")
    first = job(db)
    one, two = connect(autocommit=False), connect()
    rows(one, "SELECT pgqueue.open_session()")
    one.commit()
    assert taken(one) == [first]
    one.commit()
    rows(one, "SELECT pgqueue.ack(%s)", first)
    assert taken(one) == []
    second = job(db)
    assert taken(two) == []
    one.commit()
    assert taken(two) == [second]


def test_a_long_ack_blocks_no_other_claim_and_no_other_ack(db: psycopg.Connection, connect: Connect) -> None:
    limit(db, "concurrency => 2")
    first, second, third, fourth = (job(db) for _ in range(4))
    assert taken(db) == [first, second]
    long = connect(autocommit=False)
    token = value(db, "SELECT token FROM pgqueue.take WHERE task_id = %s", first)
    rows(long, "SELECT pgqueue.ack(%s, token => %s)", first, token)
    rows(db, "SELECT pgqueue.ack(%s)", second)
    assert taken(db) == [third]
    assert taken(db) == []  # the slot of a task whose end has not committed
    long.commit()
    assert taken(db) == [fourth]


def test_a_rolled_back_claim_gives_slot_and_token_back(db: psycopg.Connection, connect: Connect) -> None:
    limit(db, "concurrency => 1, rate => 1, per => '1 h'")
    first = job(db)
    one = connect(autocommit=False)
    assert taken(one) == [first]
    one.rollback()
    assert taken(db) == [first]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_claim_with_an_old_snapshot_is_refused(db: psycopg.Connection, connect: Connect, level: str) -> None:
    limit(db, "concurrency => 1")
    job(db)
    other = connect()
    other.execute(f"SET default_transaction_isolation = '{level}'")
    assert fails(other, "SELECT pgqueue.take('q')") == "PQ002"


def test_raw_sql_is_noticed_by_a_tick(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1")
    first, second = job(db), job(db)
    assert taken(db) == [first]
    db.execute("DELETE FROM pgqueue.task WHERE id = %s", [first])
    assert eventually(lambda: rows(db, TICK) and taken(db)) == [second]


# --- changes of a limit


def test_a_first_limit_holds_for_tasks_that_are_ready_already(db: psycopg.Connection) -> None:
    rows(db, "SELECT pgqueue.put_many('q', (SELECT jsonb_agg(i) FROM generate_series(1, 3000) i))")
    limit(db, "concurrency => 2")
    assert len(taken(db)) == 2
    assert taken(db) == []
    assert value(db, "SELECT count(*) FROM pgqueue.task WHERE state = 'W'") <= 2600, "a claim turns about 1000"
    while rows(db, "SELECT FROM pgqueue.next_due('{q}') WHERE seconds = 0"):
        assert taken(db) == []
    assert row(db, "SELECT running, waiting FROM pgqueue.limits") == (2, 2998)


def test_tasks_that_run_when_a_limit_comes_are_counted_by_a_tick(db: psycopg.Connection) -> None:
    first, second, third = (job(db) for _ in range(3))
    assert taken(db, 2) == [first, second]
    limit(db, "concurrency => 2")
    settled(db)
    assert taken(db) == []
    rows(db, "SELECT pgqueue.ack(%s)", first)
    assert taken(db) == [third]


def test_the_transaction_that_sets_a_limit_holds_up_no_ack(db: psycopg.Connection, connect: Connect) -> None:
    first, second = job(db), job(db)
    assert taken(db) == [first, second]
    one = connect(autocommit=False)
    limit(one, "concurrency => 1")
    rows(db, "SELECT pgqueue.ack(%s)", first)
    one.commit()
    settled(db)
    rows(db, "SELECT pgqueue.ack(%s)", second)


def test_a_limit_that_is_raised_or_lowered_holds_from_then_on(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1")
    ids = [job(db) for _ in range(5)]
    assert taken(db) == ids[:1]
    limit(db, "concurrency => 3")
    assert taken(db) == ids[1:3]
    limit(db, "concurrency => 1")
    rows(db, "SELECT pgqueue.ack_many(%s)", ids[:2])
    assert taken(db) == [], "one still runs"
    rows(db, "SELECT pgqueue.ack(%s)", ids[2])
    assert taken(db) == [ids[3]]


def test_a_dropped_limit_lets_all_go_and_leaves_nothing_behind(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1")
    ids = [job(db) for _ in range(4)]
    assert taken(db) == ids[:1]
    assert value(db, "SELECT pgqueue.drop_limit('q')")
    assert taken(db) == ids[1:]
    settled(db)
    assert rows(db, "SELECT FROM pgqueue.task_limit") == []
    assert value(db, "SELECT special FROM pgqueue.queue WHERE name = 'q'") is False
    assert not value(db, "SELECT pgqueue.drop_limit('q')")


def test_ticks_alone_free_the_tasks_of_a_dropped_limit(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1")
    rows(db, "SELECT pgqueue.put_many('q', (SELECT jsonb_agg(i) FROM generate_series(1, 50) i))")
    rows(db, "SELECT pgqueue.drop_limit('q')")
    settled(db)
    assert value(db, "SELECT count(*) FROM pgqueue.task WHERE state = 'R' AND meter IS NULL") == 50


def test_a_put_that_follows_a_dropped_limit_is_not_left_waiting(db: psycopg.Connection, connect: Connect) -> None:
    limit(db, "concurrency => 1")
    one = connect(autocommit=False)
    late = job(one)
    rows(db, "SELECT pgqueue.drop_limit('q')")
    for _ in range(6):
        db.execute(TICK)
    assert rows(db, "SELECT FROM pgqueue.task_limit") != [], "it stays while a put may follow it"
    one.commit()
    assert taken(db) == [late]


def test_another_argument_counts_anew(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1, argument => 'to'")
    ids = [job(db, to="ada", by=n) for n in range(3)]
    assert taken(db) == ids[:1]
    limit(db, "concurrency => 1, argument => 'by'")
    settled(db)
    assert taken(db) == ids[1:]
    assert value(db, "SELECT count(*) FROM pgqueue.limits") == 1


def test_a_queue_that_is_deleted_takes_its_limits_along(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1, rate => 5")
    job(db), job(db)
    assert len(taken(db)) == 1
    rows(db, "SELECT pgqueue.delete_queue('q', force => true)")
    db.execute(TICK)
    db.execute("SELECT pgqueue.clean_up()")
    assert [checks(db), len(rows(db, "SELECT FROM pgqueue.bucket")), len(rows(db, "SELECT FROM pgqueue.limits"))] == [
        0,
        0,
        0,
    ]


# --- declared by a program


def test_a_declared_limit_follows_the_code_and_one_set_by_hand_stays(db: psycopg.Connection) -> None:
    declare = "SELECT pgqueue.declare_limit('q', 'send', %s)"
    assert value(db, declare, 3) == "set"
    assert value(db, declare, 3) == "same"
    assert value(db, declare, 4) == "set"
    assert value(db, declare, None) == "dropped"
    assert value(db, declare, None) == "same"
    limit(db, "job => 'send', concurrency => 1")
    assert value(db, declare, 4) == "kept"
    assert value(db, declare, None) == "kept"
    assert rows(db, "SELECT job, concurrency, declared FROM pgqueue.limits") == [("send", 1, False)]
    assert value(db, "SELECT pgqueue.declare_limit('q', 'pay', rate => 50, per => '1 min')") == "set"
    assert rows(db, "SELECT rate, per::text, burst FROM pgqueue.limits WHERE job = 'pay'") == [(50, "00:01:00", 5)]


# --- bad input


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        ("concurrency => 0", "PQ002"),
        ("concurrency => -1", "PQ002"),
        ("concurrency => 100001", "PQ002"),
        ("rate => 0", "PQ002"),
        ("rate => 5, per => '0'", "PQ002"),
        ("rate => 5, per => '-1 s'", "PQ002"),
        ("rate => 5, per => '100 years'", "PQ002"),
        ("rate => 5, per => NULL", "PQ002"),
        ("rate => 5, burst => 0", "PQ002"),
        ("concurrency => 5, burst => 2", "PQ002"),
        ("job => 'x'", "PQ002"),
        ("job => '', concurrency => 1", "PQ001"),
        ("argument => '', concurrency => 1", "PQ001"),
        ("job => repeat('x', 256), concurrency => 1", "PQ001"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(db: psycopg.Connection, terms: str, code: str) -> None:
    rows(db, "SELECT pgqueue.queue_id('q')")
    assert fails(db, f"SELECT pgqueue.set_limit('q', {terms})") == code
    assert rows(db, "SELECT FROM pgqueue.limits") == []


@pytest.mark.parametrize(
    "call", ["set_limit('none', concurrency => 1)", "drop_limit('none')", "set_limit(NULL, 'j', 1)"]
)
def test_a_limit_of_a_queue_that_does_not_exist_is_refused(db: psycopg.Connection, call: str) -> None:
    assert fails(db, f"SELECT pgqueue.{call}") == "PQ032"


def test_a_lane_and_a_limit_exclude_each_other(db: psycopg.Connection) -> None:
    limit(db, "job => 'send', concurrency => 1")
    for query in (
        "SELECT pgqueue.put('q', %s, lane => 'a')",
        "SELECT pgqueue.put_many('q', jsonb_build_array(%s::jsonb), lanes => '{a}')",
    ):
        assert fails(db, query, '{"job": "send"}') == "PQ002"
    rows(db, "SELECT pgqueue.put('q', '1', lane => 'a'), pgqueue.put('q', '2', lane => 'a')")
    job(db), job(db)
    assert len(taken(db)) == 2, "one of the lane, and one of the job"


# --- flat


@pytest.mark.slow
def test_full_keys_cost_a_claim_nothing(db: psycopg.Connection) -> None:
    """The rows and pages that a claim reads are as many beside 5000 full keys as beside none."""

    def pages() -> int:
        """That one claim reads, by the server's own count."""
        with db.transaction(force_rollback=True):
            before = value(db, READ)
            # Behind the tasks in flight, as a client that finds it slow to walk over them.
            assert rows(db, "SELECT FROM pgqueue.take_many('{q}', 1, NULL, NULL, '{-1}', '{1000000}')") != []
            return int(value(db, READ)) - int(before)

    limit(db, "concurrency => 1, argument => 'to'")
    rows(
        db,
        "SELECT pgqueue.put_many('q', (SELECT jsonb_agg(jsonb_build_object('to', 'free')) FROM generate_series(1, 3)))",
    )
    pages()
    few = pages()
    many = """
        SELECT pgqueue.put_many('q', (SELECT jsonb_agg(jsonb_build_object('to', i / 2))
                                        FROM generate_series(0, 9999) i), priority => -1)"""
    rows(db, many)
    assert sum(len(taken(db, 1000)) for _ in range(7)) == 5001
    rows(
        db,
        "SELECT pgqueue.ack(task_id) FROM pgqueue.take JOIN pgqueue.task ON id = task_id WHERE data ->> 'to' = 'free'",
    )
    assert checks(db) == 1
    assert pages() <= 2 * few


READ = """
    SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_catalog.pg_stat_xact_all_tables
     WHERE schemaname = 'pgqueue'"""


# --- a limit that another server keeps; this one is server 0

SEND = """'{"job": "send"}'"""
HAND_ON = '[{"queue": "q", "data": {"job": "send"}}]'


@pytest.mark.parametrize(
    "put",
    [
        f"SELECT pgqueue.put('q', {SEND})",
        f"SELECT pgqueue.put('q', {SEND}, priority => 1)",
        f"SELECT pgqueue.put('q', {SEND}, delay => '1 h')",
        f"SELECT pgqueue.put('q', {SEND}, key => 'k', if_exists => 'replace')",
        f"SELECT pgqueue.put_flow('q', {SEND}, after => ARRAY [(SELECT id FROM pgqueue.put('other', '1'))])",
        """SELECT pgqueue.put_many('q', '[{"job": "look"}, {"job": "send"}]')""",
        """SELECT pgqueue.put_many('q', '[{"job": "look"}, {"job": "send"}]', keys => '{a,b}')""",
        f"SELECT pgqueue.put_graph('{HAND_ON}')",
        f"SELECT pgqueue.publish('x', 'key', {SEND})",
        f"SELECT pgqueue.ack(id, puts => '{HAND_ON}') FROM pgqueue.take('begun')",
    ],
)
def test_puts_of_a_limit_that_another_server_keeps_are_refused(db: psycopg.Connection, put: str) -> None:
    rows(db, "SELECT pgqueue.queue_id('q'), pgqueue.put('begun', '1'), pgqueue.declare_exchange('x', 'fanout')")
    rows(db, "SELECT pgqueue.bind('q', 'x', '')")
    limit(db, "'send', concurrency => 2, home => 3")
    with pytest.raises(psycopg.Error) as raised:
        db.execute(put)
    assert raised.value.sqlstate == "PQ050"
    told = 'server 3 keeps the limit of job "send" in queue "q", and this is server 0: put its tasks there'
    assert raised.value.diag.message_primary == told
    assert json.loads(raised.value.diag.message_detail or "") == {"queue": "q", "job": "send"}
    assert column(db, "SELECT queue FROM pgqueue.tasks") == ["begun"]


def test_tasks_without_the_limit_are_put_where_another_server_keeps_it(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 2, home => 3")
    limit(db, "'send', concurrency => 1, home => 0")  # this server
    limit(db, "'look', concurrency => 1")
    for name in ("send", "look"):
        assert state(db, job(db, name)) == "waiting"
    rows(db, "SELECT pgqueue.put('other', '1')")
    assert fails(db, "SELECT pgqueue.put('q', '1')") == "PQ050"
    assert rows(db, "SELECT job, home FROM pgqueue.limits ORDER BY job") == [("look", None), ("send", 0), (None, 3)]
    limit(db, "concurrency => 2")
    assert value(db, "SELECT state FROM pgqueue.put('q', '1')") == "waiting"


def test_tasks_that_are_here_when_another_server_gets_the_limit_are_counted_here(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1")
    one, two, three = (job(db) for _ in range(3))
    limit(db, "concurrency => 1, home => 3")
    assert taken(db) == [one]
    rows(db, "SELECT pgqueue.release(%s)", one)
    assert taken(db) == [one]
    rows(db, "SELECT pgqueue.bury(%s)", one)
    assert taken(db) == [two]
    rows(db, "SELECT pgqueue.kick_task(%s), pgqueue.ack(%s)", one, two)
    assert taken(db) == [one]
    assert state(db, three) == "waiting"


def test_a_dead_letter_whose_limit_another_server_keeps_is_counted_here(db: psycopg.Connection) -> None:
    limit(db, "concurrency => 1, home => 3")
    rows(db, "SELECT pgqueue.create_queue('living', dead_letter => '', dead_letter_key => 'q')")
    for _ in range(2):
        rows(db, "SELECT pgqueue.bury(id) FROM pgqueue.put('living', '1')")
    assert len(taken(db)) == 1
    assert row(db, "SELECT running, waiting FROM pgqueue.limits") == (1, 1)


def test_moved_tasks_are_accepted_and_know_the_server_that_keeps_their_limit(db: psycopg.Connection) -> None:
    job(db)
    job(db, "look")
    limit(db, "'send', concurrency => 1, home => 3")
    tasks, homes = row(db, "SELECT tasks, homes FROM pgqueue.move_out('q')")
    assert homes == [3, None]
    texts = [json.dumps(task) for task in tasks]
    assert value(db, "SELECT pgqueue.move_in('q', %s::text[]::jsonb[])", texts) == 2
    assert column(db, "SELECT state FROM pgqueue.tasks ORDER BY id") == ["waiting", "ready"]


@pytest.mark.parametrize("home", [-1, 1024])
def test_a_home_is_the_number_of_a_server(db: psycopg.Connection, home: int) -> None:
    rows(db, "SELECT pgqueue.queue_id('q')")
    assert fails(db, "SELECT pgqueue.set_limit('q', concurrency => 1, home => %s)", home) == "PQ002"
