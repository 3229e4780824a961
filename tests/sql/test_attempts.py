"""The record of failed attempts: attempts.sql."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
import pytest
from statements import column, put, row, rows, take, value
from stepping import die

ATTEMPTS = "SELECT number, state, error, traceback FROM pgqueue.attempts WHERE id = %s ORDER BY number"
LONG_AGO = datetime(2024, 5, 1, tzinfo=UTC)


def fail(db: psycopg.Connection, text: str = "no", verb: str = "release", **more: object) -> int:
    """Take the next task and end its take with an error."""
    id, token = take(db, "q")
    names = "".join(f", {name} => %s" for name in more)
    db.execute(
        f"SELECT FROM pgqueue.{verb}(id => %s, token => %s, error => %s{names})", [id, token, text, *more.values()]
    )
    return id


@pytest.mark.parametrize("verb", ["release", "bury", "fail"])
def test_an_attempt_is_recorded_with_all_that_is_known_of_it(db, verb):
    put(db, "q")
    db.execute("SELECT pgqueue.open_session(label => 'web1:7:shop')")
    id = fail(db, "no", verb, traceback="Traceback ...", began=LONG_AGO, worker="w", ended_as="timeout")
    assert rows(db, "SELECT queue, number, began_at, worker, state, error, traceback FROM pgqueue.attempts") == [
        ("q", 1, LONG_AGO, "w", "timeout", "no", "Traceback ..."),
    ]  # fmt: skip
    assert value(db, "SELECT id FROM pgqueue.attempts WHERE ended_at BETWEEN now() - interval '9 s' AND now()") == id


@pytest.mark.parametrize("verb", ["release", "bury", "fail"])
def test_without_details_the_take_says_who_and_when(db, verb):
    put(db, "q")
    db.execute("SELECT pgqueue.open_session(label => 'web1:7:shop')")
    fail(db, "no", verb)
    query = "SELECT worker, state, began_at < ended_at AND began_at > now() - interval '9 s' FROM pgqueue.attempts"
    assert rows(db, query) == [("web1:7:shop", "failed", True)]


def test_what_is_no_attempt_is_not_recorded(db):
    put(db, "q")
    db.execute("SELECT FROM pgqueue.release(%s, %s)", take(db, "q"))
    db.execute("SELECT FROM pgqueue.release(%s, %s, delay => '0')", take(db, "q"))
    id, _ = take(db, "q")
    db.execute("SELECT FROM pgqueue.bury(%s, error => 'by hand')", [id])
    assert rows(db, "SELECT FROM pgqueue.attempts") == []


def test_one_that_does_not_count_is_recorded_only(db):
    db.execute("SELECT pgqueue.create_queue('q', max_takes => 1)")
    id = put(db, "q")
    fail(db, counts=False)
    assert row(db, "SELECT state, attempts FROM pgqueue.tasks") == ("ready", 0)
    assert [found[0] for found in rows(db, ATTEMPTS, id)] == [1]


def test_the_last_ten_are_kept(db):
    id = put(db, "q")
    for n in range(1, 14):
        fail(db, f"no {n}")
    assert [(number, error) for number, _, error, _ in rows(db, ATTEMPTS, id)] == [(n, f"no {n}") for n in range(4, 14)]


@pytest.mark.parametrize("letter", ["x", "ä", "🎉"])
def test_of_a_long_traceback_the_middle_is_cut(db, letter):
    put(db, "q")
    text = "head" + letter * 100_000 + "tail"
    fail(db, traceback=text)
    kept = value(db, "SELECT traceback FROM pgqueue.attempts")
    assert len(kept.encode()) <= 16384 + 100
    assert kept.startswith("head" + letter)
    assert kept.endswith(letter + "tail")
    assert "characters are cut" in kept


def test_a_deadline_is_recorded(db):
    db.execute("SELECT pgqueue.open_session(label => 'web1:7:shop')")
    id = put(db, "q", ttr="1 h")
    take(db, "q")
    db.execute("UPDATE pgqueue.take SET deadline = now()")
    db.execute("SELECT pgqueue.promote_all()")
    assert rows(db, ATTEMPTS, id) == [(1, "timeout", "the time to run was over", None)]
    assert row(db, "SELECT worker, began_at < ended_at FROM pgqueue.attempts") == ("web1:7:shop", True)


def test_a_death_is_recorded_where_it_is_charged(db, connect):
    id = put(db, "q")
    taker = connect()
    taker.execute("SELECT pgqueue.open_session(grace => '0', label => 'web1:8:shop')")
    take(taker, "q")
    die(taker, db)
    db.execute("SELECT FROM pgqueue.sweep()")
    assert rows(db, ATTEMPTS, id) == [(1, "died", "its taker died: web1:8:shop", None)]
    assert row(db, "SELECT worker, began_at < ended_at FROM pgqueue.attempts") == ("web1:8:shop", True)


def test_several_deaths_at_once_are_charged_to_none(db, connect):
    put(db, "q")
    put(db, "q")
    taker = connect()
    taker.execute("SELECT pgqueue.open_session(grace => '0')")
    take(taker, "q")
    take(taker, "q")
    die(taker, db)
    db.execute("SELECT FROM pgqueue.sweep()")
    assert rows(db, "SELECT FROM pgqueue.attempts") == []


def test_a_task_takes_its_attempts_to_its_new_id(db):
    put(db, "q")
    id = fail(db)
    new = value(db, "SELECT new_id FROM pgqueue.requeue(%s, %s)", *take(db, "q"))
    assert column(db, "SELECT id FROM pgqueue.attempts") == [new] != [id]


def test_cleaning_removes_them_a_while_after_the_task_and_its_result(db):
    ids = [put(db, "q") for _ in range(4)]
    for _ in ids:
        fail(db, delay="1 h")
    db.execute("SELECT pgqueue.kick('q', 10, delayed => true)")
    alive, done, new, kept = ids
    db.execute("UPDATE pgqueue.attempt SET ended_at = now() - interval '2 h' WHERE task_id <> %s", [new])
    taken = dict(rows(db, "SELECT id, token FROM pgqueue.take_many('{q}', 10)"))
    for id in (done, new):
        db.execute("SELECT FROM pgqueue.ack(%s, %s)", [id, taken[id]])
    db.execute("SELECT FROM pgqueue.finish(%s, %s, keep => '1 h')", [kept, taken[kept]])
    db.execute("SELECT pgqueue.clean_up()")
    assert column(db, "SELECT id FROM pgqueue.attempts ORDER BY id") == [alive, new, kept]


@pytest.mark.parametrize(
    "more", [{"ended_as": "died"}, {"ended_as": None}, {"worker": "x" * 201}, {"began": "infinity"}]
)
def test_bad_input(db, more):
    put(db, "q")
    with pytest.raises(psycopg.Error) as caught:
        fail(db, **more)
    assert caught.value.sqlstate == "PQ002"


def test_monitors_see_no_error(db, make, connect):
    put(db, "q")
    fail(db, traceback="secret")
    monitor = make("SELECT pgqueue.grant('q', %s, '{monitor}')")
    conn = connect(options=f"-c role={monitor}")
    assert rows(conn, "SELECT number, error, traceback FROM pgqueue.attempts") == [(1, None, None)]
