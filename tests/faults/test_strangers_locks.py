"""A role that may only connect holds our advisory locks: calls end in time, and health names the holder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, eventually, soon
from psycopg.conninfo import make_conninfo
from statements import rows, value
from steady import steady
from stepping import waiting

import pgqueue

Connect = Callable[..., psycopg.Connection]
FOREIGN = "SELECT status, value, detail FROM pgqueue.health WHERE name = 'foreign_locks'"
QUEUE = "SELECT id FROM pgqueue.queue WHERE name = 'q'"


@contextlib.contextmanager
def held(stranger: Connect, lock: str, *key: Any) -> Iterator[psycopg.Connection]:
    """A stranger's connection that holds the lock; class and number, or an expression with %s."""
    conn = stranger()
    conn.execute(f"SELECT pg_advisory_lock({lock})", key)
    with contextlib.suppress(psycopg.OperationalError), conn:
        yield conn


def key(db: psycopg.Connection, kind: str) -> int:
    return int(value(db, f"SELECT pgqueue._{kind}_lock()"))


def check_named(db: psycopg.Connection, conn: psycopg.Connection, blocks: str) -> None:
    ((status, number, detail),) = rows(db, FOREIGN)
    assert (status, number) == ("bad", 1)
    assert detail == f"backend {conn.info.backend_pid} of role {conn.info.user} blocks {blocks}"


def end(db: psycopg.Connection, conn: psycopg.Connection) -> None:
    assert value(db, "SELECT pg_terminate_backend(%s::int)", conn.info.backend_pid)


def names(conn: psycopg.Connection) -> str:
    return f"backend {conn.info.backend_pid} of role {conn.info.user} has it"


async def own_session(client: Any) -> int:
    listener = await asyncio.to_thread(client.shell.core.listener)
    return int(await soon(lambda: listener.session))


async def blocked(call: Any, conn: psycopg.Connection, within: float) -> None:
    with steady(dsn_of(conn)) as watch:
        with pytest.raises(pgqueue.LockBlocked, match=names(conn)):
            await call
        assert watch() < within


def dsn_of(conn: psycopg.Connection) -> str:
    """The DSN of a connection."""
    return make_conninfo(conn.info.dsn, password=conn.info.password)


# --- each class of lock


@pytest.mark.parametrize(("kind", "blocks"), [("claiming", "claims of session 1"), ("filling", "puts into queue q")])
def test_health_forgets_the_holder_once_it_is_gone(
    db: psycopg.Connection, stranger: Connect, kind: str, blocks: str
) -> None:
    """tests/sql/test_lock_classes.py has each class."""
    db.execute("SELECT pgqueue.create_queue('q')")
    assert rows(db, FOREIGN) == [("ok", 0, "")]
    with held(stranger, "%s, 1", key(db, kind)) as conn:
        check_named(db, conn, blocks)
        end(db, conn)
        eventually(lambda: rows(db, FOREIGN) == [("ok", 0, "")])


@pytest.mark.parametrize("kind", ["claiming", "sweeping", "filling"])
def test_a_lock_in_an_open_transaction_counts_too(db: psycopg.Connection, stranger: Connect, kind: str) -> None:
    with stranger() as conn, conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock_shared(%s, 0)", [key(db, kind)])
        ((status, _, detail),) = rows(db, FOREIGN)
        assert status == "bad"
        assert f"backend {conn.info.backend_pid} of role {conn.info.user}" in detail
    assert rows(db, FOREIGN) == [("ok", 0, "")]


def test_a_monitor_sees_the_holder(
    db: psycopg.Connection, stranger: Connect, connect: Connect, granted_monitor: str
) -> None:
    monitor = connect(options=f"-c role={granted_monitor}")
    with held(stranger, "%s, 0", key(db, "sweeping")) as conn:
        check_named(monitor, conn, "the return of the tasks of dead sessions")
    eventually(lambda: rows(monitor, FOREIGN) == [("ok", 0, "")])


