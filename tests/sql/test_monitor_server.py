"""What monitors ask of the server: tables, snapshots, health; and the role that may look, and do nothing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from eventually import eventually
from psycopg import sql
from psycopg.conninfo import make_conninfo
from servers import Server
from statements import column, put, row, rows, take, value
from stepping import waiting

from pgqueue import sql as schema

Connect = Any


def health(conn: psycopg.Connection, name: str) -> tuple[Any, ...] | None:
    return row(conn, "SELECT status, value, detail FROM pgqueue.health WHERE name = %s", name)


def unwell(conn: psycopg.Connection) -> set[str]:
    return set(column(conn, "SELECT name FROM pgqueue.health WHERE status <> 'ok'"))


# --- tables


def test_tables_have_sizes_and_limits(db: psycopg.Connection) -> None:
    (put(db, "q", "x" * 100_000), db.execute("VACUUM ANALYZE pgqueue.task"))
    query = """SELECT table_bytes > 0, index_bytes > 0, toast_bytes > 0,
                      total_bytes >= table_bytes + index_bytes + toast_bytes, vacuum_at, autovacuum, vacuuming,
                      last_vacuum > now() - interval '1 min', last_analyze > now() - interval '1 min', xid_age >= 0
                 FROM pgqueue.tables WHERE name = 'task'"""
    expected = (True, True, True, True, 2000, "not due", None, True, True, True)
    eventually(lambda: row(db, query) == expected)
    ours = "SELECT relname FROM pg_class WHERE relnamespace = 'pgqueue'::regnamespace AND relkind = 'r'"
    assert set(column(db, "SELECT name FROM pgqueue.tables")) == set(column(db, ours))


@pytest.mark.slow
def test_tables_know_when_autovacuum_is_due(db: psycopg.Connection, connect: Connect) -> None:
    holder = connect(autocommit=False)  # so that no autovacuum of the server's can make it untrue
    holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT count(*) FROM pgqueue.status")
    (db.execute("SELECT pgqueue.set_status('k', '1')"), db.execute("SELECT pgqueue.set_status('k', '2')"))
    db.execute("ALTER TABLE pgqueue.status SET (autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0)")
    query = "SELECT vacuum_at, dead_rows > 0, autovacuum FROM pgqueue.tables WHERE name = 'status'"
    eventually(lambda: row(db, query) == (0, True, "due"))  # the server's statistics come a second later
    db.execute("ALTER TABLE pgqueue.status SET (autovacuum_enabled = off)")
    assert row(db, query) == (0, True, "off")
    assert health(db, "autovacuum_off") == ("bad", 1, "status")


# --- snapshots

HELD = "SELECT kind, pid, role, database, state, holds_back FROM pgqueue.snapshots WHERE pid = %s"


def test_snapshots_say_who_holds_them(db: psycopg.Connection, connect: Connect) -> None:
    holder = connect(autocommit=False, application_name="report")
    pid = holder.info.backend_pid
    assert rows(db, HELD, pid) == []
    holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT count(*) FROM pgqueue.queue")
    put(db, "q")
    role, database = rows(db, "SELECT current_user, current_database()")[0]
    expected = ("connection", pid, role, database, "idle in transaction", True)
    eventually(lambda: rows(db, HELD, pid) == [expected])
    query = """SELECT name, query, xid_age > 0, since <= query_start, age > '0' FROM pgqueue.snapshots WHERE pid = %s"""
    assert row(db, query, pid) == ("report", "SELECT count(*) FROM pgqueue.queue", True, True, True)
    status, seconds, detail = health(db, "oldest_snapshot") or ()
    assert (status, seconds > 0, detail) == ("ok", True, f"connection report pid {pid} idle in transaction")
    holder.rollback()
    assert rows(db, HELD, pid) == []


def test_who_has_written_and_not_committed_holds_one(db: psycopg.Connection, connect: Connect) -> None:
    writer = connect(autocommit=False)
    put(writer, "q")
    eventually(lambda: column(db, "SELECT state FROM pgqueue.snapshots WHERE pid = %s", writer.info.backend_pid))
    writer.rollback()


def test_another_database_does_not_hold_back_vacuum_here(db: psycopg.Connection, dsn: str) -> None:
    with psycopg.connect(make_conninfo(dsn, dbname="postgres")) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        pid = other.info.backend_pid
        eventually(lambda: [(d, h) for *_, d, _, h in rows(db, HELD, pid)] == [("postgres", False)])


# --- health


@pytest.mark.slow
def test_a_transaction_that_holds_up_others_is_named(
    db: psycopg.Connection, watcher: psycopg.Connection, connect: Connect
) -> None:
    holder, first, second = connect(autocommit=False), connect(), connect()
    db.execute("SELECT pgqueue.create_queue('q')")
    holder.execute("SELECT pgqueue.put('q', '1', key => 'k'), pgqueue.put('q', '1', lane => 'a')")
    detail = f"calls that wait for backend {holder.info.backend_pid} of role {holder.info.user}: 2"
    held_up = "SELECT detail FROM pgqueue.health WHERE name = 'held_up' AND value >= 1"
    put_by_key, restrict = "SELECT id FROM pgqueue.put('q', '1', key => 'k')", "SELECT pgqueue.restrict_queue('q')"
    with waiting(first, db, put_by_key) as new, waiting(second, db, restrict):
        eventually(lambda: rows(watcher, held_up) == [(detail,)])
        holder.rollback()
    assert new.result()
    assert health(watcher, "held_up") == ("ok", 0, "")


@pytest.mark.slow
def test_waits_outside_of_the_schema_are_none_of_pgqueues(db: psycopg.Connection, connect: Connect) -> None:
    holder, other = connect(autocommit=False), connect()
    db.execute("CREATE TABLE public.elsewhere (n int PRIMARY KEY)")
    holder.execute("SELECT pgqueue.put('q', '1'); INSERT INTO public.elsewhere VALUES (1)")
    with waiting(other, db, "INSERT INTO public.elsewhere VALUES (1) RETURNING n"):
        waits = "SELECT bool_or(waitstart < clock_timestamp() - interval '1 s') FROM pg_locks WHERE NOT granted"
        eventually(lambda: value(db, waits))
        assert health(db, "held_up") == ("ok", 0, "")
        holder.rollback()


def test_all_is_well_with_a_new_database(db: psycopg.Connection) -> None:
    assert unwell(db) == set()
    assert row(db, "SELECT value, unit FROM pgqueue.health WHERE name = 'schema_version'") == (
        float(schema.NEWEST),
        "version",
    )
    assert value(db, "SELECT count(*) = count(DISTINCT name) AND bool_and(value IS NOT NULL) FROM pgqueue.health")


def test_tasks_that_nobody_sees_to(db: psycopg.Connection, connect: Connect) -> None:
    put(db, "q")
    assert unwell(db) == {"unattended"}  # nobody has ever ticked, which does not matter in the first minute
    assert health(db, "unattended") == ("warn", 1, "no session is connected that could take them")
    db.execute("SELECT pgqueue.set_limit('q', concurrency => 1)")
    put(db, "q")
    assert health(db, "unattended")[1] == 2, "the second waits for the limit"
    connect().execute("SELECT pgqueue.open_session()")
    assert unwell(db) == set()
    db.execute("UPDATE pgqueue.queue SET created_at = now() - interval '1 h'")
    since = db.execute(
        "SELECT extract(epoch FROM least(interval '1 h', now() - pg_postmaster_start_time()))"
    ).fetchone()
    assert since is not None
    assert health(db, "tick")[1] == pytest.approx(float(since[0]), abs=5)
    db.execute("SELECT pgqueue.promote_all()")
    assert unwell(db) == set()
    db.execute("UPDATE pgqueue.sample SET sampled_at = sampled_at - interval '2 min'")
    assert unwell(db) == {"tick"}


@pytest.fixture
def tended(db: psycopg.Connection, connect: Connect) -> psycopg.Connection:
    """A database with a client, and the connection of it."""
    conn: psycopg.Connection = connect()
    conn.execute("SELECT pgqueue.open_session(label => 'a:1:b', grace => '1 h')")
    db.execute("SELECT pgqueue.promote_all()")
    return conn


@pytest.mark.parametrize(("age", "status"), [("4 min", "ok"), ("10 min", "warn"), ("2 h", "bad")])
def test_a_task_that_waits_for_long(db: psycopg.Connection, tended: None, age: str, status: str) -> None:
    (put(db, "new"), put(db, "old"))
    db.execute("UPDATE pgqueue.task SET created_at = now() - %s::interval WHERE id = 2", [age])
    found, seconds, queue = health(db, "oldest_ready") or ()
    assert (found, seconds > 200, queue) == (status, True, "old")
    db.execute("SELECT pgqueue.pause_queue('old', '1 h')")
    assert (health(db, "oldest_ready") or ())[2] == "new"  # that one waits on purpose


def test_queues_that_ask_for_a_person(db: psycopg.Connection, tended: None) -> None:
    for queue, verb in {"p": "pause_queue('p', '1 h')", "d": "drain_queue('d')"}.items():
        put(db, queue)
        db.execute(f"SELECT pgqueue.{verb}")  # type: ignore[arg-type]
    db.execute("SELECT pgqueue.create_queue('f', capacity => 1)")
    for queue in "fb":
        put(db, queue)
    db.execute("SELECT pgqueue.bury(id) FROM pgqueue.tasks WHERE queue = 'b'")
    assert unwell(db) == {"paused", "draining", "full", "buried"}
    for name, queue in {"paused": "p", "draining": "d", "full": "f", "buried": "b"}.items():
        assert health(db, name) == ("warn", 1, queue)


def test_a_client_that_died(db: psycopg.Connection, tended: psycopg.Connection) -> None:
    db.execute("SELECT pg_terminate_backend(%s::int)", [tended.info.backend_pid])
    eventually(lambda: health(db, "missing") == ("warn", 1, "a:1:b"))


@pytest.fixture
def new(pg_server: Server, pg_template: str) -> Iterator[psycopg.Connection]:
    """A connection to a database that no test had: a lent one has dead rows of others, which are counted later."""
    name = pg_server.create(pg_template)
    with psycopg.connect(pg_server.dsn(name), autocommit=True) as conn:
        yield conn
    pg_server.drop(name)


@pytest.mark.slow
def test_dead_rows_beyond_what_vacuum_should_leave(new: psycopg.Connection) -> None:
    new.execute("ALTER TABLE pgqueue.lane_check SET (autovacuum_enabled = off)")
    new.execute("INSERT INTO pgqueue.lane_check (queue_id, lane) SELECT 0, '' FROM generate_series(1, 20000)")
    new.execute("DELETE FROM pgqueue.lane_check")
    expected = ("warn", 20000, "lane_check, where autovacuum is off")
    eventually(lambda: health(new, "dead_rows") == expected)


# --- rights

VIEWS = """SELECT relname FROM pg_class WHERE relnamespace = 'pgqueue'::regnamespace AND relkind = 'v'
              AND relname !~ '^_'"""
LOOKING = [
    "first_task('q', 'ready')",
    "why('q')",
    "why(1)",
    "queue_stats('q')",
    "last_tick()",
]


@pytest.fixture
def watcher(db: psycopg.Connection, connect: Connect) -> Iterator[psycopg.Connection]:
    """A connection of a role with no more than grant_monitor gives."""
    name = sql.Identifier(f"pgqueue_test_{uuid.uuid4().hex[:12]}")
    db.execute(sql.SQL("CREATE ROLE {}").format(name))
    db.execute("SELECT pgqueue.grant_monitor(%s)", [name.as_string().strip('"')])
    conn = connect()
    conn.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(name))
    yield conn
    conn.close()
    db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(name))


def test_a_monitor_sees_everything(
    db: psycopg.Connection, watcher: psycopg.Connection, tended: psycopg.Connection
) -> None:
    for _ in range(3):
        put(db, "q")
    take(tended, "q")
    db.execute("SELECT pgqueue.bury(2)")
    for view in column(db, VIEWS):
        watcher.execute(f"SELECT * FROM pgqueue.{view}")  # type: ignore[arg-type]
    for call in LOOKING:
        assert rows(watcher, f"SELECT * FROM pgqueue.{call}"), call
    assert rows(watcher, "SELECT id, state FROM pgqueue.tasks ORDER BY id") == [
        (1, "taken"),
        (2, "buried"),
        (3, "ready"),
    ]
    assert unwell(watcher) == {"buried"}


def test_a_monitor_can_do_nothing(db: psycopg.Connection, watcher: psycopg.Connection) -> None:
    put(db, "q")
    allowed = """SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'pgqueue'::regnamespace
                    AND has_function_privilege(p.oid, 'EXECUTE') AND p.prosecdef"""
    assert set(column(watcher, allowed)) == {
        *("find_tasks", "first_task", "job_runs", "message_stats", "newest_tasks", "queue_stats", "last_tick", "why"),
        "count_version",
        "history",
        *("queue_rates", "neighbours", "search_tasks", "own_id"),
        *(
            "_could_begin_now",
            "_foreign_locks",
            "_health_stats",
            "_is_attended",
            "_jobs_taken",
            "_lost_roles",
            "_may_see",
        ),
        *("_may_see_all", "_unserved"),
    }
    stable = "SELECT bool_and(provolatile <> 'v') FROM pg_proc WHERE oid::regprocedure::text ~ %s"
    assert value(db, stable, r"^pgqueue\.(first_task|queue_stats|last_tick|_may_see)\(") is True
    for call in ("put('q', '1')", "take('q')", "ack(1, 1)", "delete(1)", "kick('q')", "promote_all()", "sweep()"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            watcher.execute(f"SELECT pgqueue.{call}")  # type: ignore[arg-type]
    for table in column(db, "SELECT name FROM pgqueue.tables WHERE name <> 'schema_version'"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            watcher.execute(f"SELECT * FROM pgqueue.{table}")  # type: ignore[arg-type]
    writes = "SELECT has_table_privilege(%s, 'INSERT, UPDATE, DELETE, TRUNCATE')"
    assert not any(value(watcher, writes, f"pgqueue.{view}") for view in column(db, VIEWS))


def test_what_the_server_hides_from_a_monitor(
    db: psycopg.Connection, watcher: psycopg.Connection, connect: Connect
) -> None:
    holder = connect(autocommit=False)
    put(holder, "q")
    pid = holder.info.backend_pid
    query = "SELECT pid, xid_age >= 0, state, age IS NULL, query LIKE '%%put%%' FROM pgqueue.snapshots WHERE pid = %s"
    eventually(lambda: row(db, query, pid) == (pid, True, "idle in transaction", False, True))
    assert row(watcher, query, pid) == (pid, True, None, True, False)
    role = value(watcher, "SELECT session_user")
    db.execute(sql.SQL("GRANT pg_read_all_stats TO {}").format(sql.Identifier(role)))
    assert row(watcher, query, pid) == (pid, True, "idle in transaction", False, True)
    holder.rollback()


def test_an_upgrade_grants_what_is_new_to_those_who_had_the_old(
    db: psycopg.Connection, watcher: psycopg.Connection
) -> None:
    names = [f"pgqueue_test_{uuid.uuid4().hex[:12]}" for _ in range(2)]
    user, by_hand = map(sql.Identifier, names)
    db.execute(sql.SQL("CREATE ROLE {}; CREATE ROLE {}").format(user, by_hand))
    try:
        db.execute("SELECT pgqueue.grant_to(%s)", [names[0]])
        db.execute(sql.SQL("GRANT USAGE ON SCHEMA pgqueue TO {}").format(by_hand))
        db.execute(sql.SQL("GRANT EXECUTE ON FUNCTION pgqueue.put TO {}").format(by_hand))
        body = value(db, "SELECT pg_get_functiondef('pgqueue.time_left'::regproc)")
        db.execute("DROP FUNCTION pgqueue.time_left")  # an upgrade may do so, to change its columns
        db.execute(body)
        db.execute(schema.read("8_grants/grants.sql"))  # type: ignore[arg-type]
        watcher_name = value(watcher, "SELECT session_user")
        may = "SELECT has_function_privilege(%s, %s, 'EXECUTE')"
        for name, newer in ((names[0], True), (names[1], False), (watcher_name, False)):
            assert value(db, may, name, "pgqueue.time_left(bigint[], bigint[])") is newer
        assert value(db, may, names[1], "pgqueue.delete(bigint)") is False
        assert rows(watcher, "SELECT FROM pgqueue.health")
    finally:
        for role in (user, by_hand):
            db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))
