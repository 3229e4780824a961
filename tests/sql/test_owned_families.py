"""Nodes, exchanges of a session and claims belong to the role that made them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from owning import Roles, Victim, belongings, make_victim, three_roles
from statements import column, row, rows, value

pytestmark = pytest.mark.once  # rules of our own, the same on every server

Connect = Any


@pytest.fixture
def roles(db: psycopg.Connection) -> Iterator[Roles]:
    with three_roles(db) as made:
        yield made


@pytest.fixture
def victim(connect: Connect, roles: Roles) -> Victim:
    return make_victim(connect, roles.victim)


@pytest.fixture
def other(connect: Connect, roles: Roles, victim: Victim) -> psycopg.Connection:
    conn: psycopg.Connection = connect(options=f"-c role={roles.other}")
    return conn


@pytest.fixture(params=["victim", "member", "owner"])
def allowed(request: pytest.FixtureRequest, connect: Connect, roles: Roles, victim: Victim) -> psycopg.Connection:
    """A connection of each role that has the victim's rights."""
    options = {} if request.param == "owner" else {"options": f"-c role={getattr(roles, request.param)}"}
    conn: psycopg.Connection = connect(**options)
    return conn


def refused(conn: psycopg.Connection, statement: str, *args: Any) -> str:
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
        conn.execute(statement, args)
    return str(caught.value.diag.message_primary)


# --- nodes


@pytest.mark.parametrize("path", ["/node", "/ephemeral"])
@pytest.mark.parametrize(
    "call", ["set_node(%s, '1')", "set_node(%s, '1', 99)", "delete_node(%s)", "delete_node(%s, 99)"]
)
def test_another_roles_node_is_neither_set_nor_deleted(
    db: psycopg.Connection, other: psycopg.Connection, victim: Victim, path: str, call: str
) -> None:
    before = belongings(db)
    assert refused(other, f"SELECT pgqueue.{call}", path) == f'node "{path}" belongs to role "{victim.role}"'
    assert belongings(db) == before


@pytest.mark.parametrize("path", ["/node", "/ephemeral"])
def test_the_role_its_members_and_the_owner_change_a_node(allowed: psycopg.Connection, path: str) -> None:
    assert row(allowed, "SELECT version, problem FROM pgqueue.set_node(%s, '1')", path) == (1, None)
    assert row(allowed, "SELECT version, problem FROM pgqueue.delete_node(%s)", path) == (1, None)


def test_every_role_creates_below_every_node(
    db: psycopg.Connection, other: psycopg.Connection, roles: Roles, victim: Victim
) -> None:
    other.execute("SELECT pgqueue.create_node('/node/below'), pgqueue.create_node('/beside')")
    assert value(victim.conn, "SELECT path FROM pgqueue.join_group('g')") == "/groups/g/member-0000000000"
    assert value(other, "SELECT path FROM pgqueue.join_group('g')") == "/groups/g/member-0000000001"
    owners = dict(rows(db, "SELECT path, role::text FROM pgqueue.node"))
    assert owners["/node/below"] == owners["/beside"] == owners["/groups/g/member-0000000001"] == roles.other
    assert owners["/groups/g"] == owners["/groups/g/member-0000000000"] == victim.role
    assert refused(victim.conn, "SELECT pgqueue.delete_node('/node/below')")
    assert value(other, "SELECT problem FROM pgqueue.delete_node('/node/below')") is None


def test_the_root_is_the_owners(db: psycopg.Connection, other: psycopg.Connection) -> None:
    assert refused(other, "SELECT pgqueue.set_node('/', '1')") == 'node "/" belongs to the owner of the schema'
    assert row(db, "SELECT version, problem FROM pgqueue.set_node('/', '1')") == (1, None)


def test_a_node_that_a_member_ties_to_a_session_is_of_the_sessions_role(
    db: psycopg.Connection, connect: Connect, roles: Roles, victim: Victim
) -> None:
    member = connect(options=f"-c role={roles.member}")
    member.execute("SELECT pgqueue.create_node('/x', ephemeral => true, session => %s)", [victim.session])
    assert column(db, "SELECT role::text FROM pgqueue.node WHERE path = '/x'") == [victim.role]
    assert value(victim.conn, "SELECT problem FROM pgqueue.delete_node('/x')") is None


