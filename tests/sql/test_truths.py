"""A condition is true or false: a NULL holds neither for `IF x` nor for `IF NOT x`, so a caller cannot rely on either.

Every function of the schema that returns a boolean is called with NULL, and with values that exist and that do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import psycopg
import pytest
from arguing import SERVERS, prepare
from psycopg import sql
from statements import rows, value

pytestmark = pytest.mark.once  # rules of our own, the same on every server

#: What is tried for each type of argument, besides NULL. A type that is missing here fails the test.
TRIED = {
    "integer": ["0", "(SELECT min(s.id) FROM pgqueue.session s)", "(SELECT min(q.id) FROM pgqueue.queue q)"],
    "bigint": ["0", "(SELECT min(t.id) FROM pgqueue.task t)"],
    "bigint[]": ["'{}'", "(SELECT array_agg(t.id) FROM pgqueue.task t)"],
    "text": ["''", "'q'", "'e'", "'take'", "'topic'"],
    "boolean": ["true", "false"],
    "oid": ["0::oid", "(SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user)"],
    "tid[]": ["'{}'", """'{"(0,1)"}'"""],
    "jsonb": ["'[]'", f"'{SERVERS}'", """'[{"queue": "q", "reason": "expired"}]'"""],
    "xid8": ["'3'", "pg_current_xact_id()"],
    "interval": ["'1 s'"],
    "uuid": ["(SELECT c.id FROM pgqueue.cluster c)"],
    "pgqueue.fold": ["pgqueue._last_fold()"],
    "double precision": ["1"],
    "timestamp with time zone": ["now()"],
    "pgqueue.task": ["(SELECT t FROM pgqueue.task t ORDER BY t.id LIMIT 1)"],
    "pgqueue.queue": ["(SELECT q FROM pgqueue.queue q ORDER BY q.id LIMIT 1)"],
    "pgqueue.schedule": ["(SELECT s FROM pgqueue.schedule s ORDER BY s.name LIMIT 1)"],
    "pgqueue.task_limit": ["(SELECT l FROM pgqueue.task_limit l LIMIT 1)"],
}
#: A column of a table as it is: NULL until the batch has ended.
AS_IT_IS = ("_seen_batches", "failed")
MOST = 300  # calls of one function
#: Names of tables that are written into the function's statement by its callers.
LITERAL = {"_can_write"}


@pytest.fixture(scope="module")
def conn(shared: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(shared, autocommit=True) as connection:
        prepare(connection)
        yield connection


def calls(types: list[str]) -> Iterator[str]:
    """Arguments, the first ones NULL in turn: with many arguments a sample, in which each value of each occurs."""
    grid = [[f"NULL::{type}", *(f"{tried}::{type}" for tried in TRIED[type])] for type in types]
    every = list(itertools.product(*grid))
    step = max(1, -(-len(every) // MOST))
    while step > 1 and any(step % len(values) == 0 for values in grid):
        step += 1
    for arguments in every[::step]:
        yield ", ".join(arguments)


@pytest.mark.slow
def test_a_function_that_returns_a_boolean_never_returns_null(conn: psycopg.Connection) -> None:
    found = rows(
        conn,
        "SELECT p.proname, ARRAY (SELECT format_type(t.type, NULL) FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY"
        " t(type, n) ORDER BY t.n) FROM pg_proc p WHERE p.pronamespace = 'pgqueue'::regnamespace"
        " AND p.prorettype = 'boolean'::regtype AND NOT p.proretset ORDER BY p.proname",
    )
    unknown, refused = [], []
    for name, types in found:
        answers = 0
        for arguments in calls(types) if name not in LITERAL else ["'task'"]:
            try:
                with conn.transaction(force_rollback=True):
                    # The text of a name and of values above: nothing that a caller of the tests gives.
                    if value(conn, f"SELECT pgqueue.{name}({arguments})") is None:  # type: ignore[arg-type]
                        unknown.append(f"{name}({arguments})")
                    answers += 1
            except psycopg.Error:
                continue  # misuse is refused: tests/sql/test_arguments.py says how
        if not answers:
            refused.append(name)
    assert len(found) > 40
    assert unknown == []
    assert refused == []


def test_no_view_has_a_boolean_that_is_null(conn: psycopg.Connection) -> None:
    columns = rows(
        conn,
        "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE c.relnamespace = 'pgqueue'::regnamespace AND c.relkind = 'v' AND a.atttypid = 'boolean'::regtype"
        " AND a.attnum > 0",
    )
    assert columns
    for view, column in set(columns) - {AS_IT_IS}:
        query = sql.SQL("SELECT count(*) FROM pgqueue.{} WHERE {} IS NULL")
        ((unknown,),) = conn.execute(query.format(sql.Identifier(view), sql.Identifier(column))).fetchall()
        assert (view, column, unknown) == (view, column, 0)


def test_a_role_that_is_gone_may_nothing(conn: psycopg.Connection) -> None:
    queue = "(SELECT min(q.id) FROM pgqueue.queue q)"
    assert value(conn, f"SELECT pgqueue._may({queue}, 'put', NULL)") is False
    assert value(conn, "SELECT pgqueue._may_share(NULL)") is False
