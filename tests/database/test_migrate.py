"""Upgrades and downgrades of the schema, on a real server."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import catalogue
import psycopg
import pytest
import sqlalchemy
from checkout import CHECKOUT
from eventually import eventually
from psycopg.rows import dict_row
from servers import Server
from statements import put

from pgqueue import migrate
from pgqueue import sql as schema
from pgqueue.errors import SchemaError


@pytest.fixture
def empty(empty_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit to a database without the schema."""
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        yield connection


def run_files(connection: psycopg.Connection) -> None:
    """Run pgqueue/sql/*/* as a DBA with psql would."""
    for name in schema.FILES:
        connection.execute(schema.read(name).encode())


def add_task(connection: psycopg.Connection) -> None:
    connection.execute("INSERT INTO pgqueue.task (queue_id, data) VALUES (1, '{}')")


def alchemy(dsn: str) -> sqlalchemy.Connection:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), poolclass=sqlalchemy.NullPool
    )
    return engine.connect()


# --- the initial migration ---


def test_the_initial_migration_is_generated_from_the_tables() -> None:
    tool = CHECKOUT / "tools" / "migration.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- up ---


@pytest.mark.slow
def test_upgrading_from_nothing_equals_the_sql_files(db: psycopg.Connection, empty: psycopg.Connection) -> None:
    run_files(empty)
    assert catalogue.describe(db) == catalogue.describe(empty)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE pgqueue.take SET LOGGED",
        "ALTER TABLE pgqueue.task SET (fillfactor = 50)",
        "ALTER TABLE pgqueue.task ALTER priority SET DEFAULT 1",
        "ALTER TABLE pgqueue.task ALTER priority SET (n_distinct = 5)",
        "ALTER TABLE pgqueue.task ADD CHECK (priority < 1000)",
        "CREATE INDEX ON pgqueue.task (run_at)",
        "COMMENT ON TABLE pgqueue.task IS 'changed'",
        "GRANT SELECT ON pgqueue.task TO PUBLIC",
        "GRANT USAGE ON SCHEMA pgqueue TO PUBLIC",
        "CREATE FUNCTION pgqueue.more() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    ],
)
def test_the_comparison_sees_a_change(db: psycopg.Connection, change: str) -> None:
    before = catalogue.describe(db)
    db.execute(change.encode())
    assert catalogue.describe(db) != before


def test_the_newest_version_is_the_last_revision(dsn: str) -> None:
    status = migrate.status(dsn)
    assert (status.current, status.head, status.pending) == (schema.NEWEST, schema.NEWEST, ())
    assert str(status) == f"up to date (database: {schema.NEWEST}, library: {schema.NEWEST})"


@pytest.mark.slow
def test_up_again_puts_the_functions_back(db: psycopg.Connection, dsn: str) -> None:
    before = catalogue.describe(db)
    db.execute("ALTER ROUTINE pgqueue.put SET work_mem = '1MB'")
    assert catalogue.describe(db) != before
    migrate.up(dsn)
    assert catalogue.describe(db) == before


