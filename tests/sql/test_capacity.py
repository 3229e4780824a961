"""Queues that hold so many tasks and no more, or no larger ones, or none at all any more."""

from __future__ import annotations

import psycopg
import pytest
from statements import notifications, put, row, rows, take, value
from stepping import waiting


@pytest.fixture(autouse=True)
def queue(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.queue_id('q')")
    db.execute("UPDATE pgqueue.queue SET capacity = 3")


def put_one(conn: psycopg.Connection) -> tuple:
    return row(conn, "SELECT id IS NOT NULL, state FROM pgqueue.put('q', '1')")


ROOM, FULL = (True, "ready"), (False, "full")


def test_the_fourth_put_is_refused_and_goes_in_once_one_is_acked(db):
    assert [put_one(db) for _ in range(4)] == [ROOM] * 3 + [FULL]
    id, token = take(db, "q")
    assert put_one(db) == FULL  # taken tasks count
    db.execute("SELECT pgqueue.ack(%s, %s)", [id, token])
    assert put_one(db) == ROOM
    assert put_one(db) == FULL


@pytest.mark.parametrize("how", ["delay => '1 h'", "lane => 'l'"])
def test_every_state_counts(db, how):
    for _ in range(3):
        db.execute(f"SELECT pgqueue.put('q', '1', {how})")
    assert put_one(db) == FULL


def test_buried_tasks_count_and_done_ones_do_not(db):
    db.execute("UPDATE pgqueue.queue SET keep_done = '1 h'")
    for _ in range(3):
        put_one(db)
    db.execute("SELECT pgqueue.bury(%s, %s)", take(db, "q"))
    assert put_one(db) == FULL
    db.execute("SELECT pgqueue.ack(%s, %s)", take(db, "q"))
    assert value(db, "SELECT count(*) FROM pgqueue.tasks WHERE state = 'done'") == 1
    assert put_one(db) == ROOM


def test_a_key_that_is_there_needs_no_room(db):
    id = put(db, "q", key="k")
    put_one(db), put_one(db)
    assert put(db, "q", key="k") == id
    assert put(db, "q", key="k", if_exists="replace") == id


def test_put_many_is_all_or_nothing(db):
    put_one(db)
    with pytest.raises(psycopg.Error, match='"q" has no room for 3') as caught:
        db.execute("SELECT pgqueue.put_many('q', '[1, 2, 3]')")
    assert caught.value.sqlstate == "PQ037"
    assert len(value(db, "SELECT pgqueue.put_many('q', '[1, 2]')")) == 2


def test_one_counts_what_another_has_not_committed(db, connect):
    """Else two transactions would each fill the last place. So the second waits for what becomes of the first."""
    first, second = connect(autocommit=False), connect()
    put_one(db), put_one(db)
    assert put_one(first) == ROOM
    with waiting(second, db, "SELECT state FROM pgqueue.put('q', '1')") as refused:
        first.commit()
        assert refused.result(timeout=30) == [("full",)]


def test_and_gets_its_place_when_that_rolls_back(db, connect):
    first, second = connect(autocommit=False), connect()
    put_one(db), put_one(db)
    assert put_one(first) == ROOM
    with waiting(second, db, "SELECT state FROM pgqueue.put('q', '1')") as placed:
        first.rollback()
        assert placed.result(timeout=30) == [("ready",)]


def test_needs_read_committed(connect):
    strict = connect(options="-c default_transaction_isolation=repeatable\\ read")
    with pytest.raises(psycopg.Error, match="READ COMMITTED") as caught:
        put_one(strict)
    assert caught.value.sqlstate == "PQ002"


@pytest.mark.parametrize("how", ["ack", "ack_many", "delete", "pop", "raw", "expire", "dead"])
def test_whatever_makes_room_tells_who_waits_for_it(db, connect, how):
    """On the channel of the negated id, where a put that found the queue full sleeps."""
    q = value(db, "SELECT id FROM pgqueue.queue WHERE name = 'q'")
    id = put(db, "q", ttl="1 h")
    put_one(db), put_one(db)
    listener = connect()
    listener.execute(f'LISTEN "pgqueue:{-q}"')
    listener.execute("SELECT pgqueue.arm(ARRAY [%s])", [-q])
    if how in ("ack", "ack_many"):
        token = take(db, "q")[1]
        db.execute(f"SELECT pgqueue.{how}(%s, %s)", [id, token] if how == "ack" else [[id], [token]])
    elif how == "delete":
        db.execute("SELECT pgqueue.delete(%s)", [id])
    elif how == "pop":
        db.execute("SELECT pgqueue.pop('q')")
    elif how == "raw":
        db.execute("DELETE FROM pgqueue.task WHERE id = %s", [id])
        db.execute("SELECT pgqueue.promote_all()")  # raw SQL tells nobody; the next tick does
    elif how == "expire":
        db.execute("UPDATE pgqueue.task SET expires_at = now() - interval '1 s' WHERE id = %s", [id])
        db.execute("SELECT pgqueue.promote_all()")
    else:
        db.execute("SELECT pgqueue.queue_id('dead')")
        db.execute("UPDATE pgqueue.queue SET dead_letter = '', dead_letter_key = 'dead' WHERE name = 'q'")
        db.execute("SELECT pgqueue.bury(%s)", [id])
    assert f"pgqueue:{-q}" in notifications(listener, db)
    assert put_one(db) == ROOM


def test_a_queue_that_is_not_full_tells_nobody_of_its_acks(db, connect):
    db.execute("UPDATE pgqueue.queue SET capacity = NULL")
    q = value(db, "SELECT id FROM pgqueue.queue WHERE name = 'q'")
    id = put(db, "q")
    listener = connect()
    listener.execute(f'LISTEN "pgqueue:{-q}"')
    listener.execute("SELECT pgqueue.arm(ARRAY [%s])", [-q])
    db.execute("SELECT pgqueue.ack(%s, %s)", take(db, "q"))
    assert notifications(listener, db) == []
    assert rows(db, "SELECT FROM pgqueue.tasks WHERE id = %s", id) == []


def test_data_that_is_larger_than_the_queue_takes(db):
    db.execute("UPDATE pgqueue.queue SET max_size = 10")
    db.execute("SELECT pgqueue.put('q', to_jsonb(repeat('x', 8)))")
    for call in ("put('q', to_jsonb(repeat('x', 9)))", "put_many('q', jsonb_build_array(1, repeat('x', 9)))"):
        with pytest.raises(psycopg.Error, match=r'11 bytes.*"q".*10') as caught:
            db.execute(f"SELECT pgqueue.{call}")
        assert caught.value.sqlstate == "PQ036"
    assert value(db, "SELECT count(*) FROM pgqueue.tasks") == 1


def test_a_queue_that_is_draining_takes_nothing_and_gives(db):
    id = put(db, "q")
    db.execute("UPDATE pgqueue.queue SET draining = true")
    for call in ("put('q', '1')", "put_many('q', '[1]')", "put('q', '1', key => 'k', lane => 'l')"):
        with pytest.raises(psycopg.Error, match='"q" is draining') as caught:
            db.execute(f"SELECT pgqueue.{call}")
        assert caught.value.sqlstate == "PQ035"
    assert take(db, "q")[0] == id


@pytest.mark.parametrize(
    ("option", "sqlstate"),
    [("capacity = 1", "PQ037"), ("max_size = 3", "PQ036"), ("draining = true", "PQ035"), ("type = 'fifo'", "PQ002")],
)
def test_what_is_published_is_held_to_the_options_of_every_queue(db, option, sqlstate):
    db.execute("SELECT pgqueue.create_queue('other'), pgqueue.declare_exchange('e', 'fanout')")
    db.execute("SELECT pgqueue.bind('other', 'e'), pgqueue.bind('q', 'e')")
    put_one(db)
    db.execute(f"UPDATE pgqueue.queue SET {option} WHERE name = 'q'")
    for target in ("'e', ''", "'', 'q'"):
        with pytest.raises(psycopg.Error, match=r'"q"|fifo') as caught:
            db.execute(f"""SELECT pgqueue.publish({target}, '"data"', priority => 1)""")
        assert caught.value.sqlstate == sqlstate
    assert rows(db, "SELECT queue FROM pgqueue.tasks") == [("q",)]
    assert value(db, """SELECT pgqueue.publish('', 'other', '"data"', priority => 1)""") == 1


def test_dead_letters_are_not_refused(db):
    db.execute("SELECT pgqueue.create_queue('work', dead_letter => '', dead_letter_key => 'q')")
    db.execute("UPDATE pgqueue.queue SET capacity = 1, draining = true WHERE name = 'q'")
    ids = [put(db, "work") for _ in range(2)]
    for id in ids:
        db.execute("SELECT pgqueue.bury(%s)", [id])
    assert rows(db, "SELECT id FROM pgqueue.tasks WHERE queue = 'q' ORDER BY id") == [(id,) for id in ids]