@pytest.fixture
def granted_monitor(db: psycopg.Connection) -> Iterator[str]:
    role = f"monitor_of_{db.info.dbname}"
    db.execute(f"CREATE ROLE {role}; SELECT pgqueue.grant_monitor('{role}')")
    yield role
    db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.slow
async def test_our_own_locks_are_no_foreign_ones(shell: Any, db: psycopg.Connection, connect: Connect) -> None:
    """Clients that take, wait, lock and put, as the look at them comes."""
    client = shell.client(session_grace=0)
    await client.queue("q").put_many(range(200))
    await client.create_queue("full", capacity=1000)
    waiting = asyncio.ensure_future(client.queue("empty").take(30))

    async def work() -> None:
        while (task := await client.queue("q").take(0)) is not None:
            await client.queue("full").put(1)
            await task.ack()

    async with client.lock("a", 5):
        other = shell.client().lock("a", 20)
        in_line = asyncio.ensure_future(other.__aenter__())
        working = [asyncio.ensure_future(work()) for _ in range(3)]
        with connect(autocommit=False) as producer:
            producer.execute("SELECT pgqueue.put('full', '1'), pgqueue.open_session()")
            producer.commit()
            seen = {tuple(await asyncio.to_thread(rows, db, FOREIGN)) for _ in range(20)}
            await asyncio.gather(*working)
        assert seen == {(("ok", 0, ""),)}
    await in_line
    await other.release()
    await client.queue("empty").put(1)
    assert await waiting is not None


# --- each call that waits


@pytest.mark.slow
async def test_a_take_ends_in_time(client: Any, queue: Any, db: psycopg.Connection, stranger: Connect) -> None:
    await queue.put("x")
    session = await own_session(client)
    with held(stranger, "%s, %s", key(db, "claiming"), session) as conn:
        await blocked(queue.take(1), conn, within=3)
        await blocked(queue.take(0), conn, within=2.5)
        await blocked(client.nodes.create("/mine", ephemeral=True), conn, within=2.5)
        check_named(db, conn, f"claims of session {session}")
        waiting = asyncio.ensure_future(queue.take(60))
        await asyncio.sleep(0)
        end(db, conn)
        task = await asyncio.wait_for(waiting, 30)
    assert task is not None
    await task.ack()


