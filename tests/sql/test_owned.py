"""What belongs to a role's sessions is that role's: no other role settles, takes, closes or redirects it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from owning import Roles, Victim, belongings, forge, make_victim, refused, three_roles
from statements import column, put, row, rows, state, take, value
from stepping import die, waiting

pytestmark = pytest.mark.once  # rules of our own, the same on every server

Connect = Any

SWEEP = "SELECT freed FROM pgqueue.sweep()"
OPEN = "SELECT pgqueue.open_session(%s, '0', 'x')"


@pytest.fixture
def roles(db: psycopg.Connection) -> Iterator[Roles]:
    with three_roles(db) as made:
        yield made


@pytest.fixture
def victim(connect: Connect, roles: Roles) -> Victim:
    return make_victim(connect, roles.victim)


@pytest.fixture
def other(connect: Connect, roles: Roles, victim: Victim) -> psycopg.Connection:
    """A connection of a role that may use every queue, and has nothing to do with the victim's."""
    conn: psycopg.Connection = connect(options=f"-c role={roles.other}")
    return conn


# --- settling


def test_a_member_settles_by_id(connect: Connect, roles: Roles, victim: Victim) -> None:
    member = connect(options=f"-c role={roles.member}")
    assert row(member, "SELECT state FROM pgqueue.ack(%s, session => %s)", victim.id, victim.session) == ("done",)


def test_a_token_is_enough_for_every_role(other: psycopg.Connection, victim: Victim) -> None:
    assert row(other, "SELECT state FROM pgqueue.ack(%s, %s)", victim.id, victim.token) == ("done",)


def test_session_0_settles_no_claimed_message(
    db: psycopg.Connection, other: psycopg.Connection, victim: Victim
) -> None:
    before = belongings(db)
    found = row(other, "SELECT problem FROM pgqueue.ack(%s, session => 0)", victim.message)
    assert found == ("taken by another",)
    assert belongings(db) == before


def test_a_session_that_is_dead_is_not_closed_by_another_role(
    db: psycopg.Connection, other: psycopg.Connection, victim: Victim
) -> None:
    die(victim.conn, db)
    before = belongings(db)
    refused(other, "SELECT pgqueue.close_session(%s)", victim.session)
    forge(other, victim.session)
    refused(other, "SELECT pgqueue.close_session()")
    assert belongings(db) == before


def test_what_a_crash_left_of_an_exclusive_queue_is_not_taken_with_a_lock_of_ones_own(
    db: psycopg.Connection, connect: Connect, other: psycopg.Connection, victim: Victim
) -> None:
    """The advisory lock of a session is free to take for every role."""
    die(victim.conn, db)
    db.execute("TRUNCATE pgqueue.session")  # as a crash does
    connect().execute("SELECT pg_advisory_lock(pgqueue._session_lock(), %s)", [victim.session])
    before = belongings(db)
    (mine,) = column(db, "SELECT id FROM pgqueue.tasks WHERE queue = 'mine'")
    for call in ("take('mine', %(named)s)", "take_many('{mine}', 2, %(named)s)", f"take_id({mine}, %(named)s)"):
        refused(other, f"SELECT * FROM pgqueue.{call}", victim.names, sqlstate="PQ004")
    for call in ("pop('mine', session => %(named)s)", "claim_messages('mine', session => %(named)s)"):
        refused(other, f"SELECT * FROM pgqueue.{call}", victim.names)
    assert row(other, "SELECT problem FROM pgqueue.ack(%s, session => %s)", victim.id, victim.session) == (
        "taken by another",
    )
    assert belongings(db) == before


def test_a_snapshot_that_is_older_than_a_session_takes_nothing_for_it(db: psycopg.Connection, connect: Connect) -> None:
    id, old = put(db, "q"), connect(autocommit=False)
    old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT FROM pgqueue.tasks")
    session = value(db, "SELECT pgqueue.open_session()")
    refused(old, "SELECT * FROM pgqueue.take('q', %s)", session, sqlstate="PQ004")
    old.rollback()
    old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert column(old, "SELECT id FROM pgqueue.take('q', %s)", session) == [id]


