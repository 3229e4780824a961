"""NOTIFY only when somebody waits: seen with a raw LISTEN on the queue's channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from statements import notifications, put, rows, take, value
from stepping import die

Connect = Any
MAKES_READY: dict[str, Callable[[psycopg.Connection], Any]] = {}


@pytest.fixture
def q(db: psycopg.Connection) -> int:
    return int(value(db, "SELECT pgqueue.queue_id('q')"))


@pytest.fixture
def ear(connect: Connect, q: int) -> psycopg.Connection:
    """Listens on the channel of "q", and is no waiter yet."""
    conn = connect()
    conn.execute(f'LISTEN "pgqueue:{q}"')
    return conn


@pytest.fixture
def armed(ear: psycopg.Connection, q: int) -> psycopg.Connection:
    """Listens, and waits."""
    assert rows(ear, "SELECT * FROM pgqueue.arm(%s)", [q]) == [(q, True)]
    return ear


def heard(ear: psycopg.Connection, db: psycopg.Connection) -> int:
    return len(notifications(ear, db))


def test_the_channel_is_named_by_the_queues_id(db: psycopg.Connection, q: int) -> None:
    assert value(db, "SELECT pgqueue._channel(%s)", q) == f"pgqueue:{q}"


def test_a_put_without_a_waiter_is_silent(db: psycopg.Connection, ear: psycopg.Connection) -> None:
    put(db, "q")
    db.execute("SELECT pgqueue.put_many('q', '[1, 2]')")
    assert notifications(ear, db) == []


def test_somebody_waits_and_a_put_notifies(db: psycopg.Connection, armed: psycopg.Connection, q: int) -> None:
    put(db, "q")
    assert notifications(armed, db) == [f"pgqueue:{q}"]
    put(db, "another")
    assert notifications(armed, db) == []


def test_the_notification_arrives_on_commit(
    db: psycopg.Connection, connect: Connect, armed: psycopg.Connection
) -> None:
    producer = connect(autocommit=False)
    put(producer, "q")
    assert heard(armed, db) == 0
    producer.commit()
    assert heard(armed, db) == 1


def test_a_rolled_back_put_is_silent(db: psycopg.Connection, connect: Connect, armed: psycopg.Connection) -> None:
    producer = connect(autocommit=False)
    put(producer, "q")
    producer.rollback()
    assert heard(armed, db) == 0
    producer.execute("SAVEPOINT a")
    put(producer, "q")
    producer.execute("ROLLBACK TO a")
    producer.commit()
    assert heard(armed, db) == 0


def test_one_notification_for_a_transaction(
    db: psycopg.Connection, connect: Connect, armed: psycopg.Connection
) -> None:
    producer = connect(autocommit=False)
    for _ in range(20):
        put(producer, "q")
    producer.commit()
    assert heard(armed, db) == 1
    db.execute("SELECT pgqueue.put_many('q', '[1, 2, 3]')")
    assert heard(armed, db) == 1


def verb(function: Callable[[psycopg.Connection], Any]) -> Callable[[psycopg.Connection], Any]:
    MAKES_READY[function.__name__] = function
    return function


@verb
def a_delayed_put(db: psycopg.Connection) -> None:
    put(db, "q", delay="1 h")


@verb
def release(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.release(%s, %s)", take(db, "q"))


@verb
def a_delayed_release(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.release(%s, %s, delay => '1 h')", take(db, "q"))


@verb
def release_many(db: psycopg.Connection) -> None:
    id, token = take(db, "q")
    db.execute("SELECT FROM pgqueue.release_many(%s, %s)", [[id], [token]])


@verb
def kick(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.bury(%s)", [take(db, "q")[0]])
    db.execute("SELECT pgqueue.kick('q')")


@verb
def undo_take(db: psycopg.Connection) -> None:
    _, token = take(db, "q")
    db.execute("SELECT pgqueue.undo_take(%s)", [token])


@verb
def close_session(db: psycopg.Connection) -> None:
    take(db, "q")
    db.execute("SELECT pgqueue.close_session()")


@verb
def promote(db: psycopg.Connection) -> None:
    take(db, "q")
    db.execute("UPDATE pgqueue.take SET deadline = now()")
    db.execute("SELECT pgqueue.promote_all()")


@pytest.mark.parametrize("makes_ready", MAKES_READY.values(), ids=MAKES_READY)
def test_what_makes_a_task_ready_or_due_notifies(
    db: psycopg.Connection, ear: psycopg.Connection, q: int, makes_ready: Callable[[psycopg.Connection], Any]
) -> None:
    put(db, "q")
    ear.execute("SELECT pgqueue.arm(%s)", [[q]])
    makes_ready(db)
    assert heard(ear, db) == 1


def test_a_sweep_notifies(db: psycopg.Connection, connect: Connect, armed: psycopg.Connection) -> None:
    dead = connect()
    dead.execute("SELECT pgqueue.open_session(grace => '0')")
    put(dead, "q")
    take(dead, "q")
    die(dead, db)
    assert heard(armed, db) == 1  # the put
    assert value(db, "SELECT freed FROM pgqueue.sweep()") == 1
    assert heard(armed, db) == 1


def test_take_ack_touch_bury_and_refusals_do_not(db: psycopg.Connection, ear: psycopg.Connection, q: int) -> None:
    for _ in range(3):
        put(db, "q")
    ear.execute("SELECT pgqueue.arm(%s)", [[q]])
    id, token = take(db, "q")
    db.execute("SELECT pgqueue.touch(%s, %s, more => '1 s')", [id, token])
    db.execute("SELECT pgqueue.ack(%s, %s)", [id, token])
    db.execute("SELECT pgqueue.release(%s, %s)", [id, token])
    db.execute("SELECT pgqueue.bury(%s, %s)", take(db, "q"))
    db.execute("SELECT pgqueue.pop('q')")
    db.execute("SELECT pgqueue.kick('other')")
    assert heard(ear, db) == 0


# --- waiters come and go


def test_disarmed_producers_are_silent_again(db: psycopg.Connection, armed: psycopg.Connection, q: int) -> None:
    armed.execute("SELECT pgqueue.disarm(%s)", [[q]])
    put(db, "q")
    assert heard(armed, db) == 0


def test_a_waiter_that_dies_waits_no_more(
    db: psycopg.Connection, connect: Connect, ear: psycopg.Connection, q: int
) -> None:
    waiter = connect()
    waiter.execute("SELECT pgqueue.arm(%s)", [[q]])
    put(db, "q")
    assert heard(ear, db) == 1
    die(waiter, db)
    put(db, "q")
    assert heard(ear, db) == 0


def test_two_waiters_and_one_leaves(
    db: psycopg.Connection, connect: Connect, armed: psycopg.Connection, q: int
) -> None:
    other = connect()
    other.execute("SELECT pgqueue.arm(%s)", [[q]])
    other.execute("SELECT pgqueue.disarm(%s)", [[q]])
    put(db, "q")
    assert heard(armed, db) == 1


def test_a_silent_producer_keeps_the_drain_from_succeeding(
    db: psycopg.Connection, connect: Connect, ear: psycopg.Connection, q: int
) -> None:
    """Then the taker polls: nobody blocks, and nobody concludes that the queue is empty."""
    producer = connect(autocommit=False)
    put(producer, "q")  # nobody waits: silent
    assert rows(ear, "SELECT * FROM pgqueue.arm(%s)", [q]) == [(q, False)]
    assert rows(ear, "SELECT * FROM pgqueue.arm_again(%s)", [q]) == [(q, False)]
    producer.commit()
    assert heard(ear, db) == 0
    assert rows(ear, "SELECT * FROM pgqueue.arm_again(%s)", [q]) == [(q, True)]
    put(db, "q")
    assert heard(ear, db) == 1


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_the_probe_knows_no_snapshots(
    db: psycopg.Connection, connect: Connect, ear: psycopg.Connection, q: int, isolation: str
) -> None:
    producer = connect(autocommit=False)
    producer.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
    producer.execute("SELECT FROM pgqueue.task")  # its snapshot is older than the waiter
    assert rows(ear, "SELECT * FROM pgqueue.arm(%s)", [q]) == [(q, True)]
    put(producer, "q")
    producer.commit()
    assert heard(ear, db) == 1


def test_queues_whose_buckets_collide_cost_a_needless_notify_and_no_more(
    db: psycopg.Connection, armed: psycopg.Connection, q: int
) -> None:
    db.execute(f"ALTER TABLE pgqueue.queue ALTER COLUMN id RESTART WITH {q + 1024}")
    assert value(db, "SELECT pgqueue.queue_id('far')") == q + 1024
    assert value(db, "SELECT pgqueue._bucket(%s) = pgqueue._bucket(%s)", q, q + 1024) is True
    put(db, "far")
    assert heard(armed, db) == 0  # another channel
    put(db, "q")
    assert heard(armed, db) == 1