@pytest.mark.slow
async def test_a_put_that_waits_for_room_ends_in_time(
    shell: Any, db: psycopg.Connection, stranger: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client = shell.client(call_timeout=3)
    queue = client.queue("q")
    await client.create_queue("q", capacity=10)
    with held(stranger, "%s, %s", key(db, "filling"), value(db, QUEUE)) as conn:
        await blocked(queue.put(1, timeout=1), conn, within=2.5)
        await blocked(queue.put(1), conn, within=3)
        await blocked(queue.put_many([1]), conn, within=3)
        check_named(db, conn, "puts into queue q")
        waiting = asyncio.ensure_future(queue.put(2, timeout=60))
        await asyncio.sleep(0)
        end(db, conn)
        assert (await asyncio.wait_for(waiting, 30)).state == "ready"


async def test_a_put_waits_for_the_transaction_of_another_producer(
    client: Any, db: psycopg.Connection, connect: Connect
) -> None:
    """As long as it was asked to, and no error comes of it."""
    queue = client.queue("q")
    await client.create_queue("q", capacity=10)
    with connect(autocommit=False) as producer:
        producer.execute("SELECT pgqueue.put('q', '1')")
        waiting = asyncio.ensure_future(queue.put(2, timeout=60))
        await soon(lambda: value(db, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
        producer.commit()
        assert (await waiting).state == "ready"


@pytest.mark.slow
async def test_a_named_lock_ends_in_time(client: Any, db: psycopg.Connection, stranger: Connect) -> None:
    with held(stranger, "hashtextextended(%s, 0)", "a") as conn:
        with steady(dsn_of(conn)) as watch:
            with pytest.raises(pgqueue.LockTimeout):
                async with client.lock("a", 1):
                    pass
            assert watch() < 2.5
        lock = client.lock("a", 60)
        waiting = asyncio.ensure_future(lock.__aenter__())
        await soon(lambda: rows(db, "SELECT FROM pgqueue.lock_ticket"))
        check_named(db, conn, "the lock a")
        end(db, conn)
        await asyncio.wait_for(waiting, 30)
    await lock.release()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["claiming", "session"])
async def test_a_client_that_cannot_come_back_says_why(
    shell: Any, db: psycopg.Connection, stranger: Connect, kind: str
) -> None:
    client = shell.client(connect_timeout=4, call_timeout=5, session_grace=30)
    queue = client.queue("q")
    await queue.put("x")
    session = await own_session(client)
    conn = stranger()
    waiting = asyncio.ensure_future(
        asyncio.to_thread(conn.execute, "SELECT pg_advisory_lock(%s, %s)", [key(db, kind), session])
    )
    if kind == "session":
        await soon(lambda: value(db, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
    else:
        await waiting
    db.execute("SELECT pg_terminate_backend(backend_pid) FROM pgqueue.session WHERE id = %s", [session])
    await waiting
    await soon(lambda: client.shell.core.listener().session is None)
    await blocked(queue.take(0), conn, within=8)
    if kind == "session":
        check_named(db, conn, f"the return of the tasks of session {session}")
    end(db, conn)
    with steady(dsn_of(db)) as watch:
        task = await queue.take(60)
        assert task is not None
        assert watch() < 2
    assert await own_session(client) == session
    await task.ack()


@pytest.mark.slow
async def test_a_client_closes_in_time(shell: Any, db: psycopg.Connection, stranger: Connect) -> None:
    client = shell.client(call_timeout=5)
    session = await own_session(client)
    with held(stranger, "%s, %s", key(db, "claiming"), session), steady(dsn_of(db)) as watch:
        await client.close()
        assert watch() < 5


@pytest.mark.slow
async def test_takers_poll_while_a_stranger_keeps_them_from_arming(
    client: Any, queue: Any, db: psycopg.Connection, stranger: Connect
) -> None:
    await queue.put("x")
    bucket = value(db, f"SELECT pgqueue._bucket(({QUEUE}))")
    task = await queue.take(0)
    with held(stranger, "%s, %s", key(db, "waiter"), bucket) as conn:
        with steady(dsn_of(conn)) as watch:
            assert await queue.take(1) is None
            assert watch() < 2.5
        waiting = asyncio.ensure_future(queue.take(60))
        await asyncio.sleep(0)
        await queue.put("y")
        assert (await asyncio.wait_for(waiting, 30)).data == "y"
        end(db, conn)
    await task.ack()


@pytest.mark.slow
async def test_tasks_of_a_dead_client_return_beside_a_stranger_with_the_lock_of_the_sweep(
    shell: Any, client: Any, queue: Any, db: psycopg.Connection, connect: Connect, stranger: Connect
) -> None:
    await queue.put("x")
    await own_session(client)
    with held(stranger, "%s, 0", key(db, "sweeping")) as conn:
        worker = connect()
        worker.execute("SELECT pgqueue.open_session(grace => '0')")
        worker.execute("SELECT pgqueue.take('q')")
        worker.close()
        with steady(dsn_of(db)) as watch:
            task = await queue.take(30)
            assert watch() < 4  # the patience of _begin_work, and two ticks
        check_named(db, conn, "the return of the tasks of dead sessions")
    assert task is not None
    await task.ack()


# --- SQL


@pytest.mark.slow
def test_the_caller_keeps_its_lock_timeout(db: psycopg.Connection, connect: Connect, stranger: Connect) -> None:
    """Whether the wait succeeds or fails; and a shorter one of its own ends the wait."""
    db.execute("SELECT pgqueue.create_queue('q', capacity => 9)")
    conn = connect(autocommit=False)
    for own, lasts in (("700ms", 0.7), ("0", 1.0)):
        conn.execute("SELECT set_config('lock_timeout', %s, false), set_config('pgqueue.patience', '1', false)", [own])
        with held(stranger, "%s, %s", key(db, "filling"), value(db, QUEUE)) as foreigner:
            with steady(dsn_of(db)) as steadily:
                watch = Stopwatch()
                with pytest.raises(psycopg.DatabaseError, match=names(foreigner)) as raised, conn.transaction():
                    conn.execute("SELECT pgqueue.put('q', '1')")
                assert lasts <= watch()
                assert steadily() < lasts + 2
            assert raised.value.sqlstate == "PQ007"
            assert value(conn, "SELECT current_setting('lock_timeout')") == own
        conn.rollback()
    conn.execute("SELECT set_config('lock_timeout', '0', false), set_config('pgqueue.patience', '20', false)")
    conn.commit()
    other = connect(autocommit=False)
    other.execute("SELECT pgqueue.put('q', '2')")
    with waiting(conn, db, "SELECT pgqueue.put('q', '3')") as future:
        other.commit()
    assert future.result()
    assert value(conn, "SELECT current_setting('lock_timeout')") == "0"


def test_without_a_patience_of_its_own_sql_waits(db: psycopg.Connection, connect: Connect) -> None:
    db.execute("SELECT pgqueue.create_queue('q', capacity => 9)")
    other = connect(autocommit=False)
    other.execute("SELECT pgqueue.put('q', '2')")
    with waiting(connect(), db, "SELECT pgqueue.put('q', '3')") as future:
        other.commit()
    assert future.result()


@pytest.mark.slow
def test_open_session_ends_in_time(db: psycopg.Connection, connect: Connect, stranger: Connect) -> None:
    gone = connect()
    id = value(gone, "SELECT pgqueue.open_session(label => 'gone', grace => '1 h')")
    gone.close()
    with held(stranger, f"%s, {id}", key(db, "claiming")) as conn:
        for call in (f"SELECT pgqueue.open_session({id})", f"SELECT pgqueue.close_session({id})"):
            with steady(dsn_of(db)) as watch:
                with pytest.raises(psycopg.DatabaseError, match=names(conn)) as raised:
                    db.execute(call)
                assert watch() < 3.5
            assert raised.value.sqlstate == "PQ007"
    with (
        held(stranger, f"%s, {id}", key(db, "session")) as conn,
        pytest.raises(psycopg.DatabaseError, match=f"the life of session {id}.*{names(conn)}"),
    ):
        db.execute("SELECT pgqueue.open_session(%s)", [id])
    assert value(db, "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'") == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lanes", "limits"])
def test_no_advisory_lock_of_a_stranger_keeps_a_queues_lanes_or_limits(
    db: psycopg.Connection, stranger: Connect, kind: str
) -> None:
    """The stranger has 1,024 locks of each class, and then those of each number in place of the class."""
    rows(db, "SELECT pgqueue.create_queue('q'), pgqueue.open_session(label => 'taker')")
    if kind == "limits":
        rows(db, "SELECT pgqueue.set_limit('q', concurrency => 100)")
    lane = "lane => 'l' || g" if kind == "lanes" else "priority => 0"
    classes = [number for (number,) in rows(db, "SELECT class FROM pgqueue._lock_class WHERE kept <> 'session'")]
    for number in (*range(min(classes), max(classes) + 20), value(db, QUEUE)):
        rows(db, f"SELECT pgqueue.put('q', '1', {lane}) FROM generate_series(1, 3) g")
        with stranger() as conn:
            conn.execute("SELECT pg_advisory_lock(%s, g) FROM generate_series(0, 1023) g", [number])
            assert len(rows(db, "SELECT pgqueue.ack(id, token) FROM pgqueue.take_many('{q}', 3)")) == 3, number
