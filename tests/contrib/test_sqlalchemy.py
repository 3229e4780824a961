"""conn= of SQLAlchemy's: the same promise as with psycopg, whichever driver is below, whatever is handed over."""

from __future__ import annotations

import psycopg
import pytest
import sqlalchemy
from alchemy import AWAITING, DRIVERS, KINDS, caller, done, engine
from sqlalchemy.exc import (
    DBAPIError,
    InvalidRequestError,
    PendingRollbackError,
    ResourceClosedError,
    UnboundExecutionError,
)
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from statements import column

import pgqueue
from pgqueue import migrate
from pgqueue.contrib.sqlalchemy import url

pytestmark = pytest.mark.once  # what SQLAlchemy and its drivers do; the statements are those of other connections

PLAIN = sqlalchemy.text("SELECT 1")
TASKS = "SELECT data FROM pgqueue.tasks ORDER BY id"
QUEUES = "SELECT name FROM pgqueue.queues"
OPEN = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture(params=DRIVERS)
async def it(request, dsn):
    async with caller(request.param, "session", dsn) as found:
        yield found


@pytest.fixture
def sync_engine(dsn):
    theirs = engine("psycopg", dsn)
    yield theirs
    theirs.dispose()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_put_is_part_of_the_transaction(driver, kind, dsn, db):
    """As its very first statement, after others, and in savepoints."""
    async with caller(driver, kind, dsn) as it:
        queue = it.client.queue("q")
        await done(queue.put("gone", conn=it.conn))
        assert column(db, OPEN) == [1]
        assert column(db, TASKS) == []
        await it.rollback()

        put = await done(queue.put("first", conn=it.conn))
        assert (put.state, put.data) == ("ready", "first")
        savepoint = await it.savepoint()
        await done(queue.put("gone", conn=it.conn))
        await done(savepoint.rollback())
        savepoint = await it.savepoint()
        await done(queue.put("second", conn=it.conn))
        await done(savepoint.commit())
        assert column(db, TASKS) == []
        await it.commit()
        assert column(db, TASKS) == ["first", "second"]

        savepoint = await it.savepoint()
        await done(queue.put("gone", conn=it.conn))
        await done(savepoint.rollback())
        await it.execute("SELECT 1")
        await done(queue.put("gone", conn=it.conn))
        await it.rollback()
        assert column(db, TASKS) == ["first", "second"]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_in_autocommit_each_call_counts_at_once(driver, dsn, db):
    async with caller(driver, "session", dsn, isolation_level="AUTOCOMMIT") as it:
        await done(it.client.queue("q").put("x", conn=it.conn))
        assert column(db, TASKS) == ["x"]


async def test_the_other_end_exactly_once(it, db):
    """The work and the ack in one transaction: both or, if it is rolled back, neither."""
    db.execute("CREATE TABLE paid (id int)")
    queue = it.client.queue("q")
    await done(queue.put(7))
    task = await done(queue.take(5))
    for end in (it.rollback, it.commit):
        await it.execute("INSERT INTO paid VALUES (:id)", id=task.data)
        await done(task.ack(conn=it.conn))
        assert column(db, TASKS) == [7]
        await end()
    assert (column(db, TASKS), column(db, "SELECT id FROM paid")) == ([], [7])


# --- what SQLAlchemy sees of it