# --- the setting is a hint


@pytest.mark.parametrize("garbage", ["abc", "99999999999", "2147483648", "-", " 5", "1e5", "9" * 30, "5; --"])
def test_garbage_in_the_setting_counts_as_no_session(db: psycopg.Connection, garbage: str) -> None:
    forge(db, garbage)
    assert value(db, "SELECT pgqueue.own_session()") is None
    assert value(db, "SELECT alive FROM pgqueue.sweep()") is True
    assert value(db, "SELECT pgqueue.try_lock('x')") is not None
    forge(db, garbage)
    put(db, "q")
    take(db, "q")
    assert value(db, "SELECT pgqueue.own_session() IS NOT NULL") is True


@pytest.mark.parametrize("id", [-2147483648, -7, 0, 7, 2147483647])
def test_the_setting_holds_every_id(db: psycopg.Connection, id: int) -> None:
    forge(db, id)
    assert value(db, "SELECT pgqueue.own_session()") == id


def test_a_setting_with_another_session_of_the_role_is_no_own_session(connect: Connect, victim: Victim) -> None:
    """It takes, as with that session as argument, for as long as that one is alive."""
    conn = connect(options=f"-c role={victim.role}")
    forge(conn, victim.session)
    id, _ = take(conn, "q")
    assert column(conn, "SELECT session FROM pgqueue.tasks WHERE id = %s", id) == [victim.session]
    refused(conn, "SELECT pgqueue.close_session()", sqlstate="PQ002")
    die(victim.conn, conn)
    refused(conn, "SELECT * FROM pgqueue.take('q')", sqlstate="PQ004")


def test_set_role_counts(db: psycopg.Connection, connect: Connect, roles: Roles) -> None:
    conn = connect()
    put(db, "q")
    for role in (roles.victim, roles.other):
        conn.execute(f"SET ROLE {role}")
        session = value(conn, "SELECT pgqueue.open_session(label => 'x')")
        assert column(db, "SELECT role::text FROM pgqueue.session WHERE id = %s", session) == [role]
    conn.execute(f"SET ROLE {roles.victim}")
    refused(conn, "SELECT * FROM pgqueue.take('q')")
    conn.execute(f"SET ROLE {roles.other}")
    assert column(conn, "SELECT id FROM pgqueue.take('q')") == [1]
    conn.execute(f"SET ROLE {roles.victim}")
    refused(conn, "SELECT * FROM pgqueue.ack(1)")


# --- locks


@pytest.mark.parametrize("who", ["other", "victim"])
def test_locks_are_for_the_session_of_this_connection(
    db: psycopg.Connection, connect: Connect, roles: Roles, victim: Victim, who: str
) -> None:
    conn = connect(options=f"-c role={getattr(roles, who)}")
    before = belongings(db)
    forge(conn, victim.session)
    assert value(conn, "SELECT pgqueue.unlock('held')") is False
    assert value(conn, "SELECT pgqueue.drop_lock(%s)", victim.lock) is False
    assert value(conn, "SELECT pgqueue.drop_lock(8)") is False
    assert belongings(db) == before
    assert value(conn, "SELECT pgqueue.try_lock('held')") is None
    own = value(conn, "SELECT pgqueue.own_session()")
    assert own != victim.session
    assert value(conn, "SELECT pgqueue.try_lock('free')") is not None
    assert column(db, "SELECT session_id FROM pgqueue.lock_holder WHERE name = 'free'") == [own]
    conn.execute("SELECT pgqueue.unlock('free'), pgqueue.close_session()")
    assert belongings(db) == before
    assert value(victim.conn, "SELECT pgqueue.unlock('held')") is True


# --- identities


