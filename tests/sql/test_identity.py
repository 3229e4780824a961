"""Identities in SQL: sessions that settle each other's tasks and inherit each other's takes; and who comes too late."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, eventually
from statements import column, put, row, rows, state, take, value
from stepping import die, waiting

Connect = Any
JOIN = "SELECT pgqueue.identify(%s::uuid)"
CLOSE = "SELECT pgqueue.close_session()"
HOLDERS = "SELECT session_id FROM pgqueue.take ORDER BY task_id"


def member(connect: Connect, identity: str | None = None, grace: str = "0", **options: Any) -> Any:
    """A connection with a session that has the identity; its id is in `.session`, that in `.identity`."""
    conn = connect(**options)
    conn.session = value(conn, "SELECT pgqueue.open_session(grace => %s, label => 'member')", grace)
    conn.identity = value(conn, JOIN, identity)
    return conn


def sweep(conn: psycopg.Connection) -> int:
    return int(value(conn, "SELECT freed FROM pgqueue.sweep()"))


def age(conn: psycopg.Connection, session: int) -> None:
    """Its grace is over."""
    conn.execute("UPDATE pgqueue.session SET missing_since = now() - interval '1 h' WHERE id = %s", [session])
    conn.execute("UPDATE pgqueue.session SET grace = '0' WHERE id = %s", [session])


# --- who one is


def test_an_identity_is_made_once(db: psycopg.Connection) -> None:
    first = value(db, "SELECT pgqueue.identify()")
    assert value(db, "SELECT pgqueue.identify()") == first
    assert value(db, JOIN, first) == first
    assert value(db, "SELECT identity FROM pgqueue.session") == first


def test_two_of_them_differ(connect: Connect) -> None:
    assert member(connect).identity != member(connect).identity


def test_pq070_for_an_identity_that_nobody_has(db: psycopg.Connection) -> None:
    with pytest.raises(psycopg.DatabaseError, match="there is no identity 00000000") as raised:
        db.execute(JOIN, ["00000000-0000-0000-0000-000000000000"])
    assert raised.value.sqlstate == "PQ070"


def test_invalid_identities_are_refused(db: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        db.execute(JOIN, ["just-for-fun"])


def test_it_can_be_changed(connect: Connect) -> None:
    one, other = member(connect), member(connect)
    assert value(one, JOIN, other.identity) == other.identity
    assert value(one, "SELECT pgqueue.identify()") == other.identity


# --- settling


@pytest.mark.parametrize(
    "verb",
    ["ack(%s)", "release(%s)", "touch(%s)", "progress(%s, value => '1')", "finish(%s::bigint, result => '1')"],
)
def test_members_settle_each_others_tasks_by_id(db: psycopg.Connection, connect: Connect, verb: str) -> None:
    one = member(connect)
    two, stranger = member(connect, one.identity), member(connect)
    id = put(db, "q")
    take(one, "q")
    assert row(stranger, f"SELECT problem FROM pgqueue.{verb}", id) == ("taken by another",)
    assert row(two, f"SELECT problem FROM pgqueue.{verb}", id) == (None,)


@pytest.mark.parametrize("many", ["ack_many", "release_many"])
def test_members_settle_many(db: psycopg.Connection, connect: Connect, many: str) -> None:
    one = member(connect)
    two, stranger = member(connect, one.identity), member(connect)
    ids = [put(db, "q") for _ in range(3)]
    for conn in (one, two, stranger):
        take(conn, "q")
    refused = rows(two, f"SELECT id, problem FROM pgqueue.{many}(%s, array_fill(NULL::bigint, ARRAY[3]))", ids)
    assert refused == [(ids[2], "taken by another")]
    assert column(db, HOLDERS) == [stranger.session]


# --- inheriting


def test_a_living_member_inherits_at_the_end_of_the_grace(db: psycopg.Connection, connect: Connect) -> None:
    one = member(connect, grace="0.2 s")
    two = member(connect, one.identity)
    id = put(db, "q")
    take(one, "q")
    die(one, db)
    sweep(db)
    assert column(db, HOLDERS) == [one.session]
    eventually(lambda: sweep(db) or column(db, HOLDERS) == [two.session])
    assert column(db, "SELECT id FROM pgqueue.sessions") == [two.session]
    assert rows(db, "SELECT state, attempts FROM pgqueue.tasks") == [("taken", 0)]
    assert row(two, "SELECT state FROM pgqueue.ack(%s)", id) == ("done",)


def test_the_living_inherit_before_the_dead(db: psycopg.Connection, connect: Connect) -> None:
    one = member(connect)
    dead = [member(connect, one.identity, grace="1 h") for _ in range(2)]
    living = member(connect, one.identity)
    dead.append(member(connect, one.identity, grace="1 h"))
    put(db, "q")
    take(one, "q")
    for conn in (*dead, one):
        die(conn, db)
    sweep(db)
    assert column(db, HOLDERS) == [living.session]


def test_the_last_ones_tasks_are_given_back(db: psycopg.Connection, connect: Connect) -> None:
    one = member(connect)
    two = member(connect, one.identity)
    id = put(db, "q")
    take(one, "q")
    die(one, db)
    die(two, db)
    assert sweep(db) == 1
    assert rows(db, "SELECT id, state, attempts, error FROM pgqueue.tasks") == [
        (id, "ready", 1, "its taker died: member")
    ]
    assert rows(db, "SELECT FROM pgqueue.sessions") == []


def test_the_longest_grace_counts(db: psycopg.Connection, connect: Connect) -> None:
    one = member(connect)
    two = member(connect, one.identity, grace="1 h")
    id = put(db, "q")
    take(one, "q")
    die(one, db)
    die(two, db)
    assert sweep(db) == 0
    assert sweep(db) == 0
    assert state(db, id) == "taken"
    age(db, two.session)
    assert sweep(db) == 1
    assert state(db, id) == "ready"


def test_a_session_that_joins_within_the_grace_keeps_the_tasks(db: psycopg.Connection, connect: Connect) -> None:
    one = member(connect, grace="1 h")
    ids = [put(db, "q") for _ in range(2)]
    take(one, "q"), take(one, "q")
    die(one, db)
    sweep(db)
    again = member(connect, one.identity)
    assert row(again, "SELECT state FROM pgqueue.ack(%s)", ids[0]) == ("done",)
    age(db, one.session)
    assert sweep(db) == 0
    assert column(db, HOLDERS) == [again.session]
    assert row(again, "SELECT state FROM pgqueue.ack(%s)", ids[1]) == ("done",)


def test_after_the_grace_they_are_given_back_and_the_identity_is_gone(db: psycopg.Connection, connect: Connect) -> None:
    one = member(connect)
    id = put(db, "q")
    take(one, "q")
    die(one, db)
    assert sweep(db) == 1
    assert state(db, id) == "ready"
    with pytest.raises(psycopg.DatabaseError) as raised:
        member(connect, one.identity)
    assert raised.value.sqlstate == "PQ070"


# --- closing


def test_closing_leaves_the_tasks_for_the_grace(db: psycopg.Connection, connect: Connect) -> None:
    one = member(connect, grace="0.3 s")
    id = put(db, "q")
    take(one, "q")
    closed = Stopwatch()
    assert value(one, CLOSE) == 0
    assert state(db, id) == "taken"
    with pytest.raises(psycopg.DatabaseError) as raised:  # it is not alive any more
        db.execute("SELECT FROM pgqueue.take('q', %s)", [one.session])
    assert raised.value.sqlstate == "PQ004"
    assert eventually(lambda: sweep(db)) == 1
    assert closed() >= 0.3
    assert rows(db, "SELECT state, error FROM pgqueue.tasks") == [("ready", "its taker left: member")]
    assert rows(db, "SELECT FROM pgqueue.sessions") == []


def test_closing_without_a_grace_gives_them_on_at_once(db: psycopg.Connection, connect: Connect) -> None:
    one = member(connect)
    two = member(connect, one.identity)
    id = put(db, "q")
    take(one, "q")
    assert value(one, CLOSE) == 0
    assert column(db, HOLDERS) == [two.session]
    assert value(two, CLOSE) == 1
    assert rows(db, "SELECT id, state, attempts FROM pgqueue.tasks") == [(id, "ready", 0)]


def test_a_close_that_cannot_see_the_heirs_leaves_them_to_a_sweep(db: psycopg.Connection, connect: Connect) -> None:
    """At REPEATABLE READ the heir seems to be there, though it was closed since."""
    one = member(connect)
    two = member(connect, one.identity)
    id = put(db, "q")
    take(one, "q")
    with one.transaction():
        one.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert value(one, "SELECT count(*) FROM pgqueue.sessions") == 2
        two.execute(CLOSE)
        assert value(one, CLOSE) == 0
    assert column(db, HOLDERS) == [one.session]
    assert sweep(db) == 1
    assert state(db, id) == "ready"


def test_nothing_else_outlives_the_close(db: psycopg.Connection, connect: Connect) -> None:
    one = member(connect, grace="1 h")
    one.execute("SELECT pgqueue.ask_lock('x', false, 1, false)")
    one.execute("SELECT pgqueue.create_node('/x', ephemeral => true)")
    one.execute("SELECT pgqueue.create_queue('mine', exclusive => true)")
    one.execute(CLOSE)
    assert rows(db, "SELECT FROM pgqueue.lock_holder") == []
    assert rows(db, "SELECT FROM pgqueue.node WHERE path = '/x'") == []
    assert rows(db, "SELECT FROM pgqueue.queue WHERE name = 'mine'") == []


# --- races


def test_a_sweep_waits_for_nobody_who_is_joining_and_comes_back(db: psycopg.Connection, connect: Connect) -> None:
    one = member(connect)
    id = put(db, "q")
    take(one, "q")
    die(one, db)
    joining = connect()
    joining.execute("SELECT pgqueue.open_session(label => 'joining')")
    joining.autocommit = False
    joining.execute(JOIN, [one.identity])
    db.execute("SET lock_timeout = '5 s'")
    freed, again = rows(db, "SELECT freed, again FROM pgqueue.sweep()")[0]
    assert (freed, again) == (0, 0.01)
    joining.commit()
    assert sweep(db) == 0
    assert state(db, id) == "taken"
    assert row(joining, "SELECT state FROM pgqueue.ack(%s)", id) == ("done",)


def test_who_joins_waits_for_the_verdict_of_a_sweep(db: psycopg.Connection, connect: Connect) -> None:
    one, sweeper = member(connect), connect(autocommit=False)
    die(one, db)
    late = connect()
    late.execute("SELECT pgqueue.open_session()")
    sweeper.execute("SELECT pgqueue.sweep()")
    with waiting(late, db, JOIN, one.identity) as answer:
        sweeper.commit()
    assert getattr(answer.exception(), "sqlstate", None) == "PQ070"


def test_a_close_waits_for_who_is_joining_and_gives_on(db: psycopg.Connection, connect: Connect) -> None:
    one, joining = member(connect), connect()
    put(db, "q")
    take(one, "q")
    session = value(joining, "SELECT pgqueue.open_session(label => 'joining')")
    joining.autocommit = False
    joining.execute(JOIN, [one.identity])
    with waiting(one, db, CLOSE) as freed:
        joining.commit()
    assert freed.result() == [(0,)]
    assert column(db, HOLDERS) == [session]


def test_nothing_is_given_to_an_heir_that_is_being_closed(db: psycopg.Connection, connect: Connect) -> None:
    """It has looked at its takes for the last time: what comes now would be nobody's for ever."""
    one = member(connect)
    two = member(connect, one.identity)
    id = put(db, "q")
    take(one, "q")
    die(one, db)
    two.autocommit = False
    two.execute(CLOSE)
    assert sweep(db) == 0
    assert column(db, HOLDERS) == [one.session]
    two.commit()
    assert sweep(db) == 1
    assert state(db, id) == "ready"