def test_it_is_one_statement_that_events_see(dsn, sync_engine, db):
    seen = []
    sqlalchemy.event.listen(sync_engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    sqlalchemy.event.listen(sync_engine, "begin", lambda conn: seen.append("BEGIN"))
    sqlalchemy.event.listen(sync_engine, "commit", lambda conn: seen.append("COMMIT"))
    with pgqueue.Client(dsn, poll=None) as client, Session(sync_engine) as session:
        client.queue("q").put_many([1, 2], conn=session)
        assert [word.split()[0] for word in seen] == ["BEGIN", "SELECT"]
        assert "pgqueue.put_many(" in seen[1]
        session.commit()
        assert seen[2:] == ["COMMIT"]


def test_a_put_flushes_if_any_plain_statement_does(dsn, sync_engine, db):
    """SQLAlchemy 2.1 does, 2.0 does not; and not within no_autoflush."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with pgqueue.Client(dsn, poll=None) as client:
        queue = client.queue("q")

        def flushed(execute):
            with Session(sync_engine) as session:
                session.add(Order(id=1))
                execute(session)
                return not session.new

        assert flushed(lambda session: queue.put(1, conn=session)) == flushed(lambda session: session.execute(PLAIN))
        with Session(sync_engine) as session, session.no_autoflush:
            session.add(Order(id=1))
            queue.put(2, conn=session)
            assert session.new
    assert (column(db, TASKS), column(db, "SELECT id FROM orders")) == ([], [])


def test_a_session_that_is_begun_by_hand_stays_so(dsn, sync_engine, db):
    with pgqueue.Client(dsn, poll=None) as client, Session(sync_engine, autobegin=False) as session:
        with pytest.raises(InvalidRequestError, match="Autobegin is disabled"):
            client.queue("q").put("x", conn=session)
        with session.begin():
            client.queue("q").put("y", conn=session)
    assert column(db, TASKS) == ["y"]


@pytest.mark.slow
def test_a_session_of_several_engines(dsn, empty_dsn, sync_engine, db):
    """The one for plain statements is used; without such a one the caller has to say which."""
    migrate.up(empty_dsn)
    other = engine("psycopg2", empty_dsn)
    with pgqueue.Client(dsn, poll=None) as client:
        queue = client.queue("q")
        with Session(sync_engine, binds={Order: other}) as session:
            queue.put("default", conn=session)
            session.commit()
        with Session(binds={Order: sync_engine}) as session:
            with pytest.raises(UnboundExecutionError):
                queue.put("?", conn=session)
            queue.put("chosen", conn=session.connection(bind_arguments={"mapper": Order}))
            session.commit()
    other.dispose()
    assert column(db, TASKS) == ["default", "chosen"]


def test_a_connection_that_streams_its_rows_is_no_obstacle(dsn, sync_engine, db):
    with pgqueue.Client(dsn, poll=None) as client, sync_engine.connect() as conn:
        client.queue("q").put("x", conn=conn.execution_options(stream_results=True, yield_per=10))
        conn.commit()
    assert column(db, TASKS) == ["x"]


# --- errors


async def test_refusals_are_errors_of_ours(it, db):
    queue = await done(it.client.create_queue("q", capacity=1, max_size=20))
    await done(queue.put("x", key="k"))
    with pytest.raises(pgqueue.QueueFull, match="'q' is full"):
        await done(queue.put("y", conn=it.conn))
    await done(queue.pop())
    savepoint = await it.savepoint()
    with pytest.raises(pgqueue.errors.DataTooBig, match="20"):
        await done(queue.put("y" * 100, conn=it.conn))
    await done(savepoint.rollback())
    await done(queue.put("y", conn=it.conn))
    with pytest.raises(pgqueue.TaskNotFound):
        await done(queue.ack(4711, conn=it.conn))
    await it.commit()
    assert column(db, TASKS) == ["y"]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_read_only_transaction_says_so(driver, dsn):
    async with caller(driver, "session", dsn) as it:
        await it.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(pgqueue.errors.NotRunning, match="read-only"):
            await done(it.client.queue("q").put("x", conn=it.conn))


@pytest.mark.parametrize("driver", DRIVERS)
async def test_another_database_lacks_the_schema(driver, dsn, empty_dsn):
    async with caller(driver, "session", empty_dsn) as it, caller(driver, "session", dsn) as other:
        with pytest.raises(pgqueue.SchemaError, match="pgqueue migrate up"):
            await done(other.client.queue("q").put("x", conn=it.conn))


async def test_a_broken_connection_is_a_lost_one(it, db):
    queue = it.client.queue("q")
    await done(queue.put("x", conn=it.conn))
    pid = (await it.execute("SELECT pg_backend_pid()")).scalar_one()
    db.execute("SELECT pg_terminate_backend(%s::int, 5000)", [pid])
    with pytest.raises(pgqueue.ConnectionLost):
        await done(queue.put("x", conn=it.conn))
    assert column(db, TASKS) == []


async def test_what_is_not_ours_stays_sqlalchemys(it, db):
    """A transaction that failed, and a session that waits for its rollback."""
    queue = it.client.queue("q")
    with pytest.raises(DBAPIError, match="division"):
        await it.execute("SELECT 1/0")
    with pytest.raises(DBAPIError, match="aborted"):
        await done(queue.put("x", conn=it.conn))
    await it.rollback()
    it.conn.add(Order(id=1))
    with pytest.raises(DBAPIError, match="orders"):
        await done(it.conn.flush())
    with pytest.raises(PendingRollbackError):
        await done(queue.put("x", conn=it.conn))


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_closed_connection(driver, dsn):
    async with caller(driver, "connection", dsn) as it:
        await done(it.conn.close())
        with pytest.raises(ResourceClosedError):
            await done(it.client.queue("q").put("x", conn=it.conn))


@pytest.mark.parametrize("driver", DRIVERS)
async def test_what_is_no_connection_is_a_type_error(driver, dsn, db):
    async with caller(driver, "session", dsn) as it:
        make = (async_sessionmaker if driver in AWAITING else sessionmaker)(it.engine)
        for wrong in (it.engine, make, Order(id=1), sqlalchemy.text("x")):
            with pytest.raises(TypeError, match=f"conn must be a session or a connection.*not {type(wrong).__name__}"):
                await done(it.client.queue("q").put("x", conn=wrong))
        assert column(db, QUEUES) == []  # nothing was sent


async def test_the_two_worlds_are_told_apart(dsn, db):
    async with caller("psycopg", "session", dsn) as one, caller("asyncpg", "session", dsn) as other:
        with pytest.raises(TypeError, match="not AsyncSession, which needs an AsyncClient"):
            one.client.queue("q").put("x", conn=other.conn)
        with pytest.raises(TypeError, match="not Session, which needs a Client"):
            await other.client.queue("q").put("x", conn=one.conn)
        assert column(db, QUEUES) == []


def test_another_database_system_is_refused_before_anything_is_sent(dsn, db):
    lite = sqlalchemy.create_engine("sqlite://")
    seen = []
    sqlalchemy.event.listen(lite, "before_cursor_execute", lambda *given: seen.append(given[2]))
    with pgqueue.Client(dsn, poll=None) as client, Session(lite) as session, lite.connect() as conn:
        for wrong in (session, conn):
            with pytest.raises(TypeError, match="PostgreSQL, not to sqlite"):
                client.queue("q").put("x", conn=wrong)
    lite.dispose()
    assert (seen, column(db, QUEUES)) == ([], [])


# --- the way from a DSN to an engine


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("postgresql://ada:p%40ss@db:5433/shop?sslmode=require", "ada:p%40ss@/shop?host=db&port=5433&sslmode=require"),
        ("host=/run/pg dbname=shop", "/shop?host=%2Frun%2Fpg"),
    ],
)
def test_the_url_of_a_dsn(dsn, expected):
    assert url(dsn, driver="asyncpg").render_as_string(hide_password=False) == f"postgresql+asyncpg://{expected}"


def test_the_url_of_a_dsn_reaches_its_database(dsn, monkeypatch):
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    theirs = sqlalchemy.create_engine(url())
    with theirs.connect() as conn, psycopg.connect(dsn) as own:
        assert conn.scalar(sqlalchemy.text("SELECT current_database()")) == own.info.dbname
    theirs.dispose()
    with pgqueue.Client(url().render_as_string(hide_password=False)) as client:
        assert client.queue("q").stats()["total"] == 0
