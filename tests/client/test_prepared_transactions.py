"""Puts in a transaction that is prepared (PREPARE TRANSACTION): PostgreSQL prepares none that notifies."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from eventually import eventually
from statements import value

import pgqueue


@pytest.fixture
def queue(dsn: str) -> Iterator[pgqueue.Queue]:
    """A queue with a waiting taker, which looks again after a second."""
    with pgqueue.Client(dsn, poll=1) as client:
        client.queue("q").put(0)
        client.queue("q").take(0).ack()
        yield client.queue("q")


@pytest.fixture
def transaction(dsn: str, db: psycopg.Connection) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn) as conn:
        conn.execute("SET LOCAL pgqueue.two_phase = off")  # or Citus prepares none
        yield conn
        conn.rollback()


def waits(db: psycopg.Connection) -> bool:
    return bool(value(db, "SELECT pgqueue._is_awaited(id) FROM pgqueue.queue WHERE name = 'q'"))


def test_a_put_that_notifies_cannot_be_prepared(queue, transaction, db, threads) -> None:
    taken = threads.submit(queue.take, 30)
    eventually(lambda: waits(db))
    queue.put(1, conn=transaction)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="LISTEN, UNLISTEN, or NOTIFY"):
        transaction.execute("PREPARE TRANSACTION 'pgqueue test'")
    queue.put(2)
    assert taken.result(30).data == 2


@pytest.mark.slow
def test_a_put_that_keeps_silent_is_prepared_and_found(queue, transaction, db, threads) -> None:
    taken = threads.submit(queue.take, 30)
    eventually(lambda: waits(db))
    transaction.execute("SET LOCAL pgqueue.notify = off")
    task = queue.put(1, conn=transaction)
    transaction.execute("PREPARE TRANSACTION 'pgqueue test'")
    assert not taken.done()
    transaction.rollback()
    db.execute("COMMIT PREPARED 'pgqueue test'")
    assert taken.result(30).id == task.id


def test_a_take_that_begins_while_it_is_prepared_finds_it(dsn, transaction, db, threads) -> None:
    """It cannot drain the lock of the silent put, so it polls, though it would look again after an hour only."""
    with pgqueue.Client(dsn, poll=3600) as client:
        queue = client.queue("q")
        queue.put(0)
        queue.take(0).ack()
        transaction.execute("SET LOCAL pgqueue.notify = off")
        task = queue.put(1, conn=transaction)
        transaction.execute("PREPARE TRANSACTION 'pgqueue test'")
        taken = threads.submit(queue.take, 30)
        eventually(lambda: waits(db))
        transaction.rollback()
        db.execute("COMMIT PREPARED 'pgqueue test'")
        assert taken.result(30).id == task.id


def test_a_put_notifies_again_in_the_next_transaction(queue, transaction, db, threads) -> None:
    transaction.execute("SET LOCAL pgqueue.notify = off")
    transaction.commit()
    taken = threads.submit(queue.take, 30)
    eventually(lambda: waits(db))
    queue.put(1, conn=transaction)
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        transaction.execute("PREPARE TRANSACTION 'pgqueue test'")
    queue.put(2)
    assert taken.result(30).data == 2