def test_nothing_is_given_to_an_heir_that_was_closed_since_it_was_found(
    db: psycopg.Connection, connect: Connect
) -> None:
    one = member(connect)
    two, three = member(connect, one.identity), member(connect, one.identity)
    put(db, "q")
    take(one, "q")
    die(one, db)
    db.execute(f"""
        CREATE OR REPLACE FUNCTION pgqueue._session_alive(session int) RETURNS boolean LANGUAGE plpgsql AS $$
        BEGIN
            IF session = {two.session} THEN
                PERFORM pg_advisory_xact_lock(42);
            END IF;
            RETURN session = {two.session};
        END $$""")
    db.execute("SELECT pg_advisory_lock(42)")
    with waiting(connect(), db, "SELECT pgqueue.sweep()"):
        two.execute(CLOSE)
        assert column(db, "SELECT id FROM pgqueue.sessions WHERE id = %s", two.session) == []
        db.execute("SELECT pg_advisory_unlock(42)")
    assert column(db, HOLDERS) == [three.session]


def test_a_close_waits_until_it_has_inherited(db: psycopg.Connection, connect: Connect) -> None:
    one = member(connect)
    two = member(connect, one.identity)
    put(db, "q")
    take(one, "q")
    die(one, db)
    sweeper = connect(autocommit=False)
    sweeper.execute("SELECT pgqueue.sweep()")
    with waiting(two, db, CLOSE) as freed:
        sweeper.commit()
    assert freed.result() == [(1,)]
    assert rows(db, "SELECT FROM pgqueue.take") == []


