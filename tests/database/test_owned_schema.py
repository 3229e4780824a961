"""Whose the schema is: a migration refuses a schema, and objects in it, that another role made."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from pgqueue import migrate
from pgqueue.errors import SchemaError

PLANTED = {
    "function": "CREATE FUNCTION pgqueue._caller() RETURNS name LANGUAGE sql STABLE AS $$SELECT 'postgres'::name$$",
    "table": "CREATE TABLE pgqueue.note (x text)",
    "type": "CREATE TYPE pgqueue.kind AS ENUM ('a')",
    "operator": "CREATE OPERATOR pgqueue.<< (FUNCTION = pg_catalog.int4lt, LEFTARG = int4, RIGHTARG = int4)",
    "collation": 'CREATE COLLATION pgqueue.c FROM pg_catalog."C"',
}


@pytest.fixture
def empty(empty_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit to a database without the schema."""
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def planter(empty: psycopg.Connection) -> Iterator[str]:
    """A role that may create in the database."""
    role = f"pgqueue_test_{uuid.uuid4().hex[:12]}"
    empty.execute(f"CREATE ROLE {role}".encode())
    empty.execute(f"GRANT CREATE ON DATABASE {empty.info.dbname} TO {role}".encode())
    yield role
    empty.execute("DROP SCHEMA IF EXISTS pgqueue_citus CASCADE")  # in DROP OWNED Citus would wait for itself
    empty.execute(f"DROP OWNED BY {role} CASCADE".encode())
    empty.execute(f"DROP ROLE {role}".encode())


def test_a_strangers_schema_is_refused(empty: psycopg.Connection, planter: str) -> None:
    """Its maker could change its functions later, and a superuser would run them."""
    empty.execute(f"SET ROLE {planter}; CREATE SCHEMA pgqueue; {PLANTED['function']}; RESET ROLE".encode())
    with pytest.raises(SchemaError, match=f"the schema pgqueue belongs to role {planter}, and not to postgres"):
        migrate.up(connection=empty)


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize("installed", [False, True], ids=["before", "after"])
def test_a_strangers_object_in_the_schema_is_refused(
    empty: psycopg.Connection, planter: str, planted: str, installed: bool
) -> None:
    """By the first installation, and by each upgrade."""
    if installed:
        migrate.up(connection=empty)
        empty.execute("DROP FUNCTION IF EXISTS pgqueue._caller() CASCADE")
    else:
        empty.execute("CREATE SCHEMA pgqueue")
    empty.execute(f"GRANT USAGE, CREATE ON SCHEMA pgqueue TO {planter}".encode())
    empty.execute(f"SET ROLE {planter}; {planted}; RESET ROLE".encode())
    with pytest.raises(SchemaError, match=f"belongs to role {planter}, and the schema to postgres"):
        migrate.up(connection=empty)


@pytest.mark.slow
def test_a_superuser_does_not_upgrade_for_the_owner(empty: psycopg.Connection, planter: str) -> None:
    empty.execute(f"SET ROLE {planter}".encode())
    migrate.up(connection=empty)
    empty.execute("RESET ROLE")
    with pytest.raises(SchemaError, match=f"belongs to role {planter}, and not to postgres, which migrates it"):
        migrate.up(connection=empty)


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_health_names_a_strangers_object_in_the_schema(empty: psycopg.Connection, planter: str, planted: str) -> None:
    """Before the next upgrade refuses it."""
    migrate.up(connection=empty)
    health = "SELECT status, detail FROM pgqueue.health WHERE name = 'strange_objects'"
    assert empty.execute(health).fetchone() == ("ok", "")
    empty.execute(f"GRANT USAGE, CREATE ON SCHEMA pgqueue TO {planter}".encode())
    if "_caller" in planted:
        planted = planted.replace("_caller()", "_caller(int)")
    empty.execute(f"SET ROLE {planter}; {planted}; RESET ROLE".encode())
    status, detail = empty.execute(health).fetchone() or ("", "")
    assert status == "bad"
    assert f" of {planter}" in detail
    assert detail.endswith(": look at what it does, and drop it")
