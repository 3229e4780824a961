"""What a role may call, it may call to the end: each function that runs with its caller's rights reaches only functions
that are granted with it.

The bodies are read, since PostgreSQL checks a right when a function is called: on a path that only contention takes, a
missing one is found by chance.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql
from roles import made
from statements import rows, value

pytestmark = pytest.mark.once  # rules of our own, the same on every server

Connect = Callable[..., psycopg.Connection]
VERBS = ("put", "take", "look", "manage", "share", "monitor")

#: For a verb: the granted functions and views that name a function which is not granted. What a SECURITY DEFINER
#: function calls, it calls as the owner; a view calls as its reader.
MISSING = r"""
    WITH granted AS (SELECT object FROM pgqueue._grantables(%(verb)s)),
    callers AS (
        SELECT p.proname AS name, CASE WHEN p.prosqlbody IS NULL THEN regexp_replace(p.prosrc, '--[^\n]*', '', 'g')
                                       ELSE pg_get_function_sqlbody(p.oid) END AS body
          FROM pg_proc p WHERE p.oid IN (SELECT object FROM granted) AND NOT p.prosecdef
         UNION ALL
        SELECT c.relname, pg_get_viewdef(c.oid) FROM pg_class c
         WHERE c.oid IN (SELECT object FROM granted) AND c.relkind = 'v')
    SELECT DISTINCT c.name, p.proname
      FROM callers c, regexp_matches(c.body, '\mpgqueue\.(\w+)\(', 'g') called
      JOIN pg_proc p ON p.pronamespace = 'pgqueue'::regnamespace AND p.proname = called[1]
     WHERE p.oid NOT IN (SELECT object FROM granted)
     ORDER BY 1, 2"""


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_granted_reaches_only_what_is_granted(db: psycopg.Connection, verb: str) -> None:
    assert db.execute(MISSING, {"verb": verb}).fetchall() == []


def test_what_reaches_further_is_found(db: psycopg.Connection) -> None:
    """A helper that arm calls on a path of its own; one that it only mentions; and one of a view."""
    db.execute("CREATE FUNCTION pgqueue._planted() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'")
    body = value(db, "SELECT pg_get_functiondef('pgqueue.arm'::regproc)")
    db.execute(body.replace("RAISE;", "PERFORM pgqueue._planted(); -- not pgqueue._mentioned()\nRAISE;"))
    db.execute("CREATE VIEW pgqueue.planted AS SELECT pgqueue._planted()")
    assert db.execute(MISSING, {"verb": "put"}).fetchall() == [("arm", "_planted"), ("planted", "_planted")]
    assert db.execute(MISSING, {"verb": "monitor"}).fetchall() == [("planted", "_planted")]


@pytest.mark.parametrize(
    ("call", "lock"),
    [
        ("arm(ARRAY [%s])", "_waiter_lock"),
        ("arm(ARRAY [%s], in_turn => true)", "_waiter_lock"),
        ("arm(ARRAY [%s])", "_hearing_lock"),
        ("await_ends(ARRAY [%s])", "_awaiting_lock"),
    ],
)
def test_a_role_that_waits_in_vain_is_told_for_whom(
    db: psycopg.Connection, dsn: str, stranger: Connect, call: str, lock: str
) -> None:
    holder = stranger()
    number = value(db, sql.SQL("SELECT pgqueue.{}()").format(sql.Identifier(lock)).as_string())
    rows(holder, "SELECT pg_advisory_lock(%s, g) FROM generate_series(0, 63) g", number)
    with made(dsn, db) as roles, psycopg.connect(roles.dsn(roles("put")), autocommit=True) as conn:
        queue = value(conn, "SELECT pgqueue.queue_id('q')")
        conn.execute("SET lock_timeout = '20ms'")
        with pytest.raises(psycopg.Error, match=f"backend {holder.info.backend_pid} of role") as raised:
            conn.execute(f"SELECT pgqueue.{call}", [queue])
    assert raised.value.sqlstate == "PQ007"
