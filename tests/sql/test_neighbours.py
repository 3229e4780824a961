"""What a role does with its own queues is not felt in the queues of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from eventually import eventually
from roles import made
from statements import column, pass_time, put, row, rows, state, value
from stepping import die

Connect = Callable[..., psycopg.Connection]

LANES = "lanes => ARRAY (SELECT 'lane ' || g FROM generate_series(1, %(n)s) g)"


def filled(db: psycopg.Connection, queue: str, n: int, options: str = "") -> None:
    """Put n tasks."""
    puts = "(SELECT jsonb_agg(jsonb_build_object('k', g)) FROM generate_series(1, %(n)s) g)"
    db.execute(f"SELECT pgqueue.put_many(%(queue)s, {puts}, {options})".replace(", )", ")"), {"queue": queue, "n": n})


def taken(conn: psycopg.Connection, queue: str, n: int) -> int:
    return int(value(conn, "SELECT count(*) FROM pgqueue.take_many(ARRAY [%s], %s)", queue, n))


@pytest.mark.parametrize("kind", ["lanes", "limits"])
def test_an_open_transaction_that_takes_keeps_no_other_queue_from_its_tasks(
    db: psycopg.Connection, connect: Connect, kind: str
) -> None:
    for queue, n in (("theirs", 300), ("ours", 60)):
        db.execute("SELECT pgqueue.create_queue(%s)", [queue])
        if kind == "limits":
            rows(db, "SELECT pgqueue.set_limit(%s, concurrency => 1, argument => 'k')", queue)
        filled(db, queue, n, LANES if kind == "lanes" else "")
    with connect(autocommit=False) as other:
        assert taken(other, "theirs", 300) == 300
        assert taken(db, "ours", 60) == 60


LATCHES = "SELECT queue_id, number FROM pgqueue.latch ORDER BY 1, 2"
NUMBERS = "SELECT DISTINCT pgqueue._latch_number(g::text) FROM generate_series(1, 5000) g ORDER BY 1"


@pytest.mark.parametrize("first", ["pgqueue.put('q', '1', lane => 'a')", "pgqueue.set_limit('q', concurrency => 1)"])
def test_a_queue_with_lanes_or_limits_has_each_latch(db: psycopg.Connection, first: str) -> None:
    queue = value(db, "SELECT pgqueue.queue_id('q')")
    assert rows(db, LATCHES) == []
    rows(db, f"SELECT {first}")
    assert rows(db, LATCHES) == [(queue, number) for number in column(db, NUMBERS)]


def test_latches_are_made_once_and_go_with_their_queue(db: psycopg.Connection, connect: Connect) -> None:
    """A deletion does not wait for a claim that has one of them."""
    for queue in ("q", "kept"):
        put(db, queue, lane="a")
        rows(db, "SELECT pgqueue.set_limit(%s, job => 'j', concurrency => 1)", queue)
    made = rows(db, LATCHES)
    with connect(autocommit=False) as other:
        assert taken(other, "q", 1) == 1
        db.execute("SET statement_timeout = '20s'")
        rows(db, "SELECT pgqueue.delete_queue('q', force => true)")
    eventually(lambda: len(rows(db, "SELECT pgqueue.clean_up()")) and len(rows(db, LATCHES)) == len(made) / 2)
    assert taken(db, "kept", 1) == 1


@pytest.mark.parametrize("kind", ["lanes", "limits"])
def test_latches_that_a_queue_has_lost_are_made_again(db: psycopg.Connection, kind: str) -> None:
    put(db, "q", lane="a" if kind == "lanes" else None)
    if kind == "limits":
        rows(db, "SELECT pgqueue.set_limit('q', concurrency => 1)")
    made = rows(db, LATCHES)
    db.execute("DELETE FROM pgqueue.latch")
    assert taken(db, "q", 1) == 0
    rows(db, "SELECT pgqueue.clean_up()")
    assert rows(db, LATCHES) == made
    assert taken(db, "q", 1) == 1


@pytest.mark.parametrize(
    "statement",
    ["SELECT FROM {} FOR UPDATE", "DO $$ BEGIN LOCK TABLE {} IN ACCESS SHARE MODE; END $$", "DELETE FROM {}"],
)
def test_no_role_locks_latches_by_itself(
    db: psycopg.Connection, user: psycopg.Connection, stranger: Connect, statement: str
) -> None:
    put(user, "q", lane="a")
    for conn in (user, stranger()):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(statement.format("pgqueue.latch"))


# --- periodic work in a transaction that stays open


def dead_task(db: psycopg.Connection, connect: Connect) -> int:
    """A task whose taker has just died, without a grace."""
    taker = connect()
    taker.execute("SELECT pgqueue.open_session(label => 'dead', grace => '0')")
    put(db, "q")
    (id,) = column(taker, "SELECT id FROM pgqueue.take('q')")
    die(taker, db)
    return int(id)


def later(db: psycopg.Connection) -> None:
    """Move the beginnings of the periodic work so far back that others go on."""
    for work in ("sweep", "promotion", "cleaning"):
        rows(db, f"SELECT setval('pgqueue.begun_{work}', last_value - 2000000) FROM pgqueue.begun_{work}")


WORK = ("SELECT pgqueue.promote_all()", "SELECT pgqueue.sweep()", "SELECT pgqueue.clean_up()")
FOREIGN = "SELECT blocks FROM pgqueue._foreign_locks() WHERE pid = %s"
STATED = "SELECT pgqueue.set_status('old', '1', ttl => '1 ms')"


@pytest.fixture
def idle(connect: Connect) -> Iterator[psycopg.Connection]:
    """A transaction that has done the periodic work and goes on."""
    with connect(autocommit=False) as conn:
        for call in WORK:
            conn.execute(call)
        yield conn
        conn.rollback()


def test_dead_sessions_are_swept_beside_an_open_transaction_that_sweeps(
    db: psycopg.Connection, connect: Connect, idle: psycopg.Connection
) -> None:
    id = dead_task(db, connect)
    assert row(db, "SELECT freed, clients FROM pgqueue.sweep()") == (0, None)
    later(db)
    assert row(db, "SELECT freed FROM pgqueue.sweep()") == (1,)
    assert state(db, id) == "ready"


def test_due_tasks_are_promoted_beside_an_open_transaction_that_promotes(
    db: psycopg.Connection, idle: psycopg.Connection
) -> None:
    id = put(db, "q", delay="1 h")
    pass_time(db, "2 h")
    rows(db, WORK[0])
    assert value(db, "SELECT state FROM pgqueue.task WHERE id = %s", id) == "D"
    later(db)
    rows(db, WORK[0])
    assert value(db, "SELECT state FROM pgqueue.task WHERE id = %s", id) == "R"


def test_the_cleaning_goes_on_beside_an_open_transaction_that_cleans(
    db: psycopg.Connection, idle: psycopg.Connection
) -> None:
    rows(db, STATED)
    eventually(lambda: value(db, "SELECT clock_timestamp() > expires_at FROM pgqueue.status"))
    rows(db, WORK[2])
    assert value(db, "SELECT count(*) FROM pgqueue.status") == 1
    later(db)
    rows(db, WORK[2])
    assert value(db, "SELECT count(*) FROM pgqueue.status") == 0


def test_work_beside_another_waits_for_none_of_its_rows(db: psycopg.Connection, connect: Connect) -> None:
    """Each call ends, and none raises, while a transaction has written all that such work writes."""
    db.execute("SET statement_timeout = '5s'")
    puts = [put(db, "q", delay="1 h") for _ in range(3)]
    dead_task(db, connect)
    rows(db, STATED)
    pass_time(db, "2 h")
    with connect(autocommit=False) as idle:
        for call in WORK:
            idle.execute(call)
        assert len(puts) == 3
        put(db, "q", delay="0.001 s")
        later(db)
        for call in WORK:
            rows(db, call)
        idle.rollback()


@pytest.mark.slow
def test_a_transaction_that_lasts_does_no_more_of_the_work(
    db: psycopg.Connection, connect: Connect, idle: psycopg.Connection
) -> None:
    eventually(lambda: value(idle, "SELECT clock_timestamp() > now() + interval '2 s'"))
    id = dead_task(db, connect)
    assert row(idle, "SELECT freed, clients FROM pgqueue.sweep()") == (0, None)
    assert row(db, "SELECT freed FROM pgqueue.sweep()") == (1,)
    assert state(db, id) == "ready"


def test_health_names_a_transaction_that_has_been_at_the_work_for_long(
    db: psycopg.Connection, idle: psycopg.Connection
) -> None:
    assert rows(db, FOREIGN, idle.info.backend_pid) == []
    began = "(extract(epoch FROM now()) - 11)::int"
    for work in ("sweeping", "promoting", "cleaning"):  # as if it had begun 11 seconds ago
        idle.execute(f"SELECT pg_advisory_xact_lock_shared(pgqueue._{work}_lock(), {began})")
    assert column(db, FOREIGN, idle.info.backend_pid) == [
        "delayed tasks, deadlines and statistics",
        "the cleaning",
        "the return of the tasks of dead sessions",
    ]


# --- what a role has made in thousands


def test_a_tick_buries_a_long_chain_in_parts(db: psycopg.Connection) -> None:
    n = 30
    put = """jsonb_build_object('queue', 'q', 'data', g, 'on_failure', 'bury',
                               'after', CASE WHEN g > 1 THEN jsonb_build_array(1 - g) ELSE '[]' END)"""
    ids = value(db, f"SELECT pgqueue.put_graph((SELECT jsonb_agg({put}) FROM generate_series(1, %s) g))", n)
    rows(db, WORK[0])
    rows(db, "SELECT pgqueue.bury(%s)", ids[0])
    buried = "SELECT count(*) FROM pgqueue.task WHERE state = 'B'"
    rows(db, WORK[0])
    assert value(db, buried) < n
    assert rows(db, "SELECT DISTINCT queue_id FROM pgqueue.flow_check WHERE queue_id = 0") == [(0,)]
    eventually(lambda: rows(db, WORK[0]) and value(db, buried) == n)


def test_ticks_leave_the_checks_of_a_limit_in_parts(db: psycopg.Connection, connect: Connect) -> None:
    """While a snapshot is held, and after its end: then each task that may begin is found."""
    n = 600
    db.execute("SELECT pgqueue.create_queue('q')")
    rows(db, "SELECT pgqueue.set_limit('q', concurrency => 1, argument => 'k')")
    filled(db, "q", n)
    eventually(lambda: rows(db, WORK[0]) and not rows(db, "SELECT FROM pgqueue.task_limit WHERE changing"))
    number = "SELECT count(*) FROM pgqueue.meter_check"
    with connect(autocommit=False) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        rows(db, "SELECT pgqueue.set_limit('q', concurrency => 2, argument => 'k')")
        before = value(db, number)
        for _ in range(5):
            rows(db, WORK[0])
        assert value(db, number) == before  # they are ten seconds away
        db.execute("DELETE FROM pgqueue.meter_check; UPDATE pgqueue.task_limit SET rechecked_at = '-infinity'")
        for sum in (250, 500, 600, 600):
            rows(db, WORK[0])
            assert value(db, number) == sum
        holder.rollback()
    db.execute("DELETE FROM pgqueue.meter_check")
    eventually(lambda: rows(db, WORK[0]) and not rows(db, "SELECT FROM pgqueue.task_limit WHERE changing"))
    assert value(db, "SELECT count(DISTINCT meter) FROM pgqueue.meter_check") == n
    assert taken(db, "q", n) == n


#: Reads of what other roles may have made in thousands.
READS = {
    "due_schedules": (
        "SELECT count(*) FROM pgqueue.due_schedules()",
        "pgqueue.set_schedule('s' || g, 'q', '1', every => '1 h')",
    ),
    "schedules": ("SELECT count(*) FROM pgqueue.schedules", "pgqueue.set_schedule('s' || g, 'q', '1', every => '1 h')"),
    "batches": ("SELECT count(*) FROM pgqueue.batches", "pgqueue.create_batch('b' || g)"),
    "batch_stats": ("SELECT count(*) FROM pgqueue.batch_stats", "pgqueue.create_batch('b' || g)"),
}
CALLS = """
    SELECT coalesce(sum(calls), 0) FROM pg_stat_xact_user_functions
     WHERE schemaname = 'pgqueue' AND funcname IN ('_may', '_may_see', '_may_name', '_may_with', '_is_callers')"""


@pytest.mark.parametrize("read", READS)
def test_rights_are_asked_by_set_and_not_by_row(db: psycopg.Connection, dsn: str, connect: Connect, read: str) -> None:
    query, make = READS[read]
    with made(dsn, db) as roles:
        roles("put", "take", pattern="q")
        other = roles("put", "take", pattern="other")
        asked = []
        for first, last in ((1, 10), (11, 60)):
            rows(db, f"SELECT {make} FROM generate_series({first}, {last}) g")
            with connect(autocommit=False) as conn:
                conn.execute("SET LOCAL track_functions = 'all'")
                conn.execute(f"SET LOCAL SESSION AUTHORIZATION {other}")
                conn.execute(query)
                asked.append(value(conn, CALLS))
                conn.rollback()
    assert asked[0] == asked[1]
