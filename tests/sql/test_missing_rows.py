"""The absence of a row gives no right: each table in turn is emptied, as a crash, a restore or a mistake may leave it.

Then each call of the table of rights (rights_calls.py) that is not allowed changes nothing of the victim's and shows
nothing of it, as before. What the periodic work of the owner changes in that state is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
import rights_calls
from altered import replaced
from rights_victim import HOLDER, SECRET, SHARED, Victim, roles, victim
from statements import rows

from pgqueue import sql as schema

pytestmark = pytest.mark.once  # rules of our own, the same on every server

TABLES = sorted(
    name
    for file in schema.TABLES
    for name in re.findall(r"CREATE (?:UNLOGGED )?TABLE pgqueue\.(\w+)", schema.read(file))
)
KINDS = ("user", "other")  # each function is open to one of them
WORK = "SELECT pgqueue.promote_all(), pgqueue.sweep(), pgqueue.clean_up(), pgqueue.tick()"

#: What is open without a row, as docs/security.md says: what it protects is the row itself.
OPEN = {
    "binding": ("delete_exchange",),  # an exchange to which no restricted queue is bound is for all that share
    # The name of a queue that the owner of the schema deleted is open, and a schedule is about a name.
    "queue": ("schedule",),
}


@pytest.fixture(scope="module")
def aim(shared: str) -> Iterator[Victim]:
    with victim(shared) as made:
        yield made


@contextmanager
def emptied(aim: Victim, *tables: str) -> Iterator[None]:
    """A transaction in which the tables have no rows, and nothing that hangs on these has gone with them."""
    with aim.owner.transaction(force_rollback=True):
        aim.owner.execute("SET LOCAL session_replication_role = replica")
        for table in tables:
            aim.owner.execute(f"DELETE FROM pgqueue.{table}")
        aim.owner.execute("SET LOCAL session_replication_role = origin")
        aim.owner.execute("SET LOCAL lock_timeout = '1 s'")
        aim.owner.execute("SET LOCAL statement_timeout = '20 s'")
        yield


def gained(aim: Victim, only: str = "") -> dict[str, str]:
    """What calls that are not allowed give, by the kind of role and the call."""
    found = dict[str, str]()
    before = aim.rows()
    at_once = worked(aim, before)  # in a transaction of two seconds most of the work ends
    for table in (rights_calls.FUNCTIONS, rights_calls.OWNED, rights_calls.VIEWS):
        for name, calls in table.items():
            for call in calls if only in name else ():
                for kind in KINDS:
                    if call.passes(kind) and call.expected(kind) != "allowed":
                        shows, changed = outcome(aim, kind, call.statement.format(**aim.names), before)
                        if more := changed - at_once:
                            more -= worked(aim, before)  # more is due by now
                        if shows or more:
                            found[f"{kind}: {call.statement}"] = f"{shows} {sorted(more)[:3]}"
    return found


def worked(aim: Victim, before: set[str]) -> set[str]:
    """The rows that the periodic work of the owner changes if it is done now."""
    with aim.owner.transaction(force_rollback=True):
        aim.owner.execute(WORK)
        return before - aim.rows()


def outcome(aim: Victim, kind: str, statement: str, before: set[str]) -> tuple[str, set[str]]:
    """What the call shows of the victim, and which rows it changes."""
    owner = aim.owner
    with owner.transaction(force_rollback=True):
        owner.execute(f"SET LOCAL ROLE {aim.roles[kind]}")
        try:
            with owner.transaction():
                for one in statement.split("; "):
                    answer = str(owner.execute(one).fetchall())
            changed = True
        except psycopg.Error as error:
            answer, changed = f"{error.diag.message_primary} {error.diag.message_detail}", False
        owner.execute("RESET ROLE; SELECT pg_advisory_unlock_all()")
        marks = [mark for mark in (SECRET, HOLDER, SHARED) if mark in answer]
        return answer if marks else "", before - aim.rows() if changed else set()


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_without_the_rows_of_a_table_no_call_gives_more(aim: Victim, table: str) -> None:
    with emptied(aim, table):
        found = gained(aim)
    assert {call: got for call, got in found.items() if not any(name in call for name in OPEN.get(table, ()))} == {}


@pytest.mark.parametrize(
    ("table", "function", "old", "new", "name"),
    [
        ("privilege", "_may", "BEGIN", "BEGIN IF NOT EXISTS (SELECT FROM pgqueue.privilege) THEN RETURN true; END IF;",
         "cancel"),
        ("session", "_named_session", "WHEN is_mine THEN", "WHEN is_mine IS NOT FALSE THEN", "finish"),
        ("queue", "_check_guarded", "IS NOT FALSE", "IS TRUE", "delete"),
    ],
)  # fmt: skip
def test_a_missing_row_that_gives_a_right_is_found(
    aim: Victim, table: str, function: str, old: str, new: str, name: str
) -> None:
    with replaced(aim.owner, function, old, new), emptied(aim, table):
        assert gained(aim, name) != {}


def test_without_its_quota_a_role_makes_nothing_until_the_owner_sets_it(db: psycopg.Connection) -> None:
    made = {
        "queues": "SELECT pgqueue.create_queue('q')",
        "exchanges": "SELECT pgqueue.declare_exchange('e')",
        "batches": "SELECT pgqueue.create_batch('b')",
        "nodes": "SELECT pgqueue.create_node('/n')",
        "bindings": "SELECT pgqueue.bind('q', 'e')",
        "schedules": "SELECT pgqueue.set_schedule('s', 'q', every => '1 h')",
        "sessions": "SELECT pgqueue.open_session(parent => pgqueue.open_session())",
        "payloads": "SELECT pgqueue.post('c', repeat('x', 1000001))",
    }
    assert set(made) == {what for (what,) in rows(db, "SELECT what FROM pgqueue.quotas")}
    db.execute("DELETE FROM pgqueue.quota")
    with roles(db) as new:
        role = new()
        for what, call in made.items():
            db.execute(f"SET ROLE {role}")
            with pytest.raises(psycopg.Error, match=f"has none of {what}") as caught:
                db.execute(call)
            assert caught.value.sqlstate == "PQ006"
            db.execute("RESET ROLE")
            assert caught.value.diag.message_hint is not None
            db.execute("SELECT " + caught.value.diag.message_hint.partition("SELECT ")[2])
            db.execute(f"SET ROLE {role}")
            db.execute(call)
        db.execute("RESET ROLE")
