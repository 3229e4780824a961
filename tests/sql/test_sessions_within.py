"""Sessions within a session: they have no lock, and live and die with their parent."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from eventually import eventually
from statements import column, put, row, rows, state, value
from stepping import die, waiting

Connect = Any
WITHIN = "SELECT pgqueue.open_session(parent => %s, label => %s)"
TAKE_FOR = "SELECT id, token FROM pgqueue.take('q', %s)"
CLOSE = "SELECT pgqueue.close_session(%s)"
SWEEP = "SELECT freed FROM pgqueue.sweep()"


@pytest.fixture
def parent_at(connect: Connect) -> psycopg.Connection:
    """The connection that holds the parent's lock."""
    conn = connect()
    conn.execute("SELECT pgqueue.open_session(grace => '0', label => 'host:1:parent')")
    return conn


@pytest.fixture
def parent(parent_at: psycopg.Connection) -> int:
    return int(value(parent_at, "SELECT pgqueue.own_session()"))


def within(conn: psycopg.Connection, parent: int, label: str | None = None) -> int:
    return int(value(conn, WITHIN, parent, label))


def refusal(conn: psycopg.Connection, query: str, *args: Any) -> str | None:
    with pytest.raises(psycopg.DatabaseError) as raised:
        conn.execute(query, args)
    return raised.value.sqlstate


def test_it_is_opened_and_used_on_any_connection(db: psycopg.Connection, connect: Connect, parent: int) -> None:
    one, two = within(db, parent, "host:1:one"), within(connect(), parent)
    assert value(db, "SELECT pgqueue.own_session()") is None
    first, second = put(db, "q"), put(db, "q")
    id, token = rows(connect(), TAKE_FOR, one)[0]
    assert id == first
    assert rows(
        db, "SELECT id, parent, label, taken, state FROM pgqueue.sessions WHERE parent IS NOT NULL ORDER BY label"
    ) == [
        (one, parent, "host:1:one", 1, "connected"),
        (two, parent, "host:1:parent", 0, "connected"),
    ]
    assert row(db, "SELECT problem FROM pgqueue.ack(%s, session => %s)", first, two) == ("taken by another",)
    assert row(db, "SELECT state FROM pgqueue.ack(%s, session => %s)", first, one) == ("done",)
    assert row(db, "SELECT id FROM pgqueue.take_id(%s, session => %s) t, LATERAL (SELECT %s) x(id)", second, two, 1)
    assert rows(db, "SELECT id, token FROM pgqueue.take_many('{q}', 5, %s)", one) == []
    assert token


def test_it_works_on_the_connection_of_its_parent(db: psycopg.Connection, parent_at: psycopg.Connection) -> None:
    parent = value(parent_at, "SELECT pgqueue.own_session()")
    one = within(parent_at, parent)
    assert value(parent_at, "SELECT pgqueue.own_session()") == parent
    id = put(db, "q")
    assert len(rows(parent_at, TAKE_FOR, one)) == 1
    assert value(parent_at, SWEEP) == 0
    assert value(parent_at, "SELECT state FROM pgqueue.sessions WHERE id = %s", one) == "connected"
    assert state(db, id) == "taken"
    assert value(parent_at, CLOSE, one) == 1
    assert value(parent_at, "SELECT pgqueue.own_session()") == parent


def test_what_cannot_be_a_parent(db: psycopg.Connection, parent: int) -> None:
    one = within(db, parent)
    assert refusal(db, WITHIN, one, "x") == "PQ002"
    assert refusal(db, WITHIN, 42, "x") == "PQ004"
    assert refusal(db, WITHIN, parent, "x" * 1001) == "PQ002"


def test_a_close_gives_back_its_own(db: psycopg.Connection, connect: Connect, parent: int) -> None:
    ids = [put(db, "q") for _ in range(3)]
    one, two = within(db, parent), within(db, parent)
    for session in (one, two, parent):
        db.execute(TAKE_FOR, [session])
    assert value(connect(), CLOSE, one) == 1
    assert [state(db, id) for id in ids] == ["ready", "taken", "taken"]
    assert value(db, CLOSE, one) == 0
    assert refusal(db, TAKE_FOR, one) == "PQ004"