@pytest.mark.slow
def test_up_takes_a_uri_a_conninfo_and_the_environment(
    pg_server: Server, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(empty_dsn)
    uri = "postgresql://?" + "&".join(f"{key}={value}" for key, value in parts.items())
    for key, value in parts.items():
        monkeypatch.setenv({"dbname": "PGDATABASE"}.get(key, f"PG{key.upper()}"), str(value))
    migrate.up(uri)
    assert migrate.status(empty_dsn) == migrate.status(uri) == migrate.status() == migrate.status("")
    assert migrate.status().current == schema.NEWEST


def server_of(dsn: str) -> tuple[int, int]:
    """The number of a server, and its next id."""
    with psycopg.connect(dsn) as connection:
        query = "SELECT pgqueue.server_number(), (SELECT id FROM pgqueue.put('q', '1'))"
        (found,) = connection.execute(query).fetchall()
        connection.rollback()
        return found


def test_up_numbers_the_server(empty_dsn: str) -> None:
    migrate.up(empty_dsn, server=3)
    assert server_of(empty_dsn) == (3, (3 << 43) + 1)


@pytest.mark.slow
def test_up_keeps_the_number(empty_dsn: str) -> None:
    """Without an argument, and with the same one, so that a script may name it each time."""
    migrate.up(empty_dsn, server=3)
    server_of(empty_dsn)
    migrate.up(empty_dsn)
    migrate.up(empty_dsn, server=3)
    assert server_of(empty_dsn) == (3, (3 << 43) + 2)


@pytest.mark.slow
def test_up_numbers_a_server_that_has_the_schema(db: psycopg.Connection, dsn: str) -> None:
    migrate.up(dsn, server=1023)
    assert server_of(dsn) == (1023, (1023 << 43) + 1)


@pytest.mark.slow
def test_up_refuses_another_number(empty_dsn: str) -> None:
    migrate.up(empty_dsn, server=3)
    with pytest.raises(SchemaError, match="this is server 3 already, so it cannot become server 4"):
        migrate.up(empty_dsn, server=4)
    assert server_of(empty_dsn)[0] == 3


@pytest.mark.slow
def test_up_refuses_to_number_a_server_that_has_put_tasks(db: psycopg.Connection, dsn: str) -> None:
    put(db, "q")
    with pytest.raises(SchemaError, match="has put tasks, the last with the id 1, so it cannot become server 3"):
        migrate.up(dsn, server=3)
    assert server_of(dsn) == (0, 2)


@pytest.mark.parametrize("number", [0, -1, 1024])
def test_up_refuses_a_number_that_no_server_has(empty_dsn: str, number: int) -> None:
    with pytest.raises(ValueError, match=f"the number of a server is 1 to 1023, not {number}"):
        migrate.up(empty_dsn, server=number)
    assert migrate.status(empty_dsn).current is None


@pytest.mark.slow
def test_down_forgets_the_number(empty_dsn: str) -> None:
    migrate.up(empty_dsn, server=3)
    migrate.down(empty_dsn, revision="base")
    migrate.up(empty_dsn)
    assert server_of(empty_dsn) == (0, 1)


@pytest.mark.slow
def test_four_at_once(empty_dsn: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(migrate.up, empty_dsn) for _ in range(4)]:
            future.result()
    assert migrate.status(empty_dsn).current == schema.NEWEST


def test_a_failing_upgrade_leaves_nothing(
    empty: psycopg.Connection, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "read", lambda name: "SELECT 1 / 0")
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate.up(empty_dsn)
    assert catalogue.describe(empty) == []


def test_a_locked_table_is_not_waited_for_long(
    dsn: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT", "50ms")
    with db.transaction():
        db.execute("LOCK TABLE pgqueue.task")
        with pytest.raises(SchemaError, match="stayed locked, so nothing was changed; try again"):
            migrate.down(dsn)


def test_owning_the_schema_is_enough(empty: psycopg.Connection) -> None:
    """A DBA may make the schema and give away no right to make others."""
    with empty.transaction(force_rollback=True):
        empty.execute("CREATE ROLE pgqueue_test_owner")
        empty.execute("CREATE SCHEMA pgqueue AUTHORIZATION pgqueue_test_owner")
        empty.execute("CREATE SCHEMA pgqueue_citus AUTHORIZATION pgqueue_test_owner")  # needed where Citus is
        empty.execute("SET LOCAL ROLE pgqueue_test_owner")
        migrate.up(connection=empty)
        assert migrate.status(connection=empty).state == "up to date"


# --- in the caller's transaction ---


@pytest.fixture(params=["psycopg", "sqlalchemy", "psycopg with dict rows"])
def caller(request: pytest.FixtureRequest, empty_dsn: str) -> Iterator[Any]:
    """A connection without autocommit, on which nothing has run yet."""
    connection: Any
    if request.param == "sqlalchemy":
        connection = alchemy(empty_dsn)
    elif request.param == "psycopg":
        connection = psycopg.connect(empty_dsn)
    else:
        connection = psycopg.connect(empty_dsn, row_factory=dict_row)
    with connection:
        yield connection


@pytest.mark.slow
def test_the_caller_can_roll_back(caller: Any, empty: psycopg.Connection) -> None:
    migrate.up(connection=caller)
    assert catalogue.describe(empty) == []
    caller.rollback()
    assert catalogue.describe(empty) == []
    assert migrate.status(connection=caller).state == "not installed"


@pytest.mark.slow
def test_the_caller_can_commit(caller: Any, empty: psycopg.Connection) -> None:
    migrate.up(connection=caller)
    assert migrate.status(connection=caller).state == "up to date"
    caller.commit()
    assert catalogue.describe(empty) != []
    migrate.down(connection=caller)
    caller.rollback()
    assert migrate.status(connection=caller).state == "up to date"


@pytest.mark.slow
def test_the_caller_keeps_an_outer_transaction(empty_dsn: str, empty: psycopg.Connection) -> None:
    """Work done before stays part of it: left to itself, SQLAlchemy rolls back each new connection."""
    with psycopg.connect(empty_dsn) as connection:
        connection.execute("CREATE TABLE mine ()")
        migrate.up(connection=connection)
        connection.execute("SELECT FROM mine")
        notices: list[str] = []
        connection.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
        connection.execute("DO $$ BEGIN RAISE NOTICE 'still mine'; END $$")
        assert notices == ["still mine"]
    assert empty.execute("SELECT to_regclass('mine') IS NOT NULL").fetchone() == (True,)


@pytest.mark.slow
def test_autocommit_gets_a_transaction(empty: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "read", lambda name: "SELECT 1 / 0")
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate.up(connection=empty)
    assert catalogue.describe(empty) == []
    migrate.up(connection=empty)
    assert migrate.status(connection=empty).state == "up to date"


def test_a_block_in_autocommit_is_kept(empty: psycopg.Connection) -> None:
    with empty.transaction(force_rollback=True):
        migrate.up(connection=empty)
    assert catalogue.describe(empty) == []


def test_what_cannot_be_callered_is_refused(empty_dsn: str) -> None:
    with pytest.raises(TypeError, match="not str"):
        migrate.up(connection=empty_dsn)  # type: ignore[arg-type]
    with (
        alchemy(empty_dsn).execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(ValueError, match="AUTOCOMMIT"),
    ):
        migrate.up(connection=connection)


@pytest.mark.slow
def test_another_migration_is_waited_for(empty_dsn: str) -> None:
    second = threading.Thread(target=migrate.up, args=[empty_dsn])
    with psycopg.connect(empty_dsn) as first:
        migrate.up(connection=first)
        second.start()
        second.join(0.5)
        assert second.is_alive()
        first.commit()
    second.join(30)
    assert migrate.status(empty_dsn).state == "up to date"


@pytest.mark.slow
def test_a_migration_sees_the_commit_that_it_has_waited_for(empty_dsn: str, empty: psycopg.Connection) -> None:
    """Also where transactions have one snapshot by default."""
    empty.execute(f"ALTER DATABASE {empty.info.dbname} SET default_transaction_isolation = 'repeatable read'")
    asking = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE %s"
    with ThreadPoolExecutor(1) as pool, psycopg.connect(empty_dsn) as first:
        migrate.up(connection=first)
        second = pool.submit(migrate.up, empty_dsn)
        eventually(lambda: empty.execute(asking, ["SELECT pg_catalog.pg_try_advisory_xact_lock%"]).fetchone() == (1,))
        first.commit()
        second.result(30)
    assert migrate.status(empty_dsn).state == "up to date"


# --- down ---


def test_down_removes_everything_but_the_version_table(db: psycopg.Connection, dsn: str) -> None:
    # What an older or a newer library may have left: the file that drops them has never heard of these.
    db.execute("CREATE TYPE pgqueue.mood AS ENUM ('a')")
    db.execute("""
        CREATE FUNCTION pgqueue.older(pgqueue.mood) RETURNS SETOF pgqueue.task LANGUAGE sql
        BEGIN ATOMIC SELECT * FROM pgqueue.task; END""")
    db.execute("CREATE VIEW pgqueue.newer AS SELECT id FROM pgqueue.older('a')")
    db.execute("CREATE AGGREGATE pgqueue.total(int) (sfunc = int4pl, stype = int)")
    db.execute("CREATE DOMAIN pgqueue.name AS text")
    migrate.down(dsn, revision="base")
    assert [line for line in catalogue.describe(db) if not line.startswith("schema ")] == []
    assert db.execute("TABLE pgqueue.schema_version").fetchall() == []
    assert migrate.status(dsn).state == "not installed"


@pytest.mark.slow
def test_down_and_up_again(db: psycopg.Connection, dsn: str) -> None:
    before = catalogue.describe(db)
    migrate.down(dsn, revision="base")
    migrate.up(dsn)
    assert catalogue.describe(db) == before


def test_down_refuses_to_lose_tasks(db: psycopg.Connection, dsn: str) -> None:
    add_task(db)
    with pytest.raises(SchemaError, match=r"still hold 1 tasks.*\n.*--force"):
        migrate.down(dsn, revision="base")
    assert migrate.status(dsn).state == "up to date"
    migrate.down(dsn, revision="base", force=True)
    assert migrate.status(dsn).state == "not installed"


@pytest.mark.slow
def test_force_does_not_outlive_its_call(db: psycopg.Connection, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        migrate.down(connection=connection, force=True)
        migrate.up(connection=connection)
        add_task(connection)
        with pytest.raises(SchemaError, match="still hold"):
            migrate.down(connection=connection)


def test_down_refuses_to_take_others_along(db: psycopg.Connection, dsn: str) -> None:
    db.execute("CREATE VIEW backlog AS SELECT count(*) FROM pgqueue.task")
    with pytest.raises(SchemaError, match=r"else depends on the pgqueue schema\nview public\.backlog depends on"):
        migrate.down(dsn, revision="base")
    db.execute("TABLE backlog")


def test_there_is_nothing_below_base(empty_dsn: str) -> None:
    with pytest.raises(SchemaError):
        migrate.down(empty_dsn)


# --- a database of a later library ---


def test_a_newer_database_is_left_alone(db: psycopg.Connection, dsn: str) -> None:
    db.execute("UPDATE pgqueue.schema_version SET version_num = '9999'")
    before = catalogue.describe(db)
    assert migrate.status(dsn).state == "newer than this library"
    for change in (migrate.up, migrate.down):
        with pytest.raises(SchemaError, match="upgrade the library"):
            change(dsn)
    assert catalogue.describe(db) == before


def test_anyone_who_may_use_the_schema_can_read_its_version(db: psycopg.Connection) -> None:
    with db.transaction(force_rollback=True):
        db.execute("CREATE ROLE pgqueue_test_reader")
        db.execute("GRANT USAGE ON SCHEMA pgqueue TO pgqueue_test_reader")
        db.execute("SET ROLE pgqueue_test_reader")
        rows = db.execute(schema.VERSIONS).fetchall()
    assert schema.mismatch(row[0] for row in rows) is None


# --- offline ---


@pytest.mark.slow
def test_the_script_does_what_up_does(db: psycopg.Connection, empty: psycopg.Connection) -> None:
    empty.execute(migrate.sql().encode())
    assert catalogue.describe(empty) == catalogue.describe(db)
    assert empty.execute(schema.VERSIONS).fetchall() == [(schema.NEWEST,)]


@pytest.mark.slow
def test_the_scripts_go_down_and_up_again(db: psycopg.Connection) -> None:
    before = catalogue.describe(db)
    db.execute(migrate.sql(f"{schema.NEWEST}:base", down=True).encode())
    assert migrate.status(connection=db).state == "not installed"
    db.execute(migrate.sql().encode())
    assert catalogue.describe(db) == before


def test_the_script_is_not_rewritten(monkeypatch: pytest.MonkeyPatch, empty: psycopg.Connection) -> None:
    """Nothing may read %, :name or $$ as its own on the way."""
    body = r"""
        CREATE OR REPLACE FUNCTION pgqueue.odd(a int[]) RETURNS text LANGUAGE plpgsql AS $$
        BEGIN RETURN format('%s %% :name %I HH24:MI \: \\ {x}', a[1:2]::text, 'q'); END $$;"""
    monkeypatch.setattr(schema, "read", lambda name: body)
    call = "SELECT pgqueue.odd('{1,2,3}')"
    expected = [(r"{1,2} % :name q HH24:MI \: \\ {x}",)]
    assert body.strip() in migrate.sql()
    empty.execute(migrate.sql().encode())
    assert empty.execute(call).fetchall() == expected
    migrate.down(connection=empty)
    migrate.up(connection=empty)
    assert empty.execute(call).fetchall() == expected
