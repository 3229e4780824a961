"""The databases that tests are lent: whatever a test leaves behind, the next test has a database as a new one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from lending import NOT_THE_LENDERS, Lender
from psycopg.rows import dict_row
from sampling import sampled
from servers import Server

OTHER_CHANNEL = """
    CREATE OR REPLACE FUNCTION pgqueue._channel(queue_id int) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 'other:' || queue_id"""
ACL = "SELECT relacl FROM pg_class WHERE oid = 'pgqueue.task'::regclass"
SETTINGS = "SELECT count(*) FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase WHERE datname = {}"
VACUUMED = "SELECT pg_stat_get_last_vacuum_time('pgqueue.task'::regclass)"
OF_DATABASE = "FROM pg_database WHERE datname = current_database()"

#: What a test leaves, and a query with another answer then. `{}` is the name of the database.
LEFT = {
    # emptied
    "a queue": ("SELECT pgqueue.create_queue('left')", "SELECT count(*) FROM pgqueue.queue"),
    "a task": ("SELECT pgqueue.put('left', '1')", "SELECT count(*) FROM pgqueue.task"),
    "a number of a sequence": ("SELECT nextval('pgqueue.fence')", "SELECT last_value, is_called FROM pgqueue.fence"),
    "an id of an identity": (
        "SELECT pgqueue.put('left', '1')",
        "SELECT last_value, is_called FROM pgqueue.task_id_seq",
    ),
    # written anew: the bounds of sequences, and rows where the template has rows
    "a number of the server": ("SELECT pgqueue.set_server(7)", "SELECT pgqueue.server_number()"),
    "a node": ("SELECT pgqueue.create_node('/left')", "SELECT count(*) FROM pgqueue.node"),
    "an updated row": ("UPDATE pgqueue.node SET data = '1'", "SELECT data FROM pgqueue.node"),
    # dropped: the catalogue
    "a changed function": (OTHER_CHANNEL, "SELECT pgqueue._channel(1)"),
    "an option of a function": (
        "ALTER FUNCTION pgqueue._channel SET work_mem = '1MB'",
        "SELECT proconfig FROM pg_proc WHERE proname = '_channel'",
    ),
    "a function": ("CREATE FUNCTION public.f() RETURNS int RETURN 1", "SELECT to_regprocedure('public.f()')"),
    "a table": ("CREATE TABLE public.t ()", "SELECT to_regclass('public.t')"),
    "a schema": ("CREATE SCHEMA left_over", "SELECT to_regnamespace('left_over')"),
    "no index": ("DROP INDEX pgqueue.task_buried", "SELECT to_regclass('pgqueue.task_buried')"),
    "a disabled trigger": (
        "ALTER TABLE pgqueue.task DISABLE TRIGGER count_raw",
        "SELECT tgenabled FROM pg_trigger WHERE tgname = 'count_raw' ORDER BY 1",
    ),
    "a comment": (
        "COMMENT ON TABLE pgqueue.task IS 'left'",
        "SELECT obj_description('pgqueue.task'::regclass, 'pg_class')",
    ),
    "a large object": ("SELECT lo_create(0)", "SELECT count(*) FROM pg_largeobject_metadata"),
    "a sequence that goes round": (
        "ALTER SEQUENCE pgqueue.fence CYCLE",
        "SELECT seqcycle FROM pg_sequence WHERE seqrelid = 'pgqueue.fence'::regclass",
    ),
    "a sequence": ("CREATE SEQUENCE public.s", "SELECT to_regclass('public.s')"),
    # dropped: settings
    "a setting of the database": ("ALTER DATABASE {} SET work_mem = '1MB'", "SHOW work_mem"),
    "a setting of a role in the database": ("ALTER ROLE CURRENT_USER IN DATABASE {} SET work_mem = '1MB'", SETTINGS),
    "a setting of all roles": ("ALTER ROLE ALL IN DATABASE {} SET work_mem = '1MB'", SETTINGS),
    "a limit of connections": ("ALTER DATABASE {} CONNECTION LIMIT 7", f"SELECT datconnlimit {OF_DATABASE}"),
    # dropped: rights
    "a right to a table": ("GRANT SELECT ON pgqueue.task TO PUBLIC", ACL),
    "a right to a column": (
        "GRANT SELECT (id) ON pgqueue.task TO PUBLIC",
        "SELECT attacl FROM pg_attribute WHERE attrelid = 'pgqueue.task'::regclass AND attname = 'id'",
    ),
    "a right to a function": (
        "GRANT EXECUTE ON FUNCTION pgqueue.sweep TO PUBLIC",
        "SELECT proacl FROM pg_proc WHERE proname = 'sweep'",
    ),
    "a right to the schema": (
        "GRANT USAGE ON SCHEMA pgqueue TO PUBLIC",
        "SELECT nspacl FROM pg_namespace WHERE nspname = 'pgqueue'",
    ),
    "a right to the database": ("GRANT CREATE ON DATABASE {} TO PUBLIC", f"SELECT datacl {OF_DATABASE}"),
    "rights by default": ("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC", "TABLE pg_default_acl"),
    # dropped: the planner's statistics
    "statistics": (
        "SELECT pgqueue.put('left', '1'); ANALYZE pgqueue.task",
        "SELECT count(*) FROM pg_statistic WHERE starelid = 'pgqueue.task'::regclass",
    ),
    "the size of an empty table": (
        "VACUUM pgqueue.task",
        "SELECT reltuples FROM pg_class WHERE oid = 'pgqueue.task'::regclass",
    ),
    "the time of a vacuum": ("VACUUM pgqueue.task", VACUUMED),
    "extended statistics": (
        "CREATE STATISTICS pgqueue.both ON id, priority FROM pgqueue.task",
        "SELECT count(*) FROM pg_statistic_ext",
    ),
}


@pytest.fixture(scope="module")
def own(pg_server: Server, pg_template: str) -> Iterator[Lender]:
    """A lender whose free databases no other test has."""
    with contextlib.closing(Lender(pg_server, pg_template)) as lender:
        yield lender


@pytest.fixture(scope="module")
def new(pg_server: Server, pg_template: str) -> Iterator[str]:
    """A database that was made from the template, and that nothing changes."""
    name = pg_server.create(pg_template)
    yield name
    pg_server.drop(name)


def asked(server: Server, name: str, query: str) -> Any:
    """The answers of a query to a new connection."""
    with psycopg.connect(server.dsn(name), autocommit=True) as conn:
        return conn.execute(query.replace("{}", f"'{name}'").encode()).fetchall()


def plant(server: Server, name: str, statements: str) -> None:
    with psycopg.connect(server.dsn(name), autocommit=True) as conn:
        for statement in statements.split("; "):
            conn.execute(statement.replace("{}", name).encode())


@pytest.mark.parametrize(("statements", "query"), sampled([*LEFT.values()], keep=11), ids=list(LEFT))
def test_the_next_test_does_not_find(pg_server: Server, new: str, own: Lender, statements: str, query: str) -> None:
    if query == VACUUMED and int(pg_server.version().split(".")[0]) < 15:
        pytest.skip("a process of the server collects such times, and tells them later")
    usual = asked(pg_server, new, query)
    with own.lent():
        pass  # the next loan is compared by what was counted since this one
    with own.lent() as name:
        plant(pg_server, name, statements)
        assert asked(pg_server, name, query) != usual
    with own.lent() as name:
        assert asked(pg_server, name, query) == usual


USUAL = {
    "nothing": "SELECT 1",
    "a task": "SELECT pgqueue.put('left', '1')",
    "a number of a sequence": "SELECT nextval('pgqueue.fence')",
    "a number of the server": "SELECT pgqueue.set_server(7); SELECT pgqueue.put('left', '1')",
    "a node": "SELECT pgqueue.create_node('/left')",
    "no row of the template's": "DELETE FROM pgqueue.node",
    "a table of many pages": "SELECT count(*) FROM pgqueue.put_many('left', to_jsonb(array_fill(1, ARRAY [1000])))",
    "a role that had rights": "CREATE ROLE left_over; SELECT pgqueue.grant_to('left_over'); DROP OWNED BY left_over;"
    " DROP ROLE left_over",
    "a temporary table": "CREATE TEMP TABLE t ()",
}


@pytest.mark.parametrize("statements", USUAL.values(), ids=USUAL)
def test_a_database_is_lent_again_after_usual_tests(pg_server: Server, own: Lender, statements: str) -> None:
    with own.lent() as first:
        plant(pg_server, first, statements)
    with own.lent() as second:
        assert second == first


def test_two_tests_at_the_same_time_have_a_database_each(own: Lender) -> None:
    with own.lent() as first, own.lent() as second:
        assert first != second


@pytest.mark.slow
def test_a_session_that_is_left_open_ends(pg_server: Server, own: Lender) -> None:
    with own.lent() as name:
        left = psycopg.connect(pg_server.dsn(name), autocommit=True)
        left.execute("SELECT pg_advisory_lock(7)")
        left.execute("LISTEN left_over")
    with contextlib.closing(left), own.lent() as name:
        assert asked(pg_server, name, "SELECT pg_try_advisory_lock(7)") == [(True,)]
        gone = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {left.info.backend_pid}"
        assert asked(pg_server, name, gone) == [(0,)]
        with pytest.raises(psycopg.OperationalError):
            left.execute("SELECT 1")


def test_a_transaction_that_is_left_prepared_is_an_error_of_its_test(pg_server: Server, own: Lender) -> None:
    with pg_server.connect() as admin:
        if admin.execute("SHOW max_prepared_transactions").fetchone() == ("0",):
            pytest.skip("the server takes no prepared transactions")
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(own.lent())
        put = "SET LOCAL pgqueue.two_phase = off; SELECT pgqueue.put('left', '1')"  # Citus would refuse to prepare it
        plant(pg_server, name, f"BEGIN; {put}; PREPARE TRANSACTION 'left'")
        with pytest.raises(psycopg.errors.ObjectInUse):
            stack.close()
    try:
        with own.lent() as other:
            assert other != name
    finally:
        plant(pg_server, name, "ROLLBACK PREPARED 'left'")
        pg_server.drop(name)


#: What a test leaves in the connection that it is lent, and a query with another answer then.
LEFT_IN_CONNECTION = {
    "a setting": ("SET work_mem = '1MB'", "SHOW work_mem"),
    "a setting of pgqueue": (
        "SET pgqueue.session = '7'",
        "SELECT nullif(current_setting('pgqueue.session', true), '')",
    ),
    "a role": ("SET ROLE pg_monitor", "SELECT current_user"),
    "another user": ("SET SESSION AUTHORIZATION pg_monitor", "SELECT session_user"),
    "a temporary table": ("CREATE TEMP TABLE t ()", "SELECT to_regclass('t')"),
    "a prepared statement": ("PREPARE left_over AS SELECT 1", "SELECT name FROM pg_prepared_statements WHERE from_sql"),
    "a cursor": ("DECLARE left_over CURSOR WITH HOLD FOR SELECT 1", "SELECT name FROM pg_cursors"),
    "a channel": ("LISTEN left_over", "SELECT pg_listening_channels()"),
    "a lock": ("SELECT pg_advisory_lock(7)", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"),
    "a transaction": ("BEGIN; SELECT pgqueue.put('left', '1')", "SELECT pg_current_xact_id_if_assigned() IS NULL"),
}


@pytest.mark.parametrize(("statements", "query"), LEFT_IN_CONNECTION.values(), ids=list(LEFT_IN_CONNECTION))
def test_the_next_test_does_not_find_in_its_connection(own: Lender, statements: str, query: str) -> None:
    with own.lent() as name:
        conn = own.connection(name)
        usual = conn.execute(query.encode()).fetchall()
        for statement in statements.split("; "):
            conn.execute(statement.encode())
        assert conn.execute(query.encode()).fetchall() != usual
    with own.lent() as name:
        assert own.connection(name).execute(query.encode()).fetchall() == usual


def test_the_next_test_has_the_same_session_by_an_object_of_its_own(own: Lender) -> None:
    with own.lent() as name:
        first: Any = own.connection(name)
        pid = first.info.backend_pid
        first.execute("LISTEN left_over")
        first.execute("NOTIFY left_over")
        first.row_factory = dict_row
        first.prepare_threshold = 0
        first.execute("SELECT 1")
    assert first.closed
    with own.lent() as name:
        second = own.connection(name)
        assert second.info.backend_pid == pid
        assert second.execute("SELECT 1").fetchall() == [(1,)]
        assert (second.autocommit, second.prepare_threshold) == (True, 5)
        assert list(second.notifies(timeout=0)) == []


def test_only_the_sessions_of_the_test_are_counted(own: Lender, pg_server: Server) -> None:
    here = f"SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND {NOT_THE_LENDERS}"
    with own.lent() as name:
        assert own.connection(name).execute("SHOW application_name").fetchall() == [("",)]
    with pg_server.connect() as admin, own.lent() as name:
        assert admin.execute(here, [name]).fetchall() == [(0,)]
        assert own.connection(name).execute("SHOW application_name").fetchall() == [("",)]
        assert admin.execute(here, [name]).fetchall() == [(1,)]


@pytest.mark.parametrize("left", ["closed", "cut off", "in a transaction"])
def test_a_connection_that_cannot_go_on_is_replaced(own: Lender, left: str) -> None:
    with own.lent() as name:
        conn = own.connection(name)
        pid = conn.info.backend_pid
        if left == "closed":
            conn.close()
        elif left == "in a transaction":
            conn.execute("BEGIN")
        else:
            with pytest.raises(psycopg.OperationalError):
                conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    with own.lent() as again:
        assert again == name
        assert own.connection(again).info.backend_pid != pid


def test_the_rights_of_the_owner_are_implied_again(own: Lender) -> None:
    """DROP OWNED leaves them written out, which tests see that compare catalogues."""
    with own.lent() as name:
        for statement in USUAL["a role that had rights"].split("; "):
            own.connection(name).execute(statement.encode())
    with own.lent() as again:
        assert again == name
        assert own.connection(again).execute(ACL.replace("task", "quotas").encode()).fetchall() == [(None,)]


def test_what_the_connection_changed_is_seen(own: Lender) -> None:
    """PostgreSQL tells others what a session wrote a second later, or when it ends."""
    with own.lent() as name:
        own.connection(name).execute("SELECT 1")
    with own.lent() as name:
        own.connection(name).execute("CREATE TABLE public.left_over ()")
    with own.lent() as again:
        assert own.connection(again).execute("SELECT to_regclass('public.left_over')").fetchall() == [(None,)]
        assert again != name