def test_it_dies_with_its_parent(db: psycopg.Connection, parent_at: psycopg.Connection, parent: int) -> None:
    one = within(db, parent)
    put(db, "q"), put(db, "q")
    db.execute("SELECT pgqueue.create_queue('own', exclusive => true, session => %s)", [one])
    db.execute("SELECT pgqueue.set_will('', 'q', '\"will\"', session => %s)", [one])
    db.execute("SELECT pgqueue.create_node('/n', '1', ephemeral => true, session => %s)", [one])
    db.execute(TAKE_FOR, [one])
    db.execute(TAKE_FOR, [parent])
    assert value(db, SWEEP) == 0
    die(parent_at, db)
    assert value(db, SWEEP) == 2
    assert column(db, "SELECT state FROM pgqueue.tasks") == ["ready"] * 3  # the will is the third
    assert column(db, "SELECT name FROM pgqueue.queues") == ["q"]
    assert column(db, "SELECT path FROM pgqueue.nodes") == ["/"]
    assert rows(db, "SELECT FROM pgqueue.session") == []
    assert refusal(db, TAKE_FOR, one) == "PQ004"


def test_the_end_of_the_parent_ends_it_without_its_will(
    db: psycopg.Connection, parent_at: psycopg.Connection, parent: int
) -> None:
    one = within(db, parent)
    id = put(db, "q")
    db.execute("SELECT pgqueue.set_will('', 'q', '\"will\"', session => %s)", [one])
    db.execute(TAKE_FOR, [one])
    assert value(parent_at, "SELECT pgqueue.close_session()") == 1
    assert rows(db, "SELECT id, state FROM pgqueue.tasks") == [(id, "ready")]
    assert rows(db, "SELECT FROM pgqueue.session") == []


def test_a_death_is_that_of_one_process(db: psycopg.Connection, parent_at: psycopg.Connection, parent: int) -> None:
    """Each session had one task only. To count each death by itself would charge all of them."""
    db.execute("SELECT pgqueue.create_queue('q', max_takes => 3)")
    for _ in range(3):
        put(db, "q")
        db.execute(TAKE_FOR, [within(db, parent)])
    die(parent_at, db)
    assert value(db, SWEEP) == 3
    assert column(db, "SELECT attempts FROM pgqueue.tasks") == [0, 0, 0]


def test_it_goes_on_with_a_parent_that_is_resumed(
    db: psycopg.Connection, connect: Connect, parent_at: psycopg.Connection
) -> None:
    parent = value(parent_at, "SELECT pgqueue.open_session(grace => '1 min', label => 'x')")
    one = within(db, parent)
    id = put(db, "q")
    db.execute(TAKE_FOR, [one])
    die(parent_at, db)
    assert value(db, SWEEP) == 0
    states = "SELECT DISTINCT state FROM pgqueue.sessions WHERE %s IN (id, parent)"
    assert column(db, states, parent) == ["missing"]
    back = connect()
    assert value(back, "SELECT pgqueue.open_session(resume => %s)", parent) == parent
    assert column(db, states, parent) == ["connected"]
    assert column(db, "SELECT backend_pid FROM pgqueue.sessions WHERE parent = %s", parent) == [back.info.backend_pid]
    assert row(db, "SELECT state FROM pgqueue.ack(%s, session => %s)", id, one) == ("done",)


# --- races


def test_a_sweep_comes_back_for_a_claim_under_way(
    db: psycopg.Connection, connect: Connect, parent_at: psycopg.Connection, parent: int
) -> None:
    one = within(db, parent)
    id = put(db, "q")
    claimer = connect(autocommit=False)
    claimer.execute(TAKE_FOR, [one])
    die(parent_at, db)
    assert value(db, SWEEP) == 0
    assert len(rows(db, "SELECT FROM pgqueue.session")) == 2
    claimer.commit()
    assert value(db, SWEEP) == 1
    assert state(db, id) == "ready"
    assert rows(db, "SELECT FROM pgqueue.session") == []


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_claim_behind_the_end_of_the_parent_is_refused(
    db: psycopg.Connection, connect: Connect, parent_at: psycopg.Connection, parent: int, isolation: str
) -> None:
    """Also one whose snapshot still shows the session."""
    one = within(db, parent)
    id = put(db, "q")
    late = connect(autocommit=False)
    late.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
    late.execute("SELECT FROM pgqueue.session")
    die(parent_at, db)
    sweeper = connect(autocommit=False)
    sweeper.execute(SWEEP)
    with waiting(late, db, TAKE_FOR, one) as answer:
        sweeper.commit()
    with pytest.raises(psycopg.DatabaseError) as raised:
        answer.result()
    assert raised.value.sqlstate == ("PQ004" if isolation == "READ COMMITTED" else "40001")
    assert state(db, id) == "ready"


