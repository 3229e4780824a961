"""What the extension plpgsql_check finds in the functions: nothing, where the server under test has it.

PostgreSQL itself reads the SQL in a function's body when it is executed, so a name that does not exist is found only on
the path that needs it.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

# Warnings that stand, each with the reason.
STANDING = {
    ("set_node", 'unmodified OUT variable "path"'): "an INOUT parameter: a row of the node's data has its path as well",
    ("_follow_tasks", 'unused parameter "queue_id"'): "the signature of the hook that _follow calls",
}

# Performance warnings are left out: they ask for STABLE wherever a function only reads, but many read twice, and the
# second time what was committed meanwhile. Only a VOLATILE function has a new snapshot for each statement.
CHECK = """
    SELECT p.proname, c.message
      FROM pg_proc p
      JOIN pg_language l ON l.oid = p.prolang AND l.lanname = 'plpgsql'
      LEFT JOIN pg_trigger t ON t.tgfoid = p.oid AND NOT t.tgisinternal
     CROSS JOIN LATERAL plpgsql_check_function_tb(
               p.oid, coalesce(t.tgrelid, 0), oldtable => t.tgoldtable, newtable => t.tgnewtable,
               performance_warnings => false) c
     WHERE p.pronamespace = 'pgqueue'::regnamespace
     ORDER BY 1, 2"""


@pytest.fixture
def checked(db: psycopg.Connection) -> psycopg.Connection:
    """A database with the extension."""
    if not db.execute("SELECT FROM pg_available_extensions WHERE name = 'plpgsql_check'").rowcount:
        pytest.skip("the server has no extension plpgsql_check (Debian: postgresql-15-plpgsql-check)")
    db.execute("CREATE EXTENSION plpgsql_check")
    return db


def findings(conn: psycopg.Connection) -> set[tuple[Any, ...]]:
    return set(conn.execute(CHECK).fetchall())


def test_no_function_has_a_warning(checked: psycopg.Connection) -> None:
    assert sorted(findings(checked) ^ set(STANDING)) == []


def test_a_name_that_does_not_exist_is_found(checked: psycopg.Connection) -> None:
    checked.execute(
        "CREATE FUNCTION pgqueue.wrong() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN pgqueue._helper(1); END'"
    )
    assert {name for name, _ in findings(checked) - set(STANDING)} == {"wrong"}
