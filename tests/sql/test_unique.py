"""Puts that are unique for a time: two at once, rollbacks, tasks that have ended, and cleaning."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from eventually import eventually
from psycopg.types.json import Jsonb
from statements import column, row, rows, value

Connect = Callable[..., psycopg.Connection]

PUT = "SELECT id, state, existed FROM pgqueue.put('q', '1', key => 'k', unique_for => '1 h')"
ACK = "SELECT pgqueue.ack(t.id, t.token) FROM pgqueue.take('q') t"


def over(db: psycopg.Connection) -> None:
    db.execute("UPDATE pgqueue.recent_key SET expires_at = clock_timestamp()")


def test_the_key_counts_until_its_time_is_over_also_when_the_task_is_done_or_deleted(db: psycopg.Connection) -> None:
    assert row(db, PUT) == (1, "ready", False)
    assert row(db, PUT) == (1, "ready", True)
    db.execute(ACK)
    assert row(db, PUT) == (1, "unknown", True)
    over(db)
    assert row(db, PUT) == (2, "ready", False)
    db.execute("SELECT pgqueue.delete(2)")
    assert row(db, PUT) == (2, "unknown", True)
    assert rows(db, "SELECT FROM pgqueue.tasks") == []


def test_without_a_key_the_data_counts(db: psycopg.Connection) -> None:
    put = "SELECT id, existed FROM pgqueue.put('q', %s, unique_for => '1 h')"
    assert row(db, put, Jsonb({"a": 1, "b": [None, "ü"]})) == (1, False)
    assert row(db, put, Jsonb({"b": [None, "ü"], "a": 1})) == (1, True)
    assert row(db, put, Jsonb({"a": 2, "b": [None, "ü"]})) == (2, False)
    assert column(db, "SELECT key = pgqueue.data_key(data) FROM pgqueue.tasks") == [True, True]


def test_of_a_job_the_name_and_the_arguments_count(db: psycopg.Connection) -> None:
    def key(**data: Any) -> str:
        return str(value(db, "SELECT pgqueue.data_key(%s)", Jsonb(data)))

    one = key(job="j", args={"n": 1})
    assert key(job="j", args={"n": 1}, headers={"traceparent": "00"}, attempts=3) == one
    assert len({one, key(job="j", args={"n": 2}), key(job="i", args={"n": 1}), key(args={"n": 1}, headers={})}) == 4


@pytest.mark.parametrize("data", ["null", "[]", '["headers", "job"]', '"job"', "1", "{}", None])
def test_any_data_has_a_key(db: psycopg.Connection, data: str | None) -> None:
    assert value(db, "SELECT length(pgqueue.data_key(%s))", data) == (None if data is None else 64)


def test_other_queues_keys_and_plain_puts_do_not_count(db: psycopg.Connection) -> None:
    db.execute(PUT)
    assert value(db, "SELECT existed FROM pgqueue.put('r', '1', key => 'k', unique_for => '1 h')") is False
    assert value(db, "SELECT existed FROM pgqueue.put('q', '1', key => 'l', unique_for => '1 h')") is False
    assert row(db, "SELECT id, existed FROM pgqueue.put('q', '1', key => 'k')") == (1, True)  # its task is not done
    db.execute("SELECT pgqueue.delete(1)")
    assert value(db, "SELECT existed FROM pgqueue.put('q', '1', key => 'k')") is False
    assert value(db, "SELECT existed FROM pgqueue.put('q', '1')") is None


def test_an_older_task_with_the_key_keeps_the_put_from_beginning_a_time(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.put('q', '0', key => 'k')")
    assert row(db, PUT) == (1, "ready", True)
    db.execute(ACK)
    assert row(db, PUT) == (2, "ready", False)


def test_a_full_queue_begins_no_time(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('q', capacity => 1); SELECT pgqueue.put('q', '0')")
    assert row(db, PUT) == (None, "full", False)
    db.execute("SELECT pgqueue.truncate_queue('q')")
    assert row(db, PUT) == (2, "ready", False)


def test_a_rollback_frees_the_key(db: psycopg.Connection) -> None:
    with db.transaction(force_rollback=True):
        assert row(db, PUT) == (1, "ready", False)
    assert row(db, PUT) == (2, "ready", False)


@pytest.mark.parametrize("commits", [True, False])
def test_of_two_at_once_the_second_waits_for_the_end_of_the_first(
    db: psycopg.Connection, connect: Connect, commits: bool
) -> None:
    """Also where the first one's task was taken and acked, in its own transaction: the row alone tells."""
    first, second, answers = connect(), connect(), list[Any]()
    with first.transaction(force_rollback=not commits):
        assert row(first, PUT) == (1, "ready", False)
        first.execute("SELECT pgqueue.delete(1)")
        thread = threading.Thread(target=lambda: answers.append(row(second, PUT)))
        thread.start()
        waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
        eventually(lambda: value(db, waits, second.info.backend_pid))
    thread.join(30)
    assert answers == [(1, "unknown", True) if commits else (2, "ready", False)]


