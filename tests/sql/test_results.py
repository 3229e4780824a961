"""Results, failures and progress in SQL: what shows, what expires, what is told, what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from eventually import eventually
from psycopg.types.json import Jsonb
from statements import column, notifications, put, row, rows, state, take, value

Connect = Any


def outcome(conn: psycopg.Connection, id: int) -> tuple[Any, ...]:
    """State, error, progress and result."""
    return rows(conn, "SELECT state, error, progress, result FROM pgqueue.outcome(%s)", id)[0]


def over(conn: psycopg.Connection, table: str) -> None:
    """Let everything in a table have expired a moment ago, as it would by itself later."""
    conn.execute(f"UPDATE pgqueue.{table} SET expires_at = clock_timestamp()")


@pytest.fixture
def taken(db: psycopg.Connection) -> tuple[int, int]:
    """A task that is held: its id and token."""
    put(db, "q")
    return take(db, "q")


# --- a task's whole life


def test_the_states_of_a_living_task(db: psycopg.Connection) -> None:
    assert outcome(db, 12345) == ("unknown", None, None, None)
    assert outcome(db, put(db, "q", delay="1 h")) == ("delayed", None, None, None)
    ready = put(db, "q")
    assert outcome(db, ready)[0] == "ready"
    id, token = take(db, "q")
    assert row(db, "SELECT state, queue, attempts, holder IS NOT NULL FROM pgqueue.outcome(%s)", id) == (
        "taken",
        "q",
        0,
        True,
    )
    db.execute("SELECT pgqueue.bury(%s, %s, 'why')", [id, token])
    assert outcome(db, id) == ("buried", "why", None, None)
    db.execute("SELECT pgqueue.delete(%s)", [id])
    assert outcome(db, id)[0] == "unknown"


@pytest.mark.parametrize("result", [None, 0, "ü", [1, {"a": None}]])
def test_finish_acks_and_keeps_the_result(db: psycopg.Connection, taken: tuple[int, int], result: object) -> None:
    id, token = taken
    answer = rows(
        db, "SELECT state, problem, holder FROM pgqueue.finish(%s, %s, result => %s)", id, token, Jsonb(result)
    )
    assert answer == [("done", None, None)]
    assert state(db, id) is None
    assert outcome(db, id) == ("done", None, None, result)
    assert rows(db, "SELECT id, queue, state, attempts, result, error FROM pgqueue.results") == [
        (id, "q", "done", 0, result, None)
    ]


def test_a_result_is_seen_though_its_task_is_kept_too(db: psycopg.Connection, taken: tuple[int, int]) -> None:
    db.execute("UPDATE pgqueue.queue SET keep_done = '1 h'")
    db.execute("SELECT pgqueue.finish(%s, %s, result => '7')", taken)
    assert state(db, taken[0]) == "done"
    assert outcome(db, taken[0]) == ("done", None, None, 7)


def test_finish_without_a_result_keeps_null(db: psycopg.Connection, taken: tuple[int, int]) -> None:
    assert value(db, "SELECT state FROM pgqueue.finish(%s)", taken[0]) == "done"
    assert outcome(db, taken[0]) == ("done", None, None, None)


def test_a_refused_finish_keeps_nothing(db: psycopg.Connection, taken: tuple[int, int]) -> None:
    id, token = taken
    finish = "SELECT problem FROM pgqueue.finish(%s, %s, result => '1')"
    assert value(db, finish, id, token + 1) == "taken by another"
    db.execute("SELECT pgqueue.release(%s, %s)", [id, token])
    assert value(db, finish, id, token) == "not taken"
    assert value(db, finish, 12345, token) == "not found"
    assert rows(db, "SELECT FROM pgqueue.result") == []
    assert outcome(db, id)[0] == "ready"


def test_the_result_of_the_holder_stays_when_a_late_one_finishes(
    db: psycopg.Connection, taken: tuple[int, int]
) -> None:
    id, late = taken
    db.execute("SELECT pgqueue.release(%s, %s)", [id, late])
    _, token = take(db, "q")
    db.execute("SELECT pgqueue.finish(%s, %s, result => '\"right\"')", [id, token])
    assert value(db, "SELECT problem FROM pgqueue.finish(%s, %s, result => '\"late\"')", id, late) == "not found"
    assert value(db, "SELECT problem FROM pgqueue.fail(%s, %s, 'late')", id, late) == "not found"
    assert outcome(db, id) == ("done", None, None, "right")


def test_finish_that_rolls_back_keeps_the_task(
    db: psycopg.Connection, taken: tuple[int, int], connect: Connect
) -> None:
    id, token = taken
    other = connect()
    with other.transaction(force_rollback=True):
        other.execute("SELECT pgqueue.finish(%s, %s, result => '1')", [id, token])
        assert outcome(other, id)[0] == "done"
        assert outcome(db, id)[0] == "taken"
    assert outcome(db, id)[0] == "taken"
    assert rows(db, "SELECT FROM pgqueue.result") == []


def test_fail_buries_and_keeps_the_error(db: psycopg.Connection, taken: tuple[int, int]) -> None:
    id, token = taken
    assert rows(db, "SELECT * FROM pgqueue.fail(%s, %s, 'boom')", id, token) == [("buried", None, None)]
    assert state(db, id) == "buried"
    assert outcome(db, id) == ("failed", "boom", None, None)
    assert value(db, "SELECT attempts FROM pgqueue.outcome(%s)", id) == 1
    db.execute("SELECT pgqueue.delete(%s)", [id])
    assert outcome(db, id) == ("failed", "boom", None, None)


def test_a_failed_task_that_is_kicked_is_alive_again(db: psycopg.Connection, taken: tuple[int, int]) -> None:
    id, token = taken
    db.execute("SELECT pgqueue.fail(%s, %s, 'boom')", [id, token])
    db.execute("SELECT pgqueue.kick('q')")
    assert outcome(db, id) == ("ready", "boom", None, None)
    _, token = take(db, "q")
    assert outcome(db, id)[0] == "taken"
    db.execute("SELECT pgqueue.finish(%s, %s, result => '1')", [id, token])
    assert outcome(db, id) == ("done", None, None, 1)


def test_a_failed_task_that_became_a_dead_letter_has_failed(db: psycopg.Connection, taken: tuple[int, int]) -> None:
    id, token = taken
    db.execute("SELECT pgqueue.create_queue('dead')")
    db.execute("UPDATE pgqueue.queue SET dead_letter = '', dead_letter_key = 'dead' WHERE name = 'q'")
    assert value(db, "SELECT state FROM pgqueue.fail(%s, %s, 'boom')", id, token) == "dead"
    assert rows(db, "SELECT queue, state FROM pgqueue.tasks") == [("dead", "ready")]
    assert outcome(db, id) == ("failed", "boom", None, None)
    assert row(db, "SELECT queue, attempts FROM pgqueue.outcome(%s)", id) == ("q", 1)


def test_fail_with_a_delay_is_a_release(db: psycopg.Connection, taken: tuple[int, int]) -> None:
    id, token = taken
    assert value(db, "SELECT state FROM pgqueue.fail(%s, %s, 'boom', delay => '0')", id, token) == "ready"
    assert outcome(db, id) == ("ready", "boom", None, None)
    assert rows(db, "SELECT FROM pgqueue.result") == []


def test_fail_with_a_delay_keeps_what_the_queue_declares_dead(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('mortal')")
    db.execute("UPDATE pgqueue.queue SET max_takes = 2 WHERE name = 'mortal'")
    id = put(db, "mortal")
    for attempt in (1, 2):
        _, token = take(db, "mortal")
        db.execute("SELECT pgqueue.fail(%s, %s, 'boom', delay => '0')", [id, token])
        assert outcome(db, id)[:2] == ("ready" if attempt == 1 else "failed", "boom")


@pytest.mark.parametrize("delay", [None, "0"])
def test_a_failure_without_keep_is_recorded_with_its_task_only(
    db: psycopg.Connection, taken: tuple[int, int], delay: str | None
) -> None:
    db.execute("SELECT pgqueue.fail(%s, %s, error => 'boom', keep => NULL, delay => %s)", [*taken, delay])
    assert state(db, taken[0]) == ("buried" if delay is None else "ready")
    assert rows(db, "SELECT error FROM pgqueue.attempts WHERE id = %s", taken[0]) == [("boom",)]
    assert rows(db, "SELECT FROM pgqueue.result") == []


def test_a_result_expires_by_itself(db: psycopg.Connection, taken: tuple[int, int]) -> None:
    db.execute("SELECT pgqueue.finish(%s, keep => '1 ms')", [taken[0]])
    eventually(lambda: outcome(db, taken[0])[0] == "unknown")
    assert rows(db, "SELECT FROM pgqueue.results") == []
    assert rows(db, "SELECT FROM pgqueue.result") != []


@pytest.mark.parametrize(
    ("verb", "keep"),
    [
        (verb, keep)
        for verb in ("finish(%s", "fail(%s", "finish_many(ARRAY[%s]::int8[]")
        for keep in ("0", "-1 s", None)
        if (verb, keep) != ("fail(%s", None)
    ],
)
def test_keep_must_be_positive(db: psycopg.Connection, taken: tuple[int, int], verb: str, keep: str | None) -> None:
    with pytest.raises(psycopg.errors.DatabaseError) as caught:
        db.execute(f"SELECT pgqueue.{verb}, keep => %s)", [taken[0], keep])
    assert caught.value.sqlstate == "PQ042"
    assert state(db, taken[0]) == "taken"


@pytest.mark.parametrize("settle", ["finish(%s)", "fail(%s, error => 'x')", "finish_many(ARRAY[%s]::int8[])"])
def test_the_end_is_told_at_commit(
    db: psycopg.Connection, taken: tuple[int, int], connect: Connect, settle: str
) -> None:
    ear = connect()
    ear.execute(f'LISTEN "pgqueue:task:{taken[0]}"')
    ear.execute("SELECT pgqueue.await_ends(%s)", [[taken[0]]])
    with db.transaction(force_rollback=True):
        db.execute(f"SELECT * FROM pgqueue.{settle}", [taken[0]])
    assert notifications(ear, db) == []
    db.execute(f"SELECT * FROM pgqueue.{settle}", [taken[0]])
    assert notifications(ear, db) == [f"pgqueue:task:{taken[0]}"]


# --- many


def many(conn: psycopg.Connection, n: int) -> tuple[list[int], int]:
    """So many tasks that are held: their ids, and their token."""
    conn.execute("SELECT pgqueue.put_many('q', (SELECT jsonb_agg(i) FROM generate_series(1, %s) i))", [n])
    claimed = rows(conn, "SELECT id, token FROM pgqueue.take_many('{q}', %s)", n)
    return [id for id, _ in claimed], claimed[0][1]


FINISH_MANY = "SELECT id, state, problem FROM pgqueue.finish_many(%s::int8[], %s::int8[], results => %s)"


def test_finish_many_keeps_each_result(db: psycopg.Connection, connect: Connect) -> None:
    ids, token = many(db, 100)
    ids.reverse()
    assert rows(connect(), FINISH_MANY, ids, [token] * 100, Jsonb([{"of": id} for id in ids])) == []
    assert rows(db, "SELECT FROM pgqueue.tasks") == rows(db, "SELECT FROM pgqueue.take") == []
    assert rows(db, "SELECT id, result, attempts, queue FROM pgqueue.results ORDER BY id") == [
        (id, {"of": id}, 0, "q") for id in sorted(ids)
    ]


def test_finish_many_keeps_nothing_of_those_that_were_refused(db: psycopg.Connection, connect: Connect) -> None:
    (first, second, third), token = many(db, 3)
    ear = connect()
    ear.execute(f'LISTEN "pgqueue:task:{second}"')
    ear.execute("SELECT pgqueue.await_ends(%s)", [[second]])
    answer = rows(db, FINISH_MANY, [first, second, third, 999], [token, 1, token, token], Jsonb(["a", "b", "c", "d"]))
    assert answer == [(second, "taken", "taken by another"), (999, None, "not found")]
    assert rows(db, "SELECT id, result FROM pgqueue.results ORDER BY id") == [(first, "a"), (third, "c")]
    assert notifications(ear, db) == []


def test_finish_many_of_one_task_twice_finishes_it_once(db: psycopg.Connection) -> None:
    (id,), token = many(db, 1)
    assert rows(db, FINISH_MANY, [id, id], [token, token], Jsonb([1, 1])) == []
    assert outcome(db, id) == ("done", None, None, 1)


@pytest.mark.parametrize("results", [[1], [1, 2, 3], {"a": 1}, "text", None])
def test_finish_many_wants_a_result_for_each(db: psycopg.Connection, results: object) -> None:
    ids, token = many(db, 2)
    with pytest.raises(psycopg.errors.DatabaseError) as caught:
        db.execute(FINISH_MANY, [ids, [token, token], Jsonb(results)])
    assert caught.value.sqlstate == "PQ043"
    assert [state(db, id) for id in ids] == ["taken", "taken"]


def test_finish_many_of_none(db: psycopg.Connection) -> None:
    assert rows(db, FINISH_MANY, [], [], Jsonb([])) == []


# --- progress


def test_progress_shows_while_the_take_lasts(db: psycopg.Connection, taken: tuple[int, int]) -> None:
    id, token = taken
    progress = "SELECT state, problem FROM pgqueue.progress(%s, %s, value => %s)"
    assert rows(db, progress, id, token, Jsonb(1)) == [("taken", None)]
    assert rows(db, progress, id, None, Jsonb({"percent": 40})) == [("taken", None)]
    assert outcome(db, id) == ("taken", None, {"percent": 40}, None)
    db.execute("SELECT pgqueue.release(%s, %s)", [id, token])
    assert outcome(db, id)[2] is None
    take(db, "q")
    assert outcome(db, id) == ("taken", None, None, None)


def test_a_late_holder_cannot_report(db: psycopg.Connection, taken: tuple[int, int], connect: Connect) -> None:
    id, late = taken
    progress = "SELECT problem FROM pgqueue.progress(%s, %s, value => %s)"
    db.execute("SELECT pgqueue.release(%s, %s)", [id, late])
    assert value(db, progress, id, late, Jsonb("late")) == "not taken"
    _, token = take(db, "q")
    assert value(db, progress, id, token, Jsonb("right")) is None
    assert value(connect(), progress, id, late, Jsonb("late")) == "taken by another"
    assert outcome(db, id)[2] == "right"
    assert value(db, progress, 12345, late, Jsonb(1)) == "not found"


def test_a_report_waits_for_who_is_ending_the_take(
    db: psycopg.Connection, taken: tuple[int, int], connect: Connect
) -> None:
    """Else the late holder would write over what the next one has reported."""
    id, late = taken
    settling, reporting = connect(autocommit=False), connect()
    settling.execute("SELECT pgqueue.release(%s, %s)", [id, late])
    with ThreadPoolExecutor(1) as thread:
        report = thread.submit(value, reporting, "SELECT problem FROM pgqueue.progress(%s, %s, value => '1')", id, late)
        eventually(lambda: value(db, "SELECT count(*) FROM pg_locks WHERE NOT granted") > 0)
        settling.commit()
        assert report.result(30) == "not taken"
    assert rows(db, "SELECT FROM pgqueue.progress") == []


def test_progress_is_told(db: psycopg.Connection, taken: tuple[int, int], connect: Connect) -> None:
    ear = connect()
    ear.execute(f'LISTEN "pgqueue:task:{taken[0]}"')
    ear.execute("SELECT pgqueue.await_ends(%s)", [[taken[0]]])
    for problem, token in [(None, taken[1]), ("taken by another", 1)]:
        assert value(db, "SELECT problem FROM pgqueue.progress(%s, %s, value => '1')", taken[0], token) == problem
    assert notifications(ear, db) == [f"pgqueue:task:{taken[0]}"]


# --- cleaning


def test_cleaning_removes_results_that_expired_and_nothing_else(db: psycopg.Connection) -> None:
    (done, _kept), _token = many(db, 2)
    db.execute("SELECT pgqueue.finish(%s)", [done])
    over(db, "result")
    db.execute("SELECT pgqueue.finish(id) FROM pgqueue.tasks")
    db.execute("SELECT pgqueue._clean_results()")
    assert column(db, "SELECT task_id FROM pgqueue.result") == [_kept]


def test_cleaning_removes_the_progress_of_takes_that_ended(db: psycopg.Connection) -> None:
    (ended, again, held), token = many(db, 3)
    for id in (ended, again, held):
        db.execute("SELECT pgqueue.progress(%s, %s, value => '1')", [id, token])
    db.execute("SELECT pgqueue.ack(%s, %s), pgqueue.release(%s, %s)", [ended, token, again, token])
    assert take(db, "q")[0] == again
    db.execute("SELECT pgqueue._clean_results()")
    assert value(db, "SELECT count(*) FROM pgqueue.progress") == 3  # too young: see there
    db.execute("UPDATE pgqueue.progress SET updated_at = updated_at - interval '2 min'")
    db.execute("SELECT pgqueue._clean_results()")
    assert column(db, "SELECT task_id FROM pgqueue.progress") == [held]
    assert outcome(db, held)[2] == 1


def test_who_finishes_many_removes_as_many(db: psycopg.Connection) -> None:
    ids, token = many(db, 30)
    rows(db, FINISH_MANY, ids[:20], [token] * 20, Jsonb([0] * 20))
    over(db, "result")
    rows(db, FINISH_MANY, ids[20:25], [token] * 5, Jsonb([0] * 5))
    assert value(db, "SELECT count(*) FROM pgqueue.result") == 15
    rows(db, FINISH_MANY, ids[25:], [token] * 5, Jsonb([0] * 5))
    assert value(db, "SELECT count(*) FROM pgqueue.result") == 10


# --- rights


def test_a_granted_role_may_use_all_of_it(db: psycopg.Connection, connect: Connect) -> None:
    role = value(db, "SELECT 'pgqueue_test_' || substr(md5(random()::text), 1, 12)")
    db.execute(f"CREATE ROLE {role}")
    try:
        db.execute("SELECT pgqueue.grant_to(%s)", [role])
        user = connect(options=f"-c role={role}")
        ids, token = many(user, 3)
        user.execute("SELECT pgqueue.progress(%s, %s, value => '1')", [ids[0], token])
        user.execute("SELECT pgqueue.finish(%s), pgqueue.fail(%s)", ids[:2])
        rows(user, FINISH_MANY, ids[2:], [token], Jsonb([1]))
        assert column(user, "SELECT state FROM pgqueue.results ORDER BY id") == ["done", "failed", "done"]
        user.execute("SELECT pgqueue.clean_up()")
        for table in ("result", "progress"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                user.execute(f"SELECT FROM pgqueue.{table}")
        for helper in (
            "_keep_result(1, 1, 1, '1 h', '1', NULL)",
            "_drop_expired_results(1, now())",
            "_clean_results()",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                user.execute(f"SELECT pgqueue.{helper}")
    finally:
        db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
