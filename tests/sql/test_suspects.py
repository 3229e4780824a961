"""Which task killed its process: the charge at a session's death, and claims of tasks that are suspects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from statements import column, put, row, rows, value
from stepping import die

Connect = Any
Session = Callable[[], psycopg.Connection]
SUSPECTS = "SELECT id FROM pgqueue.task WHERE suspect IS NOT NULL ORDER BY id"
MARKED = "SELECT id FROM pgqueue.task WHERE killed_after IS NOT NULL ORDER BY id"
CHARGED = "SELECT id FROM pgqueue.task WHERE attempts > 0 ORDER BY id"
TAKE = "SELECT id FROM pgqueue.take('q')"


@pytest.fixture
def session(connect: Connect) -> Session:
    """Opens a connection with a session that has no grace."""

    def opened() -> psycopg.Connection:
        conn: psycopg.Connection = connect()
        conn.execute("SELECT pgqueue.open_session(grace => '0')")
        return conn

    return opened


def take_many(conn: psycopg.Connection, n: int, queue: str = "q") -> list[int]:
    return column(conn, "SELECT id FROM pgqueue.take_many(ARRAY [%s], %s)", queue, n)


def killed(conn: psycopg.Connection, db: psycopg.Connection) -> None:
    """The session dies, after a life that no take of this test outlasts."""
    die(conn, db)
    db.execute("UPDATE pgqueue.session SET started_at = started_at - interval '1 h'")
    db.execute("SELECT FROM pgqueue.sweep()")


def kill_twice(session: Session, db: psycopg.Connection, take: Callable[[psycopg.Connection], Any]) -> None:
    """What `take` takes is suspect after the second death."""
    for _ in range(2):
        conn = session()
        take(conn)
        killed(conn, db)


@pytest.fixture(autouse=True)
def limited(db: psycopg.Connection) -> None:
    """Queues in which a death can bury a task."""
    for queue in ("q", "a", "b"):
        db.execute("SELECT pgqueue.create_queue(%s, max_takes => 9)", [queue])


@pytest.fixture
def four(db: psycopg.Connection, session: Session) -> list[int]:
    """Four suspects: two sessions took them together and died."""
    ids = [put(db, "q", str(n)) for n in range(4)]
    kill_twice(session, db, lambda conn: take_many(conn, 4))
    return ids


# --- the charge


def test_the_only_task_of_a_dead_session_is_charged(db: psycopg.Connection, session: Session) -> None:
    id, conn = put(db, "q"), session()
    take_many(conn, 9)
    killed(conn, db)
    assert (column(db, CHARGED), column(db, SUSPECTS)) == ([id], [])
    assert "its taker died: " in value(db, "SELECT error FROM pgqueue.tasks")


def test_the_first_death_of_several_tasks_charges_and_restricts_none(db: psycopg.Connection, session: Session) -> None:
    ids = [put(db, "q") for _ in range(8)]
    conn = session()
    take_many(conn, 9)
    killed(conn, db)
    assert (column(db, CHARGED), column(db, SUSPECTS)) == ([], [])
    assert take_many(session(), 9) == ids


def test_the_second_death_of_several_tasks_makes_them_suspects_and_charges_none(
    db: psycopg.Connection, four: list[int]
) -> None:
    assert (column(db, CHARGED), column(db, SUSPECTS)) == ([], four)
    assert column(db, "SELECT DISTINCT state FROM pgqueue.tasks") == ["ready"]


def test_a_suspect_is_charged_and_its_neighbours_are_not(
    db: psycopg.Connection, session: Session, four: list[int]
) -> None:
    others = [put(db, "q") for _ in range(3)]
    conn = session()
    assert take_many(conn, 2) == [four[0]]
    assert take_many(conn, 9) == others
    killed(conn, db)
    assert (column(db, CHARGED), column(db, SUSPECTS)) == ([four[0]], four)
    conn = session()
    assert take_many(conn, 9) == [four[0], *others]
    killed(conn, db)
    assert (column(db, CHARGED), column(db, SUSPECTS)) == ([four[0]], four + others)


def test_two_tasks_that_kill_do_not_bury_a_third(db: psycopg.Connection, session: Session, four: list[int]) -> None:
    """The innocent suspect comes first, a task that kills beside it: they are taken together twice."""
    killer = put(db, "q")
    for _ in range(2):
        conn = session()
        assert take_many(conn, 9) == [four[0], killer]
        killed(conn, db)
    for _ in range(3):
        conn = session()
        assert (take_many(conn, 9), take_many(conn, 9)) == ([four[0]], [])
        conn.execute("SELECT pgqueue.close_session()")
    assert rows(db, "SELECT id, attempts FROM pgqueue.task WHERE attempts > 0") == [(four[0], 2)]


def test_max_takes_buries_the_task_that_kills_alone(db: psycopg.Connection, session: Session) -> None:
    db.execute("SELECT pgqueue.alter_queue('q', '{\"max_takes\": 3}')")
    ids = [put(db, "q") for _ in range(8)]
    deaths = 0
    while value(db, "SELECT count(*) FROM pgqueue.tasks WHERE state = 'ready'"):
        conn = session()
        held: list[int] = []
        while ids[5] not in held and (more := column(conn, TAKE)):
            if len(held) == 3:  # the one that began first returns
                conn.execute("SELECT FROM pgqueue.ack(%s)", [held.pop(0)])
            held += more
        if ids[5] in held:
            deaths += 1
            killed(conn, db)
        else:
            for id in held:
                conn.execute("SELECT FROM pgqueue.ack(%s)", [id])
            conn.execute("SELECT pgqueue.close_session()")
    assert rows(db, "SELECT id, state, attempts FROM pgqueue.tasks") == [(ids[5], "buried", 3)]
    assert deaths == 5


# --- claims


def test_a_session_tries_one_suspect_at_a_time(db: psycopg.Connection, session: Session, four: list[int]) -> None:
    conn = session()
    assert column(conn, TAKE) == [four[0]]
    assert column(conn, TAKE) == []
    other = put(db, "q")
    assert column(conn, TAKE) == [other]
    conn.execute("SELECT FROM pgqueue.ack(%s)", [four[0]])
    assert column(conn, TAKE) == [four[1]]


def test_a_task_that_is_no_suspect_any_more_counts_for_no_limit(session: Session, four: list[int]) -> None:
    conn = session()
    (first,) = rows(conn, "SELECT id, token FROM pgqueue.take('q')")
    conn.execute("SELECT FROM pgqueue.release(%s, %s)", first)
    assert column(conn, TAKE) + column(conn, TAKE) == four[:2]


def test_another_session_tries_another_suspect(session: Session, four: list[int]) -> None:
    assert [column(session(), TAKE) for _ in range(5)] == [[id] for id in four] + [[]]


def test_of_several_queues_one_suspect_is_taken(db: psycopg.Connection, session: Session) -> None:
    ids = {queue: [put(db, queue) for _ in range(2)] for queue in ("a", "b")}
    kill_twice(session, db, lambda conn: conn.execute("SELECT FROM pgqueue.take_many('{a,b}', 9)"))
    other = put(db, "b")
    conn = session()
    taken: list[int] = []
    for _ in range(3):
        taken += column(conn, "SELECT id FROM pgqueue.take_many('{a,b}', 9)")
    assert taken == [ids["a"][0], other]


def test_a_claim_takes_its_only_suspect_with_others(db: psycopg.Connection, session: Session, four: list[int]) -> None:
    before = put(db, "q", priority=-1)
    assert take_many(session(), 9) == [before, four[0]]


def test_a_claim_from_a_cursor_goes_by_the_same_rule(session: Session, four: list[int]) -> None:
    conn = session()
    after = "SELECT id FROM pgqueue.take('q', after_priority => 0, after_id => %s)"
    assert column(conn, after, four[1]) == [four[2]]
    assert column(conn, after, four[1]) == []


def test_in_lanes_a_session_tries_one_suspect_at_a_time(db: psycopg.Connection, session: Session) -> None:
    ids = [put(db, "q", lane=f"lane {n % 3}") for n in range(6)]
    kill_twice(session, db, lambda conn: take_many(conn, 9))
    assert column(db, SUSPECTS) == ids[:3]
    other = put(db, "q")
    conn = session()
    assert take_many(conn, 9) == [ids[0], other]
    assert take_many(conn, 9) == []
    conn.execute("SELECT FROM pgqueue.ack(%s)", [ids[0]])
    assert take_many(conn, 9) == [ids[1], ids[3]]
    assert column(db, "SELECT count(*) FROM pgqueue.take WHERE lane IS NOT NULL") == [2]


def test_a_claim_of_messages_and_a_pop_go_by_no_rule(db: psycopg.Connection, four: list[int]) -> None:
    assert column(db, "SELECT id FROM pgqueue.claim_messages('q', 2)") == four[:2]
    assert column(db, "SELECT id FROM pgqueue.pop('q', 2)") == four[2:]


def test_a_suspect_is_taken_by_its_id_at_any_time(db: psycopg.Connection, session: Session, four: list[int]) -> None:
    conn = session()
    assert column(conn, TAKE) == [four[0]]
    assert value(conn, "SELECT state FROM pgqueue.take_id(%s)", four[2]) == "taken"
    killed(conn, db)
    assert column(db, CHARGED) == [four[0], four[2]]


def test_a_waiting_taker_learns_that_a_suspect_is_ready(
    db: psycopg.Connection, session: Session, four: list[int]
) -> None:
    conn = session()
    assert column(conn, TAKE) == [four[0]]
    assert row(conn, "SELECT seconds FROM pgqueue.next_due('{q}')") == (0,)


def test_two_claims_of_one_session_take_one_suspect(
    db: psycopg.Connection, connect: Connect, session: Session, four: list[int]
) -> None:
    """T1 has taken a suspect and not committed: T2, for the same session, does not wait, and takes none."""
    me = value(session(), "SELECT pgqueue.own_session()")
    one, two = connect(), connect()
    two.execute("SET lock_timeout = '2 s'")
    with one.transaction():
        assert column(one, "SELECT id FROM pgqueue.take('q', %s)", me) == [four[0]]
        assert column(two, "SELECT id FROM pgqueue.take('q', %s)", me) == []
    assert column(two, "SELECT id FROM pgqueue.take('q', %s)", me) == []


def test_a_large_group_is_tried_in_quarters(db: psycopg.Connection, session: Session) -> None:
    """The task that kills is alone at the fifth death, and until then its neighbours are not handled one by one."""
    ids = [put(db, "q") for _ in range(100)]
    killer = ids[40]
    groups = []
    while value(db, "SELECT count(*) FROM pgqueue.task WHERE attempts = 0 AND id = %s", killer):
        conn = session()
        while killer not in (held := take_many(conn, 100)):
            assert take_many(conn, 100) == []
            conn.execute("SELECT FROM pgqueue.ack_many(%s::int8[])", [held])
        groups.append(len(held))
        killed(conn, db)
    assert groups == [100, 100, 25, 6, 1]
    assert column(db, CHARGED) == [killer]


def test_the_least_limit_counts(db: psycopg.Connection, session: Session, four: list[int]) -> None:
    many = [put(db, "q", priority=1) for _ in range(24)]
    db.execute("UPDATE pgqueue.task SET priority = 2 WHERE id = ANY (%s)", [four])
    kill_twice(session, db, lambda conn: take_many(conn, 24))
    assert column(db, "SELECT DISTINCT suspect FROM pgqueue.task WHERE id = ANY (%s)", many) == [6]
    conn = session()
    assert take_many(conn, 2) == many[:2]
    assert take_many(conn, 99) == many[2:6]  # and none with the limit 1
    conn.execute("SELECT FROM pgqueue.ack_many(%s::int8[])", [many[:6]])
    assert value(conn, "SELECT state FROM pgqueue.take_id(%s::int8)", many[20]) == "taken"
    assert column(conn, TAKE) + column(conn, TAKE) == many[6:8]  # take_id counts for no limit


def test_a_claim_that_rolls_back_has_tried_nothing(connect: Connect, session: Session, four: list[int]) -> None:
    holder = session()
    me = value(holder, "SELECT pgqueue.own_session()")
    with (one := connect()).transaction(force_rollback=True):
        one.execute("SELECT FROM pgqueue.take('q', %s)", [me])
    assert column(holder, TAKE) == [four[0]]


# --- the mark


ENDS = {
    "release": "SELECT pgqueue.release(%(id)s, %(token)s)",
    "release with an error": "SELECT pgqueue.release(%(id)s, %(token)s, error => 'why')",
    "requeue": "SELECT pgqueue.requeue(%(id)s, %(token)s)",
    "bury": "SELECT pgqueue.bury(%(id)s, %(token)s, error => 'why')",
}


@pytest.mark.parametrize("end", ENDS)
def test_an_orderly_end_clears_the_mark(db: psycopg.Connection, session: Session, four: list[int], end: str) -> None:
    conn = session()
    (taken,) = rows(conn, "SELECT id, token FROM pgqueue.take('q')")
    conn.execute(ENDS[end], {"id": taken[0], "token": taken[1]})
    assert (column(db, SUSPECTS), column(db, MARKED)) == (four[1:], four[1:])
    assert column(conn, "SELECT id FROM pgqueue.take('q')") != []


@pytest.mark.parametrize("kick", ["kick('q')", "kick_task(%(id)s)"])
def test_a_kick_clears_the_mark(db: psycopg.Connection, session: Session, kick: str) -> None:
    db.execute("SELECT pgqueue.alter_queue('q', '{\"max_takes\": 2}')")
    id = put(db, "q")
    kill_twice(session, db, lambda conn: take_many(conn, 1))
    assert rows(db, "SELECT t.state, k.suspect FROM pgqueue.tasks t JOIN pgqueue.task k USING (id)") == [("buried", 1)]
    db.execute(f"SELECT pgqueue.{kick}", {"id": id})
    assert (column(db, SUSPECTS), column(db, MARKED)) == ([], [])


def test_tasks_that_were_not_begun_keep_the_mark(db: psycopg.Connection, session: Session, four: list[int]) -> None:
    conn = session()
    taken = take_many(conn, 9)
    conn.execute("SELECT FROM pgqueue.release_many(%s::int8[])", [taken])
    assert column(db, SUSPECTS) == four


def test_a_session_that_ends_in_order_marks_nothing(db: psycopg.Connection, session: Session) -> None:
    for _ in range(2):
        put(db, "q")
    conn = session()
    take_many(conn, 9)
    assert value(conn, "SELECT pgqueue.close_session()") == 2
    assert (column(db, CHARGED), column(db, MARKED)) == ([], [])


# --- what clears a suspect, and where there are none


def outlast(db: psycopg.Connection, id: int) -> None:
    """The task has been held for longer than the session had lived that died with it."""
    db.execute("UPDATE pgqueue.task SET killed_after = '0' WHERE id = %s", [id])


def test_a_suspect_that_runs_longer_than_its_process_had_lived_counts_for_no_limit(
    db: psycopg.Connection, session: Session, four: list[int]
) -> None:
    conn = session()
    assert column(conn, TAKE) == [four[0]]
    assert column(conn, TAKE) == []
    outlast(db, four[0])
    assert column(conn, TAKE) == [four[1]]
    assert column(conn, TAKE) == []


def test_a_suspect_that_ran_longer_than_its_process_had_lived_is_not_charged(
    db: psycopg.Connection, session: Session, four: list[int]
) -> None:
    conn = session()
    assert column(conn, TAKE) == [four[0]]
    outlast(db, four[0])
    assert column(conn, TAKE) == [four[1]]
    db.execute("SELECT FROM pgqueue.sweep()")  # which sees the session alive
    killed(conn, db)
    assert (column(db, CHARGED), column(db, SUSPECTS), column(db, MARKED)) == ([four[1]], four[1:], four)


def test_the_life_of_the_process_is_what_a_take_has_to_outlast(db: psycopg.Connection, session: Session) -> None:
    for _ in range(2):
        put(db, "q")
    conn = session()
    take_many(conn, 2)
    killed(conn, db)
    hour = "SELECT bool_and(killed_after BETWEEN '1 h' AND '1 h 5 min') FROM pgqueue.task"
    assert value(db, hour)
    conn = session()  # its life is shorter
    take_many(conn, 2)
    die(conn, db)
    db.execute("SELECT FROM pgqueue.sweep()")
    assert value(db, hour)


def test_where_attempts_have_no_limit_a_death_leaves_no_mark(db: psycopg.Connection, session: Session) -> None:
    ids = [put(db, "free") for _ in range(3)]
    kill_twice(session, db, lambda conn: take_many(conn, 9, "free"))
    assert (column(db, CHARGED), column(db, MARKED)) == ([], [])
    assert take_many(session(), 9, "free") == ids


@pytest.mark.parametrize(("limits", "marks"), [({"max_attempts": 20}, True), ({}, False)])
def test_a_limit_of_a_worker_counts_as_one_of_the_queue(
    db: psycopg.Connection, session: Session, limits: dict[str, int], marks: bool
) -> None:
    ids = [put(db, "free") for _ in range(3)]
    conn = session()
    conn.execute("SELECT pgqueue.register_worker(1, '{free}', limits => %s)", [Jsonb(limits)])
    take_many(conn, 9, "free")
    killed(conn, db)
    assert column(db, MARKED) == (ids if marks else [])
