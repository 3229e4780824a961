"""No tick waits at a foreign key.

The server locks rows at a foreign key by itself, and waits for them: a row that is written locks the one that it refers
to, and a row that is deleted locks those that refer to it. So there is work for the ticks at each key, while a call
that locks such rows is open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import psycopg
import pytest
from altered import replaced
from eventually import eventually
from statements import column, put, rows, state
from stepping import die

Connect = Callable[..., psycopg.Connection]
MakeRole = Callable[..., str]

KEYS = """
    SELECT substr(conrelid::regclass::text, 9), substr(confrelid::regclass::text, 9) FROM pg_constraint
     WHERE contype = 'f' AND connamespace = 'pgqueue'::regnamespace"""
BODIES = """
    SELECT proname, string_agg(regexp_replace(coalesce(pg_get_function_sqlbody(oid), prosrc), '--[^\n]*', '', 'g'), '')
      FROM pg_proc WHERE pronamespace = 'pgqueue'::regnamespace AND prokind = 'f' GROUP BY 1"""

TICKS = ("promote_all()", "sweep()", "clean_up()")

#: A transaction that has made one of these is open. All concern what the ticks are about to change.
CALLS = (
    """alter_queue('listed', '{"listed": false}')""",
    "bind('busy', 'passing', 'another')",
    "clean_up()",
    "close_session()",
    "create_node('/n/new')",
    "create_queue('left')",  # first it deletes the queue of that name, whose session has ended
    "declare_limit('busy', 'declared', 5)",
    "delete_exchange('passing')",
    "delete_node('/n/plain')",
    "delete_queue('busy')",
    "drop_limit('busy', 'set')",
    "join_group('g')",
    "promote_all()",
    "publish('news', 'k', '2', retain => true)",
    "rename_queue('busy', 'renamed')",
    "set_limit('busy', 'set', concurrency => 3)",
    "set_node('/n/ephemeral', '1')",
    "sweep()",
    "take_or_listen('{plain}')",
    "tick()",
    "unbind('busy', 'passing', 'k')",
)
PROMOTING = ("promote_all()", "take_or_listen('{plain}')", "tick()")

#: Else a tick beside an open one would not begin.
BEGUN_LONG_AGO = "SELECT setval('pgqueue.begun_' || work, 1) FROM unnest('{sweep,promotion,cleaning}'::text[]) work"

#: What ticks of some transactions before have written (changeover.sql).
STAGES = """
    UPDATE pgqueue.task_limit SET altered = NULL WHERE job IN ('begun', 'over', 'dropped');
    UPDATE pgqueue.task_limit SET ended = pg_current_xact_id() WHERE job IN ('over', 'dropped');
    UPDATE pgqueue.listing SET altered = NULL"""


def tick(conn: psycopg.Connection) -> None:
    for work in TICKS:
        conn.execute(f"SELECT pgqueue.{work}")


def prepare(db: psycopg.Connection, connect: Connect, role: str) -> int:
    """Work for each tick at each key: limits and a listing at several stages of their changes, and what a session that
    has died leaves, with bindings of the role. Returns a task that is due."""
    dead = connect()
    dead.execute("SELECT pgqueue.open_session(label => 'dead', grace => '0')")
    for queue in ("busy", "left", "listed"):
        dead.execute("SELECT pgqueue.create_queue(%s, temporary => true, session => pgqueue.own_session())", [queue])
    dead.execute("SELECT pgqueue.declare_exchange('passing', durable => false), pgqueue.declare_exchange('news')")
    for exchange in ("passing", "news"):
        dead.execute("SELECT pgqueue.publish(%s, 'k', '1', retain => true)", [exchange])
        dead.execute("SELECT pgqueue.bind('busy', %s, 'k'), pgqueue.bind('left', %s, 'k')", [exchange] * 2)
    dead.execute("SELECT pgqueue.set_will('news', 'k', '3', retain => true)")
    dead.execute("SELECT pgqueue.create_node('/n'), pgqueue.create_node('/n/plain')")
    dead.execute("SELECT pgqueue.create_node('/n/ephemeral', ephemeral => true)")
    die(dead, db)
    for queue, job in (("left", "over"), *(("busy", job) for job in ("set", "begun", "over", "dropped"))):
        db.execute("SELECT pgqueue.set_limit(%s, %s, concurrency => 1)", [queue, job])
    db.execute("SELECT pgqueue.declare_limit('busy', 'declared', 4), pgqueue.drop_limit('busy', 'dropped')")
    db.execute("""SELECT pgqueue.alter_queue('listed', '{"listed": true}')""")
    db.execute(STAGES)
    db.execute("UPDATE pgqueue.queue SET session_id = 1000000 WHERE name = 'left'")
    db.execute("UPDATE pgqueue.binding SET role = %s", [role])
    id = put(db, "plain", delay="1 h")
    db.execute("UPDATE pgqueue.task SET run_at = now() WHERE id = %s", [id])
    return id


@pytest.fixture
def due(db: psycopg.Connection, connect: Connect, make: MakeRole) -> Iterable[int]:
    """The same after a rename of the role."""
    role = make(None)
    id = prepare(db, connect, role)
    db.execute(f"ALTER ROLE {role} RENAME TO {role}_new")
    yield id
    db.execute(f"ALTER ROLE {role}_new RENAME TO {role}")


def referred(db: psycopg.Connection) -> list[str]:
    """Statements that lock all rows of a table that a key refers to, as strongly as a delete does."""
    return [f"SELECT FROM pgqueue.{table} FOR UPDATE" for table in sorted({table for _, table in rows(db, KEYS)})]


def failed(
    locker: psycopg.Connection, worker: psycopg.Connection, calls: Iterable[str], due: int
) -> list[tuple[str, str]]:
    """The ticks that waited for one of the calls, or left out the task that is due. Everything is rolled back."""
    found = []
    for call in calls:
        locker.execute(call)
        rows(worker, BEGUN_LONG_AGO)
        for work in TICKS:
            try:
                with worker.transaction(force_rollback=True):
                    worker.execute(f"SELECT pgqueue.{work}")
                    if work == "promote_all()" and not call.endswith(PROMOTING) and state(worker, due) != "ready":
                        found.append((call, "left out"))
            except psycopg.errors.LockNotAvailable:
                found.append((call, work))
        locker.rollback()
    return found


@pytest.fixture
def locker(connect: Connect) -> psycopg.Connection:
    conn = connect(autocommit=False)
    conn.execute("SELECT pgqueue.open_session()")
    conn.commit()
    return conn


@pytest.fixture
def worker(connect: Connect) -> psycopg.Connection:
    return connect(options="-c lock_timeout=1000")


@pytest.mark.slow
def test_no_tick_waits_at_a_key(
    db: psycopg.Connection, locker: psycopg.Connection, worker: psycopg.Connection, due: int
) -> None:
    places = {table: f"SELECT ctid FROM pgqueue.{table}" for table, _ in rows(db, KEYS)}
    before = {table: set(column(db, query)) for table, query in places.items()}
    assert failed(locker, worker, [*(f"SELECT pgqueue.{call}" for call in CALLS), *referred(db)], due) == []
    # Without them the ticks do all of it, and so there was something to do at each key.
    eventually(lambda: tick(db) or not rows(db, "SELECT FROM pgqueue.queue WHERE name <> 'plain'"))
    assert {table for table, query in places.items() if before[table] <= set(column(db, query))} == set()
    assert column(db, "SELECT name FROM pgqueue.exchange") == ["news"]
    assert column(db, "SELECT data FROM pgqueue.retained") == [3]


def test_a_queue_is_deleted_beside_an_open_tick_that_came_later(
    locker: psycopg.Connection, worker: psycopg.Connection, due: int
) -> None:
    """The tick leaves nothing locked of a queue that it leaves out."""
    locker.execute("SELECT FROM pgqueue.queue FOR UPDATE; SET lock_timeout = '1 s'")
    for work in TICKS:
        with worker.transaction(force_rollback=True):
            worker.execute(f"SELECT pgqueue.{work}")
            locker.execute("SAVEPOINT begun; DELETE FROM pgqueue.queue; ROLLBACK TO begun")


def test_all_calls_that_write_at_a_key_are_tried(db: psycopg.Connection) -> None:
    """Also those that a function calls which they call, and so on."""
    keys = rows(db, KEYS)
    writes = re.compile(
        r"(?:INSERT INTO|UPDATE|DELETE FROM) pgqueue\.(?:{})\b|DELETE FROM pgqueue\.(?:{})\b".format(
            "|".join({table for table, _ in keys}), "|".join({table for _, table in keys})
        )
    )
    bodies = dict(rows(db, BODIES))
    calls = {name: set(re.findall(r"\bpgqueue\.(\w+)\(", body)) for name, body in bodies.items()}
    reach, more = set[str](), {name for name, body in bodies.items() if writes.search(body)}
    while more - reach:
        reach |= more
        more = {name for name, called in calls.items() if called & reach}
    assert {name for name in reach if not name.startswith("_")} <= {call.split("(")[0] for call in CALLS}


KEPT = "FROM pgqueue.queue q WHERE q.id = {}.queue_id FOR KEY SHARE SKIP LOCKED"

#: A part of a tick that does not lock the queue's row first, and what then waits for which call.
PLANTED = {
    "a limit": (
        ("_go_on_limits", f"PERFORM {KEPT.format('l')}", "PERFORM"),
        {("rename_queue('busy', 'renamed')", "promote_all()"), ("delete_exchange('passing')", "promote_all()")},
    ),
    "a listing": (("_go_on_listing", f"PERFORM {KEPT.format('one')}", "PERFORM"), {("promote_all()", "sweep()")}),
    "a binding": (("_follow_renames", f"(SELECT {KEPT.format('o')})", "(SELECT)"), {("clean_up()", "sweep()")}),
}


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED)
def test_a_tick_that_waits_is_found(
    db: psycopg.Connection, locker: psycopg.Connection, worker: psycopg.Connection, due: int, planted: str
) -> None:
    change, expected = PLANTED[planted]

    def found() -> set[tuple[str, str]]:
        calls = [f"SELECT pgqueue.{call}" for call in CALLS]
        return {(call.removeprefix("SELECT pgqueue."), work) for call, work in failed(locker, worker, calls, due)}

    with replaced(db, *change):
        eventually(lambda: found() == expected)  # a change goes on only while no older transaction is open


@pytest.mark.parametrize(
    ("call", "goes_on"),
    [
        ("alter_queue('q', '{\"ttl\": \"1 h\"}')", True),
        ("set_limit('q', 'other', concurrency => 2)", True),
        ("drop_limit('q', 'other')", True),
        ("rename_queue('q', 'renamed')", False),
        ("delete_queue('q')", False),
    ],
)
def test_a_tick_leaves_out_a_queue_only_if_it_is_renamed_or_deleted(
    db: psycopg.Connection, locker: psycopg.Connection, worker: psycopg.Connection, call: str, goes_on: bool
) -> None:
    changing = "SELECT changing FROM pgqueue.task_limit WHERE job = 'over' ORDER BY id"
    db.execute("SELECT pgqueue.queue_id('q'), pgqueue.queue_id('another')")
    for queue in ("q", "another"):
        for job in ("over", "other"):
            db.execute("SELECT pgqueue.set_limit(%s, %s, concurrency => 1)", [queue, job])
    db.execute(STAGES)
    locker.execute(f"SELECT pgqueue.{call}")
    eventually(lambda: tick(worker) or column(db, changing) == [not goes_on, False])
    locker.rollback()
    eventually(lambda: tick(worker) or column(db, changing) == [False, False])
