"""Rights: grant_to() is enough for all that is public, and gives no access to a table."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from statements import column, put, row, rows, take, value

import pgqueue
from pgqueue.errors import SetupError

Connect = Any
TABLES = ["queue", "task", "take", "session", "node"]
WRITES = [
    "INSERT INTO pgqueue.{} DEFAULT VALUES",
    "DELETE FROM pgqueue.{}",
    "TRUNCATE pgqueue.{}",
]
HELPERS = [
    "pgqueue._promote(1)",
    "pgqueue._free_session(1, NULL)",
    "pgqueue._free_nodes(1)",
    "pgqueue._clean_nodes()",
    "pgqueue._drop_take(1, 1, 1)",
    "pgqueue._drop_takes('{1}', '{1}', 1)",
    "pgqueue._claim(1, 'q', 1, 1, 1, NULL, NULL, false)",
    "pgqueue._queue_of_put('q')",
]


@pytest.fixture
def role(db: psycopg.Connection) -> Iterator[str]:
    """A role of its own, without any rights; roles belong to the server and not to a database."""
    name = f"pgqueue_test_{uuid.uuid4().hex[:12]}"
    identifier = sql.Identifier(name)
    db.execute(sql.SQL("CREATE ROLE {}").format(identifier))
    yield name
    db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(identifier))


@pytest.fixture
def granted(db: psycopg.Connection, role: str) -> str:
    db.execute("SELECT pgqueue.grant_to(%s)", [role])
    return role


@pytest.fixture
def user(connect: Connect, granted: str) -> psycopg.Connection:
    """A connection with no more than grant_to gives."""
    return connect(options=f"-c role={granted}")


def test_grant_to_is_enough_for_the_whole_life_of_a_task(user: psycopg.Connection) -> None:
    assert value(user, "SELECT current_user").startswith("pgqueue_test_")
    user.execute("SELECT pgqueue.create_queue('q', ttr => '1 h')")
    ids = [*value(user, "SELECT pgqueue.put_many('q', '[1, 2, 3]')"), put(user, "q"), put(user, "q", delay="1 h")]
    id, token = take(user, "q")
    assert value(user, "SELECT state FROM pgqueue.touch(%s, %s)", id, token) == "taken"
    assert value(user, "SELECT state FROM pgqueue.ack(%s, %s)", id, token) == "done"
    assert value(user, "SELECT state FROM pgqueue.release(%s, %s, error => 'e')", *take(user, "q")) == "ready"
    assert value(user, "SELECT state FROM pgqueue.bury(%s, %s)", *take(user, "q")) == "buried"
    assert value(user, "SELECT pgqueue.kick('q')") == 1
    taken = column(user, "SELECT id FROM pgqueue.take_many('{q}', 2)")
    assert rows(user, "SELECT * FROM pgqueue.release_many(%s)", taken) == []
    taken = column(user, "SELECT id FROM pgqueue.take_many('{q}', 2)")
    assert rows(user, "SELECT * FROM pgqueue.ack_many(%s)", taken) == []
    assert column(user, "SELECT id FROM pgqueue.pop('q')") == [ids[3]]
    assert value(user, "SELECT pgqueue.delete(%s)", ids[4]) is True
    assert rows(user, "SELECT FROM pgqueue.tasks") == []


def test_grant_to_is_enough_for_a_listener(user: psycopg.Connection) -> None:
    user.execute("SELECT pgqueue.open_session(label => 'x')")
    q = value(user, "SELECT pgqueue.queue_id('q')")
    user.execute(f'LISTEN "pgqueue:{q}"')
    assert rows(user, "SELECT queue_id, drained FROM pgqueue.arm(%s)", [q]) == [(q, True)]
    assert rows(user, "SELECT * FROM pgqueue.arm_again(%s)", [q]) == [(q, True)]
    user.execute("SELECT pgqueue.disarm(%s)", [[q]])
    assert value(user, "SELECT freed FROM pgqueue.sweep()") == value(user, "SELECT pgqueue.promote_all()") == 0
    assert rows(user, "SELECT * FROM pgqueue.next_due('{q}')") == [("q", None)]
    assert value(user, "SELECT pgqueue.undo_take(1)") == 0
    assert value(user, "SELECT pgqueue.forget_undo(1)") is True
    assert value(user, "SELECT pgqueue.close_session()") == 0


@pytest.mark.parametrize("view", ["tasks", "sessions", "stats", "nodes", "schema_version"])
def test_the_views_can_be_read(user: psycopg.Connection, view: str) -> None:
    put(user, "q")
    take(user, "q")
    assert len(rows(user, f"SELECT * FROM pgqueue.{view}")) == 1


def test_every_view_can_be_read_and_no_table(user: psycopg.Connection, db: psycopg.Connection) -> None:
    ours = "relnamespace = 'pgqueue'::regnamespace AND relkind IN ('v', 'r')"
    kinds = f"SELECT relname, relkind = 'v' FROM pg_class WHERE {ours}"
    for name, is_view in db.execute(kinds).fetchall():
        if not name.startswith("_") and name != "schema_version":
            reads = value(user, "SELECT has_table_privilege(%s, 'SELECT')", f"pgqueue.{name}")
            assert reads is is_view, name
            writes = value(
                user, "SELECT has_table_privilege(%s, 'INSERT, UPDATE, DELETE, TRUNCATE')", f"pgqueue.{name}"
            )
            assert writes is False, name
            if is_view:
                user.execute(f"SELECT * FROM pgqueue.{name}")


@pytest.mark.parametrize("table", TABLES)
def test_no_table_can_be_read_or_written(user: psycopg.Connection, db: psycopg.Connection, table: str) -> None:
    put(user, "q")
    take(user, "q")
    before = row(db, f"SELECT t::text FROM pgqueue.{table} t")
    assert before is not None
    changed = value(
        db,
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND attidentity = '' LIMIT 1",
        f"pgqueue.{table}",
    )
    update = f"UPDATE pgqueue.{table} SET {changed} = DEFAULT"
    for statement in [f"SELECT * FROM pgqueue.{table}", update, *(write.format(table, table) for write in WRITES)]:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            user.execute(statement)
    assert row(db, f"SELECT t::text FROM pgqueue.{table} t") == before


@pytest.mark.parametrize("helper", HELPERS)
def test_a_helper_called_directly_ends_at_the_tables(user: psycopg.Connection, helper: str) -> None:
    put(user, "q")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        user.execute(f"SELECT {helper}")


def test_who_was_granted_cannot_grant(db: psycopg.Connection, user: psycopg.Connection, connect: Connect) -> None:
    other = f"pgqueue_test_{uuid.uuid4().hex[:12]}"
    db.execute(f"CREATE ROLE {other}")
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            user.execute("SELECT pgqueue.grant_to(%s)", [other])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connect(options=f"-c role={other}").execute("SELECT pgqueue.put('q', '1')")
    finally:
        db.execute(f"DROP ROLE {other}")


def test_nothing_can_be_made_in_the_schema(user: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        user.execute("CREATE TABLE pgqueue.mine ()")


def test_without_grant_to_nothing_can_be_reached(connect: Connect, role: str) -> None:
    conn = connect(options=f"-c role={role}")
    for statement in ("SELECT pgqueue.put('q', '1')", "SELECT FROM pgqueue.tasks", "SELECT FROM pgqueue.sweep()"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(statement)


def test_a_search_path_of_the_callers_leads_nobody_astray(user: psycopg.Connection, db: psycopg.Connection) -> None:
    """Functions with the owner's rights must not call what a caller put in their way."""
    db.execute("CREATE SCHEMA trap; GRANT USAGE ON SCHEMA trap TO PUBLIC")
    body = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$"
    db.execute(f"CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz {body}")
    db.execute(f"CREATE FUNCTION trap.pg_try_advisory_lock(int, int) RETURNS boolean {body}")
    user.execute("SET search_path = trap, pg_catalog")
    id = put(user, "q", delay="0")
    assert take(user, "q")[0] == id


def test_a_client_works_with_no_more(dsn: str, granted: str) -> None:
    with pgqueue.Client(make_conninfo(dsn, options=f"-c role={granted}")) as client:
        queue = client.queue("q")
        queue.put("hello")
        task = queue.take(timeout=5)
        assert task is not None
        assert task.ack().state == "done"
        assert queue.take(timeout=0.05) is None


def test_a_client_without_rights_is_told_what_to_do(dsn: str, role: str) -> None:
    client = pgqueue.Client(make_conninfo(dsn, options=f"-c role={role}"))
    with client, pytest.raises(SetupError, match=rf"pgqueue\.grant_to\('{role}'\)"):
        client.queue("q").put(1)