def test_an_identity_is_joined_by_its_role_only(
    db: psycopg.Connection, connect: Connect, roles: Roles, other: psycopg.Connection, victim: Victim
) -> None:
    before = belongings(db)
    for conn in (other, connect(options=f"-c role={roles.member}")):
        refused(conn, "SELECT pgqueue.identify(%s)", victim.identity, sqlstate="PQ070")
        conn.execute("SELECT pgqueue.close_session()")
    assert belongings(db) == before
    assert str(value(connect(options=f"-c role={roles.victim}"), "SELECT pgqueue.identify(%s)", victim.identity))


def test_an_identity_of_the_same_uuid_settles_and_inherits_nothing(
    db: psycopg.Connection, connect: Connect, roles: Roles
) -> None:
    victim = make_victim(connect, roles.victim, grace="0")
    other = connect(options=f"-c role={roles.other}")
    other.execute("SELECT pgqueue.open_session(NULL, '1 h', 'x', %s)", [victim.identity])
    assert str(value(other, "SELECT pgqueue.identify()")) == victim.identity
    before = belongings(db)
    assert row(other, "SELECT problem FROM pgqueue.ack(%s)", victim.id) == ("taken by another",)
    assert rows(other, "SELECT problem FROM pgqueue.release_many(ARRAY [%s])", victim.id) == [("taken by another",)]
    assert belongings(db) == before
    die(victim.conn, db)
    db.execute(SWEEP)
    assert state(db, victim.id) == "ready"


# --- resuming


def test_a_session_is_resumed_by_its_role_only(
    db: psycopg.Connection, connect: Connect, roles: Roles, other: psycopg.Connection, victim: Victim
) -> None:
    die(victim.conn, db)
    before = belongings(db)
    refused(other, OPEN, victim.session)
    assert belongings(db) == before
    assert value(other, "SELECT pgqueue.own_session()") is None
    assert value(connect(options=f"-c role={roles.member}"), OPEN, victim.session) == victim.session
    assert column(db, "SELECT role::text FROM pgqueue.session WHERE id = %s", victim.session) == [roles.victim]


def test_another_role_is_refused_while_the_session_is_resumed(
    db: psycopg.Connection, connect: Connect, roles: Roles, other: psycopg.Connection, victim: Victim
) -> None:
    """T1 opens the session anew, in a transaction; T2 of another role does not wait for it, nor for its locks."""
    die(victim.conn, db)
    t1 = connect(autocommit=False, options=f"-c role={roles.victim}")
    assert value(t1, OPEN, victim.session) == victim.session
    refused(other, OPEN, victim.session)
    t1.commit()
    refused(other, OPEN, victim.session)
    assert value(t1, "SELECT backend_pid FROM pgqueue.sessions WHERE id = %s", victim.session) == t1.info.backend_pid


def test_a_session_that_is_being_opened_is_not_waited_for(
    connect: Connect, roles: Roles, other: psycopg.Connection
) -> None:
    """Its id can be guessed, and its row is not committed."""
    t1 = connect(autocommit=False, options=f"-c role={roles.victim}")
    session = value(t1, "SELECT pgqueue.open_session()")
    other.execute("SET lock_timeout = '5 s'")
    assert value(other, OPEN, session) != session
    t1.commit()


def test_an_id_that_became_another_roles_while_its_old_session_was_resumed(
    db: psycopg.Connection, connect: Connect, roles: Roles, other: psycopg.Connection
) -> None:
    """T2 waits for a sweep of its own session, and the id is the victim's when T2 goes on. By the owner's rights."""
    session = value(other, "SELECT pgqueue.open_session(grace => '0', label => 'x')")
    die(other, db)
    sweeper, back = connect(autocommit=False), connect(options=f"-c role={roles.other}")
    sweeper.execute(SWEEP)
    with waiting(back, db, OPEN, session) as answer:
        sweeper.execute(
            "INSERT INTO pgqueue.session (id, role, label, grace, backend_pid, epoch)"
            " VALUES (%s, %s, 'x', '0', 1, now())",
            [session, roles.victim],
        )
        sweeper.commit()
    assert answer.result()[0][0] != session
    assert rows(db, "SELECT role::text, backend_pid FROM pgqueue.session WHERE id = %s", session) == [(roles.victim, 1)]
