"""pgqueue.put, put_many and create_queue, in SQL."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from statements import column, put, row, rows, value


def test_a_put_answers_with_id_and_state(db: psycopg.Connection) -> None:
    id, state = rows(db, "SELECT id, state FROM pgqueue.put('q', '{\"to\": \"ada\"}')")[0]
    assert state == "ready"
    found = "SELECT queue, state, priority, attempts, run_at, ttr, error, data, holder FROM pgqueue.tasks WHERE id = %s"
    assert row(db, found, id) == ("q", "ready", 0, 0, None, None, None, {"to": "ada"}, None)


def test_ids_grow(db: psycopg.Connection) -> None:
    ids = [put(db, "q") for _ in range(5)]
    assert ids == sorted(set(ids))


def test_a_delayed_put_is_delayed(db: psycopg.Connection) -> None:
    id, state = rows(db, "SELECT id, state FROM pgqueue.put('q', '1', delay => '1 hour')")[0]
    assert state == "delayed"
    assert row(db, "SELECT state, run_at > now() + '59 min' FROM pgqueue.tasks WHERE id = %s", id) == ("delayed", True)


def test_no_delay_is_no_delay(db: psycopg.Connection) -> None:
    assert row(db, "SELECT state FROM pgqueue.put('q', '1', delay => '0')") == ("ready",)


def test_a_delay_counts_from_the_put_and_not_from_the_transaction(db: psycopg.Connection) -> None:
    with db.transaction():
        db.execute("SELECT pg_sleep(0.2)")
        id = put(db, "q", delay="10 s")
        late = value(db, "SELECT run_at - now() FROM pgqueue.tasks WHERE id = %s", id)
    assert late >= timedelta(seconds=10.2)


def test_options_left_out_are_the_queues(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('q', priority => 7, delay => '1 hour', ttr => '2 min')")
    own, other = put(db, "q"), put(db, "q", priority=-1, delay="0", ttr="3 s")
    query = "SELECT priority, state, ttr FROM pgqueue.tasks WHERE id = %s"
    assert row(db, query, own) == (7, "delayed", timedelta(minutes=2))
    assert row(db, query, other) == (-1, "ready", timedelta(seconds=3))
    (many,) = value(db, "SELECT pgqueue.put_many('q', '[1]')")
    assert row(db, query, many) == (7, "delayed", timedelta(minutes=2))


def test_put_many_keeps_the_order(db: psycopg.Connection) -> None:
    ids = value(db, "SELECT pgqueue.put_many('q', (SELECT jsonb_agg(i) FROM generate_series(1, 500) i))")
    assert ids == sorted(set(ids))
    assert column(db, "SELECT data FROM pgqueue.tasks ORDER BY id") == list(range(1, 501))
    assert column(db, "SELECT id FROM pgqueue.tasks ORDER BY id") == ids


def test_put_many_with_options(db: psycopg.Connection) -> None:
    ids = value(db, "SELECT pgqueue.put_many('q', '[null, [], {}]', priority => 3, delay => '1 h', ttr => '4 s')")
    assert rows(db, "SELECT id, priority, state, ttr, data FROM pgqueue.tasks ORDER BY id") == [
        (id, 3, "delayed", timedelta(seconds=4), data) for id, data in zip(ids, [None, [], {}], strict=True)
    ]


def test_put_many_of_nothing(db: psycopg.Connection) -> None:
    assert value(db, "SELECT pgqueue.put_many('q', '[]')") == []


def test_put_many_wants_an_array(db: psycopg.Connection) -> None:
    with pytest.raises(psycopg.DatabaseError, match="data must be a JSON array, not object") as raised:
        db.execute("SELECT pgqueue.put_many('q', '{}')")
    assert raised.value.sqlstate == "PQ002"


def test_data_is_needed(db: psycopg.Connection) -> None:
    with pytest.raises(psycopg.DatabaseError, match="data cannot be NULL") as raised:
        db.execute("SELECT pgqueue.put('q', NULL)")
    assert raised.value.sqlstate == "PQ002"
    assert column(db, "SELECT id FROM pgqueue.tasks") == []


def test_pq003_for_a_queue_that_exists(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('q', priority => 7)")
    with pytest.raises(psycopg.DatabaseError, match='queue "q" exists already') as raised:
        db.execute("SELECT pgqueue.create_queue('q', priority => 8)")
    assert raised.value.sqlstate == "PQ003"
    assert value(db, "SELECT priority FROM pgqueue.tasks WHERE id = %s", put(db, "q")) == 7


def test_a_queue_has_one_id(db: psycopg.Connection) -> None:
    ids = [value(db, "SELECT pgqueue.queue_id(%s)", name) for name in ("a", "b", "a", "A")]
    assert ids[0] == ids[2]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("name", ["q" * 200, "ü" * 200, "x", " ", 'a"b; drop', "pgqueue.task", "%s"])
def test_names_that_can_be(db: psycopg.Connection, name: str) -> None:
    put(db, name)
    assert column(db, "SELECT queue FROM pgqueue.tasks") == [name]


@pytest.mark.parametrize("name", ["", "q" * 201, None])
@pytest.mark.parametrize(
    "call", ["pgqueue.put(%s, '1')", "pgqueue.put_many(%s, '[1]')", "pgqueue.create_queue(%s)", "pgqueue.queue_id(%s)"]
)
def test_pq001_for_a_name_that_cannot_be(db: psycopg.Connection, call: str, name: str | None) -> None:
    with pytest.raises(psycopg.DatabaseError, match="1 to 200 characters") as raised:
        db.execute(f"SELECT {call}", [name])
    assert raised.value.sqlstate == "PQ001"
    assert rows(db, "SELECT FROM pgqueue.queue") == []


@pytest.mark.parametrize("option", ["delay => '-1 s'", "delay => '-1 us'", "ttr => '0'", "ttr => '-1 s'"])
@pytest.mark.parametrize("call", ["pgqueue.put('q', '1', {})", "pgqueue.put_many('q', '[1]', {})"])
def test_pq002_for_times_that_cannot_be(db: psycopg.Connection, call: str, option: str) -> None:
    with pytest.raises(
        psycopg.DatabaseError, match=r"(delay must be 0|ttr must be over 0) to 1e.09 seconds, not"
    ) as raised:
        db.execute(f"SELECT {call.format(option)}")
    assert raised.value.sqlstate == "PQ002"
    assert rows(db, "SELECT FROM pgqueue.queue") == rows(db, "SELECT FROM pgqueue.task") == []


@pytest.mark.parametrize("option", ["delay => '-1 s'", "ttr => '0'"])
def test_pq002_for_a_queue_with_such_times(db: psycopg.Connection, option: str) -> None:
    with pytest.raises(psycopg.DatabaseError) as raised:
        db.execute(f"SELECT pgqueue.create_queue('q', {option})")
    assert raised.value.sqlstate == "PQ002"


def test_a_rolled_back_put_was_never_there(db: psycopg.Connection) -> None:
    with db.transaction(force_rollback=True):
        put(db, "q")
        assert len(rows(db, "SELECT FROM pgqueue.tasks")) == 1
    assert rows(db, "SELECT FROM pgqueue.tasks") == []


def test_two_transactions_make_the_same_queue(db: psycopg.Connection, dsn: str) -> None:
    """The second waits for the first, and then finds its queue."""
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
        put(first, "new")
        second.execute("SET lock_timeout = '50 ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            put(second, "new")
        second.rollback()
        first.commit()
        put(second, "new")
        second.commit()
    assert len(rows(db, "SELECT FROM pgqueue.tasks WHERE queue = 'new'")) == 2
