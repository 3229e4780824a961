"""The search_path of a migration: its own while it runs, the caller's again at its end."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy

from pgqueue import migrate
from pgqueue.errors import SchemaError


@pytest.fixture
def lent(empty_dsn: str) -> Iterator[psycopg.Connection]:
    """A caller's connection in autocommit."""
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        yield connection


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["SET", "SET LOCAL"])
def test_a_lent_connection_keeps_its_search_path(lent: psycopg.Connection, scope: str) -> None:
    with lent.transaction():
        lent.execute(f'{scope} search_path = "it\'s", public'.encode())
        migrate.up(connection=lent)
        migrate.down(connection=lent, revision="base")
        with pytest.raises(SchemaError):
            migrate.down(connection=lent)
        assert lent.execute("SHOW search_path").fetchone() == ('"it\'s", public',)
    kept = '"it\'s", public' if scope == "SET" else '"$user", public'
    assert lent.execute("SHOW search_path").fetchone() == (kept,)


@pytest.mark.slow
def test_a_lent_connection_of_sqlalchemy_keeps_its_search_path(empty_dsn: str) -> None:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(empty_dsn), poolclass=sqlalchemy.NullPool
    )
    with engine.connect() as connection:
        connection.exec_driver_sql("SET search_path = public")
        migrate.up(connection=connection)
        assert connection.exec_driver_sql("SHOW search_path").scalar() == "public"


def test_after_a_failure_the_rollback_gives_the_search_path_back(lent: psycopg.Connection) -> None:
    lent.execute("CREATE SCHEMA pgqueue; CREATE TABLE pgqueue.queue ()")
    with pytest.raises(psycopg.errors.DuplicateTable):
        migrate.up(connection=lent)
    assert lent.execute("SHOW search_path").fetchone() == ('"$user", public',)


def test_the_script_pins_its_search_path_first() -> None:
    for script in (migrate.sql(), migrate.sql("0001:base", down=True)):
        begin, keep, pin = [line for line in script.splitlines() if line][:3]
        assert (begin, pin) == ("BEGIN;", "SET LOCAL search_path = pg_catalog, pg_temp;")
        assert keep.startswith("SELECT pg_catalog.set_config('pgqueue.path', pg_catalog.current_setting('search_path')")


@pytest.mark.slow
def test_the_script_gives_the_search_path_back(lent: psycopg.Connection) -> None:
    """In a transaction that goes on: docs/deployment/alembic.md has the script in a revision of the application's."""
    with lent.transaction():
        lent.execute('SET LOCAL search_path = "it\'s", public')
        for script in (migrate.sql(), migrate.sql("0001:base", down=True)):
            lent.execute(re.sub("^(BEGIN|COMMIT);$", "", script, flags=re.MULTILINE).encode())
            assert lent.execute("SHOW search_path").fetchone() == ('"it\'s", public',)
