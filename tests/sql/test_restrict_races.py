"""Changes of rights beside puts that create the same queue: they do not deadlock, and the restriction holds."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from eventually import eventually
from statements import put, value

Connect = Any
MakeRole = Any


def waits(db: psycopg.Connection, conn: psycopg.Connection) -> bool:
    """Whether the connection waits for a lock of another one."""
    return bool(value(db, "SELECT cardinality(pg_blocking_pids(%s))", conn.info.backend_pid))


@pytest.fixture
def sessions(connect: Connect) -> list[psycopg.Connection]:
    return [connect(), connect(), connect()]


@pytest.mark.parametrize(
    "change",
    [
        "SELECT pgqueue.restrict_queue('q')",
        "SELECT pgqueue.grant('q', current_user::regrole)",
        "SELECT pgqueue.grant_to(current_user::regrole)",
    ],
    ids=["restrict", "grant", "grant to"],
)
@pytest.mark.parametrize("order", ["the change first", "the put first"])
def test_a_change_of_rights_and_a_put_that_create_one_queue_do_not_deadlock(
    db: psycopg.Connection, sessions: list[psycopg.Connection], change: str, order: str
) -> None:
    """T1 changes rights and T2 puts; both are to create the queue. T0 has just created it, stops them both, and is then
    rolled back. If T1 creates the queue before it locks the table of queues, that lock waits for T2, which is about to
    insert the queue and waits for the end of T1."""
    t0, t1, t2 = sessions
    calls = {t1: change, t2: "SELECT pgqueue.put('q', '0')"}
    with ThreadPoolExecutor(2) as threads:
        with t0.transaction(force_rollback=True):
            put(t0, "q")
            asked: list[Future[Any]] = []
            for conn in (t1, t2) if order == "the change first" else (t2, t1):
                asked.append(threads.submit(conn.execute, calls[conn]))
                eventually(lambda conn=conn, one=asked[-1]: one.done() or waits(db, conn))
            assert waits(db, t1)
        for one in asked:
            one.result(30)
    assert value(db, "SELECT count(*) FROM pgqueue.task") == 1


def test_a_put_that_came_during_the_restriction_is_refused(
    db: psycopg.Connection, sessions: list[psycopg.Connection], connect: Connect, make: MakeRole
) -> None:
    owner, _, _ = sessions
    stranger = connect(options=f"-c role={make('SELECT pgqueue.grant_to(%s)')}")
    with ThreadPoolExecutor(1) as threads:
        with owner.transaction():
            owner.execute("SELECT pgqueue.restrict_queue('q')")
            asked = threads.submit(stranger.execute, "SELECT pgqueue.put('q', '0')")
            eventually(lambda: waits(db, stranger))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            asked.result(30)
    assert value(db, "SELECT count(*) FROM pgqueue.task") == 0
