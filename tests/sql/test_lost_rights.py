"""Rows of rights that are not there: no row's absence gives a right. And roles that are renamed, dropped or missing.

A restore on a server without a role is made here by writing the name of a role that does not exist:
tests/database/test_restored_roles.py makes real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import rights_calls
from psycopg import sql
from rights_victim import Victim, refused, roles, victim
from statements import put, rows, value

Connect = Any
VERBS = {"put", "take", "look", "manage"}


@pytest.fixture
def new_role(db: psycopg.Connection) -> Iterator[Callable[..., str]]:
    with roles(db) as new:
        yield new


@pytest.fixture(scope="module")
def aim(shared: str) -> Iterator[Victim]:
    with victim(shared) as made:
        yield made


def rename(db: psycopg.Connection, old: str, new: str) -> None:
    db.execute(sql.SQL("ALTER ROLE {} RENAME TO {}").format(sql.Identifier(old), sql.Identifier(new)))


def health(conn: psycopg.Connection, name: str) -> tuple[str, float, str]:
    ((status, number, detail),) = conn.execute(
        "SELECT status, value, detail FROM pgqueue.health WHERE name = %s", [name]
    ).fetchall()
    return status, number, detail


def about_queues() -> Iterator[tuple[str, str, rights_calls.Call]]:
    for name, calls in rights_calls.FUNCTIONS.items():
        for call in calls:
            if VERBS & set(call.gate.split()):
                for kind in ("user", "other", "monitor"):
                    yield name, kind, call


@pytest.mark.slow
@pytest.mark.once
def test_nobody_gets_more_when_all_privileges_are_lost(aim: Victim) -> None:
    """All the calls of the table of rights that are about queues."""
    refusals, got = 0, {}
    with aim.owner.transaction(force_rollback=True):
        aim.owner.execute("DELETE FROM pgqueue.privilege")
        aim.owner.execute("UPDATE pgqueue.queue SET restricted = false")
        aim.owner.execute("SELECT pgqueue.clean_up()")
        before = aim.rows()
        for name, kind, call in about_queues():
            with aim.owner.transaction(force_rollback=True):
                aim.owner.execute(f"SET LOCAL ROLE {aim.roles[kind]}".encode())
                try:
                    with aim.owner.transaction():
                        for one in call.statement.format(**aim.names).split("; "):
                            aim.owner.execute(one.encode())
                except psycopg.Error:
                    refusals += 1
                    continue
                aim.owner.execute("RESET ROLE")
                if changed := before - aim.rows():
                    got[name, kind] = sorted(changed)
    aim.owner.execute("SELECT pg_advisory_unlock_all(), set_config('pgqueue.session', '', false)")
    assert refusals > 100
    assert got == {}


@pytest.mark.parametrize(
    "grant",
    ["SELECT pgqueue.grant_to(%s, pattern => 'app.*')", "SELECT pgqueue.grant_to(%s)", "SELECT pgqueue.grant('q', %s)"],
    ids=["pattern", "all", "queue"],
)
def test_lost_privileges_close_what_they_opened(
    db: psycopg.Connection, connect: Connect, new_role: Callable[..., str], grant: str
) -> None:
    """The roles have EXECUTE still: the simpler rule, that no role is limited if no row says so, opened all."""
    put(db, "q")
    user = connect(options=f"-c role={new_role(grant)}")
    db.execute("TRUNCATE pgqueue.privilege")
    db.execute("SELECT pgqueue.clean_up()")
    put(db, "new")
    for queue in ("q", "new", "other"):
        refused(user, f"SELECT pgqueue.put('{queue}', '1')")
        if queue != "other":
            refused(user, f"SELECT pgqueue.take('{queue}')")


def test_execute_granted_by_hand_is_no_right(
    db: psycopg.Connection, connect: Connect, new_role: Callable[..., str]
) -> None:
    put(db, "q")
    role = new_role("SELECT pgqueue.grant_monitor(%s)")
    db.execute(f"GRANT EXECUTE ON FUNCTION pgqueue.put, pgqueue.take TO {role}".encode())
    db.execute("SELECT pgqueue.clean_up()")
    refused(connect(options=f"-c role={role}"), "SELECT pgqueue.put('q', '1')")


def test_a_role_that_the_server_lacks_closes_only_its_own(
    db: psycopg.Connection, connect: Connect, new_role: Callable[..., str]
) -> None:
    """It gets its rights by an upgrade after its creation; until then health names it, to the owner and to monitors."""
    put(db, "q")
    one, other = new_role(), new_role("SELECT pgqueue.grant('q', %s)")
    watcher = connect(options=f"-c role={new_role('SELECT pgqueue.grant_monitor(%s)')}")
    user = connect(options=f"-c role={one}")
    db.execute("UPDATE pgqueue.privilege SET role = 'pgqueue_test_gone' WHERE role = %s", [other])
    db.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(other)))
    db.execute("SELECT pgqueue.clean_up()")
    put(user, "q")
    for reader in (db, watcher):
        status, number, detail = health(reader, "lost_roles")
        assert (status, number) == ("warn", 1)
        assert detail.startswith("pgqueue_test_gone have privileges and cannot use them: CREATE ROLE")
    assert health(user, "lost_roles")[:2] == ("ok", 0)
    rename(db, other, "pgqueue_test_gone")
    try:
        new = connect(options="-c role=pgqueue_test_gone")
        refused(new, "SELECT pgqueue.put('q', '1')")
        db.execute("SELECT pgqueue._bind_roles(), pgqueue._set_guards()")  # as an upgrade does
        put(new, "q")
        refused(new, "SELECT pgqueue.put('p', '1')")
        assert health(db, "lost_roles") == ("ok", 0, "")
    finally:
        rename(db, "pgqueue_test_gone", other)


def test_health_names_roles_to_which_a_restore_could_not_grant(
    db: psycopg.Connection, new_role: Callable[..., str]
) -> None:
    role = new_role()
    db.execute(f"REVOKE USAGE ON SCHEMA pgqueue FROM {role}".encode())
    assert health(db, "lost_roles")[:2] == ("warn", 1)


THINGS = """
    SELECT pgqueue.create_node('/mine', '"s"');
    SELECT pgqueue.set_schedule('mine', 'q', '"s"', every => '1 h');
    SELECT pgqueue.create_queue('dead', dead_letter => '', dead_letter_key => 'q');
    SELECT pgqueue.declare_exchange('mine', 'topic');
    SELECT pgqueue.create_batch('mine')"""
OWN = [
    "SELECT pgqueue.set_node('/mine', '1')",
    "SELECT pgqueue.delete_schedule('mine')",
    "SELECT pgqueue.close_batch((SELECT id FROM pgqueue.batches))",
]


@pytest.mark.parametrize("cleaned", [False, True], ids=["before the next cleaning", "after it"])
@pytest.mark.parametrize("how", ["renamed", "dropped"])
def test_a_role_with_an_old_name_gets_nothing_of_it(
    db: psycopg.Connection, connect: Connect, new_role: Callable[..., str], how: str, cleaned: bool
) -> None:
    old = new_role()
    db.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(old)))
    for one in THINGS.split(";"):
        db.execute(one.encode())
    db.execute("RESET ROLE")
    if how == "renamed":
        rename(db, old, f"{old}_2")
    else:
        db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(old)))
    db.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(old)))
    try:
        if cleaned:
            db.execute("SELECT pgqueue.clean_up()")
        db.execute("SELECT pgqueue.grant_to(%s, '{put,take,share}')", [old])
        stranger = connect(options=f"-c role={old}")
        for statement in OWN[:2]:
            refused(stranger, statement)
        assert value(stranger, "SELECT count(data) FROM pgqueue.schedules") == 0
        assert value(stranger, "SELECT count(*) FROM pgqueue.batches") == 0
        assert value(stranger, "SELECT count(*) FROM pgqueue.privileges") == 3
        if how == "renamed":
            assert value(db, "SELECT DISTINCT role FROM pgqueue.schedules") == f"{old}_2"
            own = connect(options=f"-c role={old}_2")
            for statement in OWN:
                own.execute(statement.encode())
        assert value(db, "SELECT count(*) FROM pgqueue.queues WHERE role = %s", [old]) == 0
    finally:
        for name in (old, f"{old}_2") if how == "renamed" else ():
            db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))
        if how == "renamed":
            db.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(old)))  # which the fixture drops


def test_who_stays_keeps_what_it_had_through_a_change_of_options(
    db: psycopg.Connection, connect: Connect, new_role: Callable[..., str]
) -> None:
    """A column that is generated from a name must not be generated anew from an old one."""
    old = new_role()
    user = connect(options=f"-c role={old}")
    user.execute("SELECT pgqueue.create_queue('d', dead_letter => '', dead_letter_key => 'q')")
    user.execute("SELECT pgqueue.set_schedule('s', 'q', '1', every => '1 h')")
    before = """SELECT role_id, dead_letter_role_id, (SELECT role_id FROM pgqueue.schedule)
                  FROM pgqueue.queue WHERE name = 'd'"""
    found = rows(db, before)
    rename(db, old, f"{old}_2")
    try:
        for change in (
            "SELECT pgqueue.alter_queue('d', '{\"ttl\": \"1 h\"}')",
            "SELECT pgqueue.pause_queue('d', '1 h')",
            "SELECT pgqueue.rename_queue('d', 'd2'), pgqueue.rename_queue('d2', 'd')",
            "SELECT pgqueue.pause_schedule('s')",
            "SELECT pgqueue.resume_schedule('s')",
            "SELECT pgqueue.clean_up()",
        ):
            db.execute(change.encode())
            assert rows(db, before) == found
    finally:
        rename(db, f"{old}_2", old)