def test_of_many_at_once_one_puts(db: psycopg.Connection, connect: Connect) -> None:
    connections = [connect() for _ in range(8)]

    def put(conn: psycopg.Connection, key: str, barrier: threading.Barrier, answers: list[Any]) -> None:
        barrier.wait(30)
        call = "SELECT id, existed FROM pgqueue.put('q', '1', key => %s, unique_for => '1 h')"
        answers.append(row(conn, call, key))
        conn.execute(ACK)

    for attempt in range(20):
        answers = list[Any]()
        given = (f"k{attempt}", threading.Barrier(8), answers)
        threads = [threading.Thread(target=put, args=(conn, *given)) for conn in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(existed for _, existed in answers) == [False] + [True] * 7
        assert len({id for id, _ in answers}) == 1


def test_above_read_committed_it_fails_and_puts_nothing(db: psycopg.Connection, connect: Connect) -> None:
    other = connect()
    other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    assert row(db, PUT) == (1, "ready", False)
    with pytest.raises(psycopg.errors.SerializationFailure):
        other.execute(PUT)
    other.execute("ROLLBACK")


def test_error_and_replace(db: psycopg.Connection) -> None:
    db.execute(PUT)
    db.execute(ACK)
    with pytest.raises(psycopg.DatabaseError) as caught:
        db.execute(PUT.replace("'1 h'", "'1 h', if_exists => 'error'"))
    assert caught.value.sqlstate == "PQ038"
    for wrong in ("'1 h', if_exists => 'replace'", "'0'", "'-1 s'", "'100 years'"):
        with pytest.raises(psycopg.DatabaseError) as caught:
            db.execute(PUT.replace("'1 h'", wrong))
        assert caught.value.sqlstate == "PQ002"


def test_put_many_puts_each_key_once(db: psycopg.Connection) -> None:
    many = "SELECT pgqueue.put_many('q', '[1, 2, 3, 1]', keys => %s, unique_for => '1 h')"
    a, b, c, again = value(db, many, ["a", "b", None, "a"])
    assert again == a
    assert len({a, b, c}) == 3
    db.execute("SELECT pgqueue.truncate_queue('q')")
    assert value(db, many, ["a", "b", None, "a"]) == [a, b, c, a]
    assert value(db, "SELECT pgqueue.put_many('q', '[3, 4]', unique_for => '1 h')")[0] == c
    assert column(db, "SELECT data FROM pgqueue.tasks") == [4]
    with pytest.raises(psycopg.DatabaseError) as caught:
        db.execute(many, [["a"]])
    assert caught.value.sqlstate == "PQ002"


def test_an_ack_hands_on_once(db: psycopg.Connection) -> None:
    puts = Jsonb([{"queue": "r", "data": 1, "unique_for": 3600}, {"queue": "r", "data": 2, "unique_data": True}])
    for _ in range(2):
        db.execute("SELECT pgqueue.put('q', '0')")
        db.execute("SELECT pgqueue.ack(t.id, t.token, puts => %s) FROM pgqueue.take('q') t", [puts])
    assert column(db, "SELECT data FROM pgqueue.tasks ORDER BY id") == [1, 2]


def test_a_graph_hands_on_data_once_also_when_there_is_none(db: psycopg.Connection) -> None:
    puts = Jsonb([{"queue": "q", "data": None, "unique_data": True}, {"queue": "q", "data": 1, "after": [-1]}])
    (first, second), (same, third) = (value(db, "SELECT pgqueue.put_graph(%s)", puts) for _ in range(2))
    assert same == first
    assert third > second > first
    assert column(db, "SELECT state FROM pgqueue.tasks ORDER BY id") == ["ready", "waiting", "waiting"]


@pytest.mark.parametrize("flow", [{"after": [-1]}, {"batch": 1}])
def test_a_put_into_a_flow_is_not_unique_for_a_time(db: psycopg.Connection, flow: dict[str, Any]) -> None:
    puts = Jsonb([{"queue": "q", "data": 1}, {"queue": "q", "data": 2, "unique_for": 3600} | flow])
    with pytest.raises(psycopg.DatabaseError) as caught:
        db.execute("SELECT pgqueue.put_graph(%s)", [puts])
    assert caught.value.sqlstate == "PQ002"
    assert rows(db, "SELECT FROM pgqueue.tasks") == []


def test_cleaning_removes_what_is_over_and_waits_for_nothing(db: psycopg.Connection, connect: Connect) -> None:
    db.execute("SELECT pgqueue.put('q', '1', key => k, unique_for => '1 h') FROM unnest('{a,b}'::text[]) k")
    over(db)
    db.execute(PUT)
    other = connect()
    with other.transaction():
        other.execute("SELECT FROM pgqueue.recent_key WHERE key = 'a' FOR UPDATE")
        db.execute("SET lock_timeout = '5 s'")
        db.execute("SELECT pgqueue.clean_up()")
        assert column(db, "SELECT key FROM pgqueue.recent_key ORDER BY key") == ["a", "k"]