def test_a_claim_behind_its_own_close_is_refused(db: psycopg.Connection, connect: Connect, parent: int) -> None:
    one = within(db, parent)
    put(db, "q")
    closer, late = connect(autocommit=False), connect()
    closer.execute(CLOSE, [one])
    with waiting(late, db, TAKE_FOR, one) as answer:
        closer.commit()
    with pytest.raises(psycopg.DatabaseError, match="is not alive"):
        answer.result()


def test_a_sweep_comes_back_for_a_session_that_is_being_opened(
    db: psycopg.Connection, connect: Connect, parent_at: psycopg.Connection, parent: int
) -> None:
    opener = connect(autocommit=False)
    one = value(opener, WITHIN, parent, None)
    die(parent_at, db)
    assert value(db, SWEEP) == 0
    opener.commit()
    assert column(db, "SELECT id FROM pgqueue.session WHERE parent IS NOT NULL") == [one]
    assert value(db, SWEEP) == 0
    assert rows(db, "SELECT FROM pgqueue.session") == []


def test_a_session_is_not_opened_behind_the_end_of_its_parent(
    db: psycopg.Connection, connect: Connect, parent_at: psycopg.Connection, parent: int
) -> None:
    die(parent_at, db)
    sweeper, late = connect(autocommit=False), connect()
    sweeper.execute(SWEEP)
    with waiting(late, db, WITHIN, parent, None) as answer:
        sweeper.commit()
    with pytest.raises(psycopg.DatabaseError, match="is not alive"):
        answer.result()


def test_a_sweep_comes_back_for_a_close_under_way(
    db: psycopg.Connection, connect: Connect, parent_at: psycopg.Connection, parent: int
) -> None:
    one, two = within(db, parent), within(db, parent)
    put(db, "q"), put(db, "q")
    db.execute(TAKE_FOR, [one])
    db.execute(TAKE_FOR, [two])
    closer = connect(autocommit=False)
    assert value(closer, CLOSE, one) == 1
    die(parent_at, db)
    assert value(db, SWEEP) == 0
    closer.commit()
    assert value(db, SWEEP) == 1
    assert column(db, "SELECT DISTINCT state FROM pgqueue.tasks") == ["ready"]


def test_a_take_that_is_being_settled_is_left_to_that(
    db: psycopg.Connection, connect: Connect, parent_at: psycopg.Connection, parent: int
) -> None:
    one = within(db, parent)
    id = put(db, "q")
    token = rows(db, TAKE_FOR, one)[0][1]
    settler = connect(autocommit=False)
    settler.execute("SELECT FROM pgqueue.release(%s, %s)", [id, token])
    die(parent_at, db)
    assert value(db, SWEEP) == 0
    settler.rollback()
    assert eventually(lambda: value(db, SWEEP)) == 1
    assert state(db, id) == "ready"
    assert rows(db, "SELECT FROM pgqueue.session") == []


def test_one_whose_parent_was_deleted_by_hand_is_cleaned_up(db: psycopg.Connection, parent: int) -> None:
    one = within(db, parent)
    id = put(db, "q")
    db.execute(TAKE_FOR, [one])
    db.execute("DELETE FROM pgqueue.session WHERE id = %s", [parent])
    db.execute("SELECT pgqueue.clean_up()")
    assert state(db, id) == "ready"
    assert rows(db, "SELECT FROM pgqueue.session") == []


def test_it_costs_no_lock(db: psycopg.Connection, parent: int) -> None:
    for _ in range(100):
        within(db, parent)
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint = pgqueue._session_lock()"
    assert value(db, locks) <= 1


def test_another_role_uses_neither_parent_nor_child(db: psycopg.Connection, stranger: Connect, parent: int) -> None:
    one = within(db, parent)
    other = stranger()
    db.execute("SELECT pgqueue.grant_to(%s)", [other.info.user])
    assert refusal(other, WITHIN, parent, "x") == "42501"
    put(db, "q")
    for call in (TAKE_FOR, CLOSE):
        assert refusal(other, call, one) == "42501"
    db.execute("SELECT pgqueue.revoke_from(%s)", [other.info.user])