def test_two_that_close_at_once_do_not_wait_for_each_other(db: psycopg.Connection, connect: Connect) -> None:
    one = member(connect)
    two = member(connect, one.identity)
    for conn in (one, two):
        put(db, "q")
        take(conn, "q")
        conn.autocommit = False
    one.execute("SET lock_timeout = '5 s'")
    two.execute("SET lock_timeout = '5 s'")
    one.execute("SELECT pg_advisory_xact_lock(pgqueue._claiming_lock(), %s)", [one.session])  # as a close begins
    assert value(two, CLOSE) == 0  # its heir is busy: it leaves its takes to a sweep
    two.commit()
    assert value(one, CLOSE) == 0
    one.commit()
    assert sweep(db) == 2
    assert rows(db, "SELECT FROM pgqueue.sessions") == []


def test_a_claim_is_undone_where_an_heir_has_it(db: psycopg.Connection, connect: Connect) -> None:
    one = member(connect)
    member(connect, one.identity)
    put(db, "q")
    one.execute("SELECT FROM pgqueue.take('q', new_token => 7)")
    die(one, db)
    sweep(db)
    assert value(db, "SELECT pgqueue.undo_take(7)") == 1


def test_a_session_that_was_given_up_comes_back_as_who_it_was(db: psycopg.Connection, connect: Connect) -> None:
    one = member(connect)
    die(one, db)
    sweep(db)
    back = connect()
    back.execute("SELECT pgqueue.open_session(%s, '0', 'x', %s)", [one.session, one.identity])
    assert value(back, "SELECT pgqueue.identify()") == one.identity
