"""take_or_listen: all that a worker in another language needs to take a task, or to be woken for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, eventually, in_time
from statements import notifications, put, rows, value
from stepping import die

Connect = Callable[..., psycopg.Connection]


def look(conn: psycopg.Connection, *queues: str) -> tuple[Any, Any]:
    """The id of the task that the call took, and the seconds after which it wants to be repeated."""
    ((id, again),) = rows(conn, "SELECT id, again FROM pgqueue.take_or_listen(%s)", list(queues or ("q",)))
    return id, again


def asleep(conn: psycopg.Connection, *queues: str) -> None:
    """The first call listens, which is in effect from its commit on, so it wants to be repeated at once."""
    assert look(conn, *queues) == (None, 0)
    id, again = look(conn, *queues)
    assert id is None
    assert 0.01 <= again <= 0.5


def ack(conn: psycopg.Connection, id: int) -> str:
    return str(value(conn, "SELECT state FROM pgqueue.ack(%s)", id))


def test_a_task_is_taken(db: psycopg.Connection, connect: Connect) -> None:
    worker = connect()
    id = put(db, "q", "letter")
    (task,) = rows(worker, "SELECT id, token <> 0, data, queue, again FROM pgqueue.take_or_listen('{p,q}')")
    assert task == (id, True, "letter", "q", None)
    assert ack(worker, id) == "done"


def test_many_are_taken_under_one_token(db: psycopg.Connection) -> None:
    ids = value(db, "SELECT pgqueue.put_many('q', '[1, 2, 3]')")
    taken = rows(db, "SELECT id, token FROM pgqueue.take_or_listen('{q}', 2)")
    assert [id for id, _ in taken] == ids[:2]
    assert len({token for _, token in taken}) == 1


def test_a_put_wakes_it_while_it_sleeps_and_only_then(db: psycopg.Connection, connect: Connect) -> None:
    worker = connect()
    asleep(worker)
    id = put(db, "q")
    assert len(notifications(worker, db)) == 1
    assert look(worker) == (id, None)
    put(db, "q")  # the worker works: this put is silent
    assert notifications(worker, db) == []


def test_it_is_woken_again_after_each_task(db: psycopg.Connection, connect: Connect) -> None:
    worker = connect()
    asleep(worker)
    for _ in range(3):
        assert look(worker)[0] is None
        id = put(db, "q")
        assert len(notifications(worker, db)) == 1
        assert look(worker) == (id, None)
        assert ack(worker, id) == "done"
        notifications(worker, db)


def test_it_is_woken_for_each_of_its_queues(db: psycopg.Connection, connect: Connect) -> None:
    worker = connect()
    asleep(worker, "p", "q")
    for queue in ("q", "p"):
        id = put(db, queue)
        assert len(notifications(worker, db)) == 1
        assert look(worker, "p", "q") == (id, None)
        assert look(worker, "p", "q")[0] is None


def test_it_polls_while_a_silent_put_is_open(db: psycopg.Connection, connect: Connect) -> None:
    """The put found no waiting connection, so it is silent. Until it has ended, no look of the worker is the last."""
    producer, worker = connect(autocommit=False), connect()
    db.execute("SELECT pgqueue.create_queue('q')")
    id = put(producer, "q")
    look(worker)
    for _ in range(3):
        assert look(worker) == (None, 0.02)
    producer.commit()
    assert notifications(worker, db) == []
    assert look(worker) == (id, None)


def test_its_own_put_wakes_it(db: psycopg.Connection, connect: Connect) -> None:
    """A connection does not see its own lock, and a worker with one connection may put tasks on it."""
    worker = connect()
    asleep(worker)
    put(worker, "q")
    assert len(notifications(worker, db)) == 1


def test_a_delayed_task_shortens_the_sleep(db: psycopg.Connection, connect: Connect) -> None:
    worker = connect()
    asleep(worker)

    def seconds() -> float | None:
        """None: the look came so late that the task was due."""
        put(db, "q", delay="0.1 s")
        id, again = look(worker)
        if id is not None:
            ack(worker, id)
        return again

    assert eventually(seconds) <= 0.1


def test_a_queue_that_was_made_anew_is_listened_to(db: psycopg.Connection, connect: Connect) -> None:
    worker = connect()
    asleep(worker)
    db.execute("SELECT pgqueue.delete_queue('q')")
    asleep(worker)
    notifications(worker, db)  # of the deletion
    put(db, "q")
    assert len(notifications(worker, db)) == 1


def test_a_refused_session_listens_to_nothing_twice(db: psycopg.Connection, connect: Connect) -> None:
    """What was armed when a transaction rolled back is armed once more; the worker goes on."""
    worker = connect(autocommit=False)
    look(worker)
    worker.rollback()
    worker.autocommit = True
    asleep(worker)
    put(db, "q")
    assert len(notifications(worker, db)) == 1


def test_two_calls_in_one_transaction_are_refused(connect: Connect) -> None:
    """LISTEN takes effect at the commit: a loop within a transaction would never be woken."""
    worker = connect(autocommit=False)
    look(worker)
    with pytest.raises(psycopg.DatabaseError, match="transaction of its own") as caught:
        look(worker)
    assert caught.value.sqlstate == "PQ002"


@pytest.mark.parametrize("call", ["take_or_listen('{q}')", "tick()"])
def test_a_snapshot_that_lasts_is_refused(connect: Connect, call: str) -> None:
    worker = connect(options="-c default_transaction_isolation=repeatable\\ read")
    with pytest.raises(psycopg.DatabaseError, match="READ COMMITTED") as caught:
        worker.execute(f"SELECT * FROM pgqueue.{call}")
    assert caught.value.sqlstate == "PQ002"


def test_discard_all_ends_everything(db: psycopg.Connection, connect: Connect) -> None:
    worker = connect()
    asleep(worker)
    worker.execute("DISCARD ALL")
    asleep(worker)
    put(db, "q")
    assert len(notifications(worker, db)) == 1


@pytest.mark.parametrize("forged", ["", "nonsense", ",", "x,7", "NULL", "{1}", "-1", "7"])
def test_a_setting_that_is_none_of_ours_is_none(db: psycopg.Connection, connect: Connect, forged: str) -> None:
    worker = connect()
    worker.execute("SELECT set_config('pgqueue.armed_for', %s, false)", [forged])
    asleep(worker)
    put(db, "q")
    assert look(worker)[0]


def test_calls_of_a_worker_give_back_what_a_dead_one_took(connect: Connect) -> None:
    """It ticks: without any other client, tasks of the dead come back, and delayed ones are ready."""
    dead, worker = connect(), connect()
    dead.execute("SELECT pgqueue.open_session(grace => '0.1 s')")
    id = put(worker, "q")
    assert look(dead) == (id, None)
    asleep(worker)
    die(dead, worker)
    taken = None
    while taken is None:
        taken, again = look(worker)
        if taken is None:
            worker.execute("SELECT pg_sleep(%s)", [again])
    assert taken == id


def test_a_part_of_the_tick_that_fails_leaves_the_others(db: psycopg.Connection, connect: Connect) -> None:
    worker = connect()
    warnings: list[str] = []
    worker.add_notice_handler(lambda notice: warnings.append(str(notice.message_primary)))
    db.execute("DROP FUNCTION pgqueue.promote_all")
    id = put(db, "q")
    assert look(worker) == (id, None)
    assert [text.partition(":")[0] for text in warnings] == ["pgqueue.promote_all() failed"]


def test_the_tick_is_shared(db: psycopg.Connection, connect: Connect) -> None:
    """What a client has just done is not done again."""
    stamp = "SELECT last_value FROM pgqueue.last_sweep"
    other = connect()
    other.execute("SELECT pgqueue.tick()")

    def two_ticks() -> float:
        watch = Stopwatch()
        for _ in range(2):  # what writes leaves no stamp
            db.execute("SELECT pgqueue.tick()")
        first = value(db, stamp)
        other.execute("SELECT pgqueue.tick()")
        seconds = watch()
        assert seconds >= 0.2 or value(db, stamp) == first
        return seconds

    in_time(two_ticks, within=0.2)
    before = value(db, stamp)
    db.execute("SELECT pg_sleep(0.25)")
    other.execute("SELECT pgqueue.tick()")
    assert value(db, stamp) > before