def test_a_node_of_a_role_that_was_dropped_is_the_owners(
    db: psycopg.Connection, other: psycopg.Connection, victim: Victim
) -> None:
    db.execute("UPDATE pgqueue.node SET role = 4294967295::oid WHERE path = '/node'")
    assert "belongs to role" in refused(other, "SELECT pgqueue.delete_node('/node')")
    assert value(db, "SELECT problem FROM pgqueue.delete_node('/node')") is None


# --- exchanges


@pytest.mark.parametrize(
    "call",
    [
        "delete_exchange('temporary')",
        "declare_exchange('temporary')",
        "declare_exchange('temporary', durable => false)",
        "declare_exchange('temporary', 'fanout', durable => false)",
    ],
)
def test_an_exchange_of_another_roles_session_stays_as_it_is(
    db: psycopg.Connection, other: psycopg.Connection, victim: Victim, call: str
) -> None:
    other.execute("SELECT pgqueue.open_session()")
    before = belongings(db)
    message = refused(other, f"SELECT pgqueue.{call}")
    assert message == f'exchange "temporary" ends with session {victim.session}, which belongs to another role'
    assert belongings(db) == before


def test_an_exchange_whose_session_is_gone_is_the_owners(
    db: psycopg.Connection, other: psycopg.Connection, victim: Victim
) -> None:
    db.execute("TRUNCATE pgqueue.session")  # as a crash does
    refused(other, "SELECT pgqueue.delete_exchange('temporary')")
    db.execute("SELECT pgqueue.delete_exchange('temporary')")


def test_the_role_its_members_and_the_owner_delete_an_exchange(allowed: psycopg.Connection) -> None:
    allowed.execute("SELECT pgqueue.delete_exchange('temporary')")


# --- wills


def test_a_will_has_the_role_that_set_it(
    db: psycopg.Connection, connect: Connect, roles: Roles, victim: Victim
) -> None:
    role = "SELECT role::text FROM pgqueue.will"
    assert column(db, role) == [victim.role]
    member = connect(options=f"-c role={roles.member}")
    member.execute("SELECT pgqueue.set_will('', 'q', '1', session => %s)", [victim.session])
    assert column(db, role) == [roles.member]


# --- claims


def test_another_roles_claim_does_not_exist(db: psycopg.Connection, other: psycopg.Connection, victim: Victim) -> None:
    before = belongings(db)
    args = ("messages", victim.claim)
    assert rows(other, "SELECT * FROM pgqueue.get_claim(%s, %s)", *args) == []
    assert value(other, "SELECT pgqueue.renew_claim(%s, %s)", *args) is False
    assert not value(other, "SELECT pgqueue.release_claim(%s, %s)", *args)
    delete = "SELECT problem FROM pgqueue.delete_message('messages', %s, %s)"
    assert value(other, delete, victim.message, victim.claim) == value(other, delete, victim.message, 1) == "no claim"
    assert belongings(db) == before


def test_a_claim_is_used_by_its_role_its_members_and_the_owner(allowed: psycopg.Connection, victim: Victim) -> None:
    args = ("messages", victim.claim)
    assert column(allowed, "SELECT id FROM pgqueue.get_claim(%s, %s)", *args) == [victim.message]
    assert value(allowed, "SELECT pgqueue.renew_claim(%s, %s)", *args) is True
    assert column(allowed, "SELECT claim FROM pgqueue.takes WHERE id = %s", victim.message) == [victim.claim]
    assert value(allowed, "SELECT pgqueue.release_claim(%s, %s)", *args) == 1


def test_a_claimed_message_is_deleted_by_its_role(allowed: psycopg.Connection, victim: Victim) -> None:
    delete = "SELECT problem FROM pgqueue.delete_message('messages', %s, %s)"
    assert value(allowed, delete, victim.message, victim.claim) is None
    assert column(allowed, "SELECT id FROM pgqueue.tasks WHERE id = %s", victim.message) == []


def test_the_id_of_a_claim_shows_to_its_role_only(
    db: psycopg.Connection, connect: Connect, roles: Roles, other: psycopg.Connection, victim: Victim
) -> None:
    query = "SELECT holder, claim FROM pgqueue.takes WHERE id = %s"
    assert rows(other, query, victim.message) == [("a claim", None)]
    db.execute(f"DROP OWNED BY {roles.other}; SELECT pgqueue.grant_monitor('{roles.other}')")
    assert rows(other, query, victim.message) == [("a claim", None)]
    assert rows(victim.conn, query, victim.message) == [("a claim", victim.claim)]
