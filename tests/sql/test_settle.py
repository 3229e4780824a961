"""ack, release, bury and touch in SQL: what they do, and what they refuse without changing anything."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from eventually import eventually
from statements import column, everything, pass_time, put, row, rows, state, take, value

Connect = Any
STATE = {"ack": None, "release": "ready", "bury": "buried", "touch": "taken"}
BY_SESSION = ["ack", "release", "touch"]
HOUR = timedelta(hours=1)


def settle(conn: psycopg.Connection, verb: str, id: int, token: int | None = None) -> tuple[Any, ...]:
    """The answer: state, problem, holder."""
    return rows(conn, f"SELECT state, problem, holder FROM pgqueue.{verb}(%s, %s)", id, token)[0]


# --- by token and by session


@pytest.mark.parametrize("verb", STATE)
def test_a_token_counts_from_any_connection(db: psycopg.Connection, connect: Connect, verb: str) -> None:
    put(db, "q")
    id, token = take(db, "q")
    answer = {"ack": "done"}.get(verb, STATE[verb])
    assert settle(connect(), verb, id, token) == (answer, None, None)
    assert state(db, id) == STATE[verb]


@pytest.mark.parametrize("verb", BY_SESSION)
def test_without_a_token_the_connections_session_counts(db: psycopg.Connection, verb: str) -> None:
    put(db, "q")
    id, _ = take(db, "q")
    assert settle(db, verb, id)[1] is None
    assert state(db, id) == STATE[verb]


@pytest.mark.parametrize("verb", BY_SESSION)
def test_a_session_may_be_named(db: psycopg.Connection, connect: Connect, verb: str) -> None:
    put(db, "q")
    id, _ = take(db, "q")
    session = value(db, "SELECT pgqueue.own_session()")
    assert row(connect(), f"SELECT problem FROM pgqueue.{verb}(%s, session => %s)", id, session) == (None,)
    assert state(db, id) == STATE[verb]


# --- refusals


@pytest.mark.parametrize("verb", STATE)
@pytest.mark.parametrize("token", [None, 1])
def test_an_unknown_task(db: psycopg.Connection, verb: str, token: int | None) -> None:
    assert settle(db, verb, 12345, token) == (None, "not found", None)


@pytest.mark.parametrize("verb", STATE)
def test_a_task_that_is_acked(db: psycopg.Connection, verb: str) -> None:
    put(db, "q")
    id, token = take(db, "q")
    settle(db, "ack", id, token)
    assert settle(db, verb, id, token) == (None, "not found", None)


@pytest.mark.parametrize("verb", STATE)
@pytest.mark.parametrize(("now", "options"), [("ready", {}), ("delayed", {"delay": "1 h"})])
def test_a_task_that_nobody_took(db: psycopg.Connection, verb: str, now: str, options: dict[str, str]) -> None:
    id = put(db, "q", **options)
    before = everything(db, id)
    assert settle(db, verb, id, 1) == (now, "not taken", None)
    assert everything(db, id) == before


@pytest.mark.parametrize("verb", STATE)
def test_a_task_that_is_buried(db: psycopg.Connection, verb: str) -> None:
    id = put(db, "q")
    settle(db, "bury", id)
    before = everything(db, id)
    assert settle(db, verb, id, 1) == ("buried", "not taken", None)
    assert everything(db, id) == before


@pytest.mark.parametrize("verb", STATE)
@pytest.mark.parametrize("by", ["token", "session"])
def test_a_task_that_another_took(db: psycopg.Connection, connect: Connect, verb: str, by: str) -> None:
    id = put(db, "q")
    db.execute("SELECT pgqueue.open_session(label => 'host:1:worker')")
    take(db, "q")
    other = connect()
    put(other, "other")
    token = take(other, "other")[1] if by == "token" or verb == "bury" else None
    before = everything(db, id)
    assert settle(other, verb, id, token) == ("taken", "taken by another", "host:1:worker")
    assert everything(db, id) == before


@pytest.mark.parametrize("verb", STATE)
def test_a_take_whose_deadline_passed(db: psycopg.Connection, verb: str) -> None:
    id = put(db, "q", ttr="0.05 s")
    _, token = take(db, "q")
    eventually(lambda: state(db, id) == "ready")
    before = everything(db, id)
    assert settle(db, verb, id, token) == ("ready", "not taken", None)
    assert everything(db, id) == before


@pytest.mark.parametrize("verb", STATE)
def test_a_take_that_another_took_over(db: psycopg.Connection, connect: Connect, verb: str) -> None:
    id = put(db, "q", ttr="1 h")
    _, late = take(db, "q")
    pass_time(db, "1 h")
    other = connect()
    other.execute("SELECT pgqueue.open_session(label => 'the next')")
    assert column(other, "SELECT id FROM pgqueue.take('q')") == [id]
    before = everything(db, id)
    assert settle(db, verb, id, late) == ("taken", "taken by another", "the next")
    assert everything(db, id) == before


@pytest.mark.parametrize("verb", BY_SESSION)
def test_a_connection_without_a_session_holds_nothing(db: psycopg.Connection, connect: Connect, verb: str) -> None:
    put(db, "q")
    id, _ = take(db, "q")
    assert settle(connect(), verb, id)[1] == "taken by another"
    assert state(db, id) == "taken"


# --- release


def test_release_keeps_the_place(db: psycopg.Connection) -> None:
    put(db, "q"), put(db, "q")
    id, token = take(db, "q")
    settle(db, "release", id, token)
    assert take(db, "q")[0] == id


def test_release_with_a_delay(db: psycopg.Connection) -> None:
    put(db, "q")
    id, token = take(db, "q")
    assert value(db, "SELECT state FROM pgqueue.release(%s, %s, delay => '1 h')", id, token) == "delayed"
    assert rows(db, "SELECT * FROM pgqueue.take('q')") == []
    assert state(db, id) == "delayed"
    pass_time(db, "1 h")
    assert column(db, "SELECT id FROM pgqueue.take('q')") == [id]


def test_release_with_an_error_counts_and_keeps_it(db: psycopg.Connection) -> None:
    put(db, "q")
    for attempt in (1, 2):
        id, token = take(db, "q")
        db.execute("SELECT pgqueue.release(%s, %s, error => %s)", [id, token, f"failed {attempt}"])
        assert row(db, "SELECT attempts, error FROM pgqueue.tasks") == (attempt, f"failed {attempt}")
    id, token = take(db, "q")
    settle(db, "release", id, token)
    assert row(db, "SELECT attempts, error FROM pgqueue.tasks") == (2, "failed 2")


def test_pq002_for_a_negative_delay(db: psycopg.Connection) -> None:
    put(db, "q")
    id, token = take(db, "q")
    before = everything(db, id)
    with pytest.raises(psycopg.DatabaseError, match="delay must be 0 to") as raised:
        db.execute("SELECT pgqueue.release(%s, %s, delay => '-1 s')", [id, token])
    assert raised.value.sqlstate == "PQ002"
    assert everything(db, id) == before


# --- bury


@pytest.mark.parametrize("now", ["ready", "delayed", "taken", "buried"])
def test_bury_without_a_token_takes_any_state(db: psycopg.Connection, connect: Connect, now: str) -> None:
    id = put(db, "q", delay="1 h" if now == "delayed" else "0")
    if now == "taken":
        take(connect(), "q")
    if now == "buried":
        settle(db, "bury", id)
    assert state(db, id) == now
    assert settle(db, "bury", id) == ("buried", None, None)
    assert row(db, "SELECT state, run_at, holder FROM pgqueue.tasks") == ("buried", None, None)
    assert rows(db, "SELECT * FROM pgqueue.take('q')") == []


def test_bury_keeps_the_error_and_counts_a_takers(db: psycopg.Connection) -> None:
    id = put(db, "q")
    db.execute("SELECT pgqueue.bury(%s, error => 'by hand')", [id])
    assert row(db, "SELECT attempts, error FROM pgqueue.tasks") == (0, "by hand")
    db.execute("SELECT pgqueue.kick('q')")
    _, token = take(db, "q")
    db.execute("SELECT pgqueue.bury(%s, %s, error => 'failed')", [id, token])
    assert row(db, "SELECT attempts, error FROM pgqueue.tasks") == (1, "failed")


# --- touch


def test_touch_sets_the_deadline_to_ttr_from_now_or_adds_to_it(db: psycopg.Connection) -> None:
    put(db, "q", ttr="1 h")
    id, token = take(db, "q")
    first = value(db, "SELECT deadline FROM pgqueue.tasks")
    settle(db, "touch", id, token)
    second = value(db, "SELECT deadline FROM pgqueue.tasks")
    assert first < second < first + HOUR
    db.execute("SELECT pgqueue.touch(%s, %s, more => '1 h')", [id, token])
    assert value(db, "SELECT deadline FROM pgqueue.tasks") == second + HOUR
    db.execute("SELECT pgqueue.touch(%s, %s, more => '0')", [id, token])
    assert value(db, "SELECT deadline FROM pgqueue.tasks") == second + HOUR


@pytest.mark.parametrize("more", [None, "1 h"])
def test_touch_without_a_ttr_sets_no_deadline(db: psycopg.Connection, more: str | None) -> None:
    put(db, "q")
    id, token = take(db, "q")
    assert value(db, "SELECT state FROM pgqueue.touch(%s, %s, more => %s)", id, token, more) == "taken"
    assert value(db, "SELECT deadline FROM pgqueue.tasks") is None


def test_touch_never_shortens_the_deadline(db: psycopg.Connection) -> None:
    put(db, "q", ttr="1 h")
    id, token = take(db, "q")
    db.execute("SELECT pgqueue.touch(%s, %s, more => '5 h')", [id, token])
    longer = value(db, "SELECT deadline FROM pgqueue.tasks")
    assert value(db, "SELECT state FROM pgqueue.touch(%s, %s)", id, token) == "taken"
    assert value(db, "SELECT deadline FROM pgqueue.tasks") == longer


def test_pq002_for_a_negative_touch(db: psycopg.Connection) -> None:
    put(db, "q", ttr="1 h")
    id, token = take(db, "q")
    before = everything(db, id)
    with pytest.raises(psycopg.DatabaseError, match="more must be 0 to") as raised:
        db.execute("SELECT pgqueue.touch(%s, %s, more => '-1 s')", [id, token])
    assert raised.value.sqlstate == "PQ002"
    assert everything(db, id) == before


# --- many


@pytest.mark.parametrize(("verb", "after"), [("ack_many", None), ("release_many", "ready")])
@pytest.mark.parametrize("by", ["token", "session"])
def test_many_answer_with_what_they_refused(
    db: psycopg.Connection, connect: Connect, verb: str, after: str | None, by: str
) -> None:
    other = connect()
    other.execute("SELECT pgqueue.open_session(label => 'other')")
    others, mine, ready = put(db, "others"), [put(db, "q") for _ in range(3)], put(db, "ready")
    take(other, "others")
    token = rows(db, "SELECT DISTINCT token FROM pgqueue.take_many('{q}', 3)")[0][0]
    ids = [ready, mine[2], 12345, mine[0], others, mine[1]]
    tokens = [token if by == "token" else None] * len(ids)
    assert rows(db, f"SELECT id, state, problem, holder FROM pgqueue.{verb}(%s, %s::int8[])", ids, tokens) == [
        (others, "taken", "taken by another", "other"),
        (ready, "ready", "not taken", None),
        (12345, None, "not found", None),
    ]
    assert [state(db, id) for id in mine] == [after] * 3
    assert (state(db, others), state(db, ready)) == ("taken", "ready")


@pytest.mark.parametrize("verb", ["ack_many", "release_many"])
def test_many_of_none(db: psycopg.Connection, verb: str) -> None:
    assert rows(db, f"SELECT * FROM pgqueue.{verb}('{{}}')") == []


def test_a_rolled_back_ack_leaves_the_task_taken(db: psycopg.Connection) -> None:
    put(db, "q")
    id, token = take(db, "q")
    with db.transaction(force_rollback=True):
        assert settle(db, "ack", id, token) == ("done", None, None)
    assert state(db, id) == "taken"
    assert settle(db, "ack", id, token) == ("done", None, None)


@pytest.mark.parametrize("options", [{}, {"error": "it failed"}, {"error": "it failed", "hold_lane": True}])
def test_a_delay_does_not_use_up_the_time_to_live(db: psycopg.Connection, options: dict[str, Any]) -> None:
    """As with a put: the ttl counts while the task can be taken."""
    id = put(db, "q", ttl="1 min", lane="a")
    before = value(db, "SELECT expires_at FROM pgqueue.tasks WHERE id = %s", id)
    token = take(db, "q")[1]
    names = "".join(f", {name} => %s" for name in options)
    db.execute(f"SELECT pgqueue.release(%s, %s, delay => '1 h'{names})", [id, token, *options.values()])
    ((run_at, expires_at),) = rows(db, "SELECT run_at, expires_at FROM pgqueue.tasks WHERE id = %s", id)
    assert expires_at - before == timedelta(hours=1)
    assert run_at < expires_at
    pass_time(db, "1 h")
    db.execute("SELECT pgqueue.promote_all()")
    assert take(db, "q")[0] == id
