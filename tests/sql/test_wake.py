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
    assert rows(ear, "SELECT queue_id, drained FROM pgqueue.arm(%s)", [q]) == [(q, True)]
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
    assert rows(ear, "SELECT queue_id, drained FROM pgqueue.arm(%s)", [q]) == [(q, False)]
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
    assert rows(ear, "SELECT queue_id, drained FROM pgqueue.arm(%s)", [q]) == [(q, True)]
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


# --- in turn


@pytest.fixture
def in_turn(connect: Connect, db: psycopg.Connection, q: int) -> Callable[[], psycopg.Connection]:
    """Makes listeners with a session of their own, which arm in turn."""

    def make() -> psycopg.Connection:
        conn = connect()
        session = value(conn, "SELECT pgqueue.open_session(label => 'w')")
        conn.execute(f'LISTEN "pgqueue:{q}"; LISTEN "pgqueue:call:{session}"')
        return conn

    return make


def hears(conn: psycopg.Connection, q: int) -> bool:
    ((drained, heard_all),) = rows(conn, "SELECT drained, hears FROM pgqueue.arm(%s, in_turn => true)", [q])
    assert drained
    return bool(heard_all)


def enter(conn: psycopg.Connection, q: int, hearing: bool = False, place: float | None = None) -> tuple[float, bool]:
    query = "SELECT since, hears FROM pgqueue.enter_line(%s, '{1}', %s::float[], %s)"
    ((since, heard_all),) = rows(conn, query, [q], [place], [q] if hearing else [])
    if hearing and not heard_all:
        conn.execute("SELECT pgqueue.stop_hearing(%s)", [[q]])
    return since, heard_all


def locks(db: psycopg.Connection, name: str) -> int:
    return int(value(db, f"SELECT count(*) FROM pg_locks WHERE classid = pgqueue._{name}_lock()"))


def test_a_process_that_waits_alone_hears_every_put(
    db: psycopg.Connection, in_turn: Callable[[], psycopg.Connection], q: int
) -> None:
    one, two = in_turn(), in_turn()
    assert hears(one, q)
    put(db, "q")
    assert notifications(one, db) == [f"pgqueue:{q}"]
    assert not hears(two, q)
    put(db, "q")  # also until it has entered
    assert notifications(one, db) == [f"pgqueue:{q}"]
    assert not enter(two, q)[1]
    assert notifications(one, db) == [f"pgqueue:{q}"]  # come
    assert not enter(one, q, hearing=True)[1]
    assert locks(db, "hearing") == 0
    one.execute("SELECT pgqueue.disarm(%s, %s)", [[q], [q]])
    two.execute("SELECT pgqueue.disarm(%s, %s)", [[q], [q]])
    assert locks(db, "waiter") == 0


def test_a_process_whose_place_is_not_committed_hears_on(
    db: psycopg.Connection, in_turn: Callable[[], psycopg.Connection], q: int
) -> None:
    one, two = in_turn(), in_turn()
    assert hears(one, q)
    assert not hears(two, q)
    with one.transaction(force_rollback=True):
        one.execute("SELECT FROM pgqueue.enter_line(%s, '{1}', '{NULL}', %s)", [[q], [q]])
    notifications(one, db)
    put(db, "q")
    assert notifications(one, db) == [f"pgqueue:{q}"]


def test_a_put_that_only_called_is_open_and_no_process_is_alone(
    db: psycopg.Connection, connect: Connect, in_turn: Callable[[], psycopg.Connection], q: int
) -> None:
    """Or the process would sleep outside of the line, and miss the task of a called process that died."""
    one, two = in_turn(), in_turn()
    assert hears(one, q)
    assert not hears(two, q)
    enter(two, q)
    enter(one, q, hearing=True)
    producer = connect(autocommit=False)
    put(producer, "q")  # calls one of them
    die(one, db)
    die(two, db)
    three = in_turn()
    assert not hears(three, q)
    place, heard_all = enter(three, q)
    assert not heard_all
    assert rows(db, "SELECT session_id FROM pgqueue.line WHERE since = to_timestamp(%s)", place)
    producer.commit()
    assert enter(three, q, place=place) == (None, True)


def test_a_client_that_does_not_know_of_the_line_hears_every_put(
    db: psycopg.Connection, connect: Connect, in_turn: Callable[[], psycopg.Connection], ear: psycopg.Connection, q: int
) -> None:
    one, two = in_turn(), in_turn()
    hears(one, q)
    hears(two, q)
    enter(two, q)
    enter(one, q, hearing=True)
    producer = connect(autocommit=False)
    put(producer, "q")  # before it is armed: so it is not drained
    assert rows(ear, "SELECT drained, hears FROM pgqueue.arm(%s)", [q]) == [(False, True)]
    assert rows(ear, "SELECT * FROM pgqueue.arm_again(%s)", [q]) == [(q, False)]
    producer.commit()
    assert rows(ear, "SELECT * FROM pgqueue.arm_again(%s)", [q]) == [(q, True)]
    heard(ear, db)
    put(db, "q")
    assert heard(ear, db) == 1
    ear.execute("SELECT pgqueue.disarm(%s)", [[q]])
    assert locks(db, "hearing") == 0


@pytest.mark.parametrize("waited", [0.0, 0.1, 1 / 3, 12345.678901])
def test_a_place_is_found_again_and_left(
    db: psycopg.Connection, in_turn: Callable[[], psycopg.Connection], q: int, waited: float
) -> None:
    one, two = in_turn(), in_turn()
    assert hears(one, q)
    hears(two, q)
    (place,) = rows(two, "SELECT since FROM pgqueue.enter_line(%s, %s)", [q], [waited])[0]
    assert enter(two, q, place=place) == (place, False)
    assert value(db, "SELECT count(*) FROM pgqueue.line") == 1
    one.execute("SELECT pgqueue.leave_line(%s, %s)", [[q], [place]])  # another session's
    assert value(db, "SELECT count(*) FROM pgqueue.line") == 1
    two.execute("SELECT pgqueue.leave_line(%s, %s)", [[q], [place]])
    assert value(db, "SELECT count(*) FROM pgqueue.line") == 0


def test_only_a_role_that_may_take_enters(db: psycopg.Connection, in_turn: Callable[[], psycopg.Connection]) -> None:
    conn = in_turn()
    assert rows(conn, "SELECT * FROM pgqueue.enter_line('{4711}', '{1}')") == []  # no such queue
    db.execute("CREATE ROLE pgqueue_test_putter")
    try:
        db.execute("SELECT pgqueue.grant_to('pgqueue_test_putter', '{put}')")
        conn.execute("SET ROLE pgqueue_test_putter")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT * FROM pgqueue.enter_line('{1}', '{1}')")
    finally:
        conn.execute("RESET ROLE")
        db.execute("SELECT pgqueue.revoke_from('pgqueue_test_putter', '{put}')")
        db.execute("DROP ROLE pgqueue_test_putter")


@pytest.mark.parametrize("hint", ["garbage", "1 2 3", "x 1.000000 2.000000", "1 9999999999.999999 9999999999.999999"])
def test_the_setting_of_the_line_can_hold_anything(
    db: psycopg.Connection, in_turn: Callable[[], psycopg.Connection], q: int, hint: str
) -> None:
    one, two = in_turn(), in_turn()
    hears(one, q)
    hears(two, q)
    enter(two, q)
    enter(one, q, hearing=True)
    db.execute("SELECT set_config('pgqueue.line', %s, false)", [hint])
    put(db, "q")
    assert value(db, "SELECT count(*) FROM pgqueue.line") == 1
