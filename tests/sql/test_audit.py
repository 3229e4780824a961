"""The audit trail: each operators' verb leaves a row, the hot ones none, and no role writes or forges one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql
from statements import column, put, row, rows, take, value

Connect = Callable[..., psycopg.Connection]
MakeRole = Callable[..., str]

pytestmark = pytest.mark.once

DEEDS = "SELECT verb, queue, object, count FROM pgqueue.audit ORDER BY id"

#: What is there before: a queue with a task of id 1 to 4: ready, buried, delayed and taken.
BEFORE = """
    SELECT pgqueue.put('q', '1');
    SELECT pgqueue.put('q', '2'); SELECT pgqueue.bury(2);
    SELECT pgqueue.put('q', '3', delay => '1 h');
    SELECT pgqueue.put('q', '4', key => 'k', priority => -1);
    SELECT pgqueue.take('q')
"""

#: A server in a copy of the table of servers.
COPIED = '{"number": 0, "dsn": "service=db0", "state": "active", "is_home": true}'

#: Each operators' verb, and the row that it leaves.
VERBS: list[tuple[str, tuple[Any, ...]]] = [
    ('alter_queue(\'q\', \'{"ttr": 60, "metadata": "xyzzy"}\')', ("alter", "q", None, None)),
    ("rename_queue('q', 'r')", ("rename", "q", "r", None)),
    ("delete_queue('q', force => true)", ("delete_queue", "q", None, 4)),
    ("pause_queue('q', '1 min')", ("pause", "q", None, None)),
    ("pause_queue('q', '0')", ("resume", "q", None, None)),
    ("drain_queue('q')", ("drain", "q", None, None)),
    ("drain_queue('q', false)", ("undrain", "q", None, None)),
    ("drain_queues()", ("drain", None, None, None)),
    ("truncate_queue('q')", ("truncate", "q", None, 4)),
    ("truncate_queue('q', states => '{buried,ready}')", ("truncate", "q", None, 2)),
    ("move_out('q')", ("move_out", "q", None, 3)),
    (
        'move_in(\'q\', ARRAY [\'{"data":9, "state":"B", "priority":0, "attempts":0, "created_at":"now"}\'::jsonb])',
        ("move_in", "q", None, 1),
    ),
    ("release_all('q')", ("release", "q", None, 1)),
    ("kick('q')", ("kick", "q", "2", 1)),
    ("kick_task(3)", ("kick", "q", "3", 1)),
    ("put_again(2)", ("put_again", "q", "2", 1)),
    ("delete(1)", ("delete", "q", "1", 1)),
    ("delete_strict(1)", ("delete", "q", "1", 1)),
    ("delete_strict(2)", ("delete", "q", "2", 1)),
    ("bury(1)", ("bury", "q", "1", 1)),
    ("delete_messages('listed', '{5}')", ("delete", "listed", "5", 1)),
    ("cancel(1)", ("cancel", "q", "1", 1)),
    ("cancel(4)", ("cancel", "q", "4", 1)),
    ("cancel_key('q', 'k')", ("cancel", "q", "4", 1)),
    ("cancel_many('{1,2,3,99}')", ("cancel", "q", None, 3)),
    ("act_on_tasks('q', 'kick', 'buried')", ("kick", "q", "2", 1)),
    ("act_on_tasks('q', 'release', 'taken')", ("release", "q", None, 1)),
    ("act_on_tasks('q', 'cancel', 'ready')", ("cancel", "q", "1", 1)),
    ("act_on_tasks('q', 'delete', 'delayed')", ("delete", "q", "3", 1)),
    ("act_on_tasks('q', 'put_again', 'buried')", ("put_again", "q", "2", 1)),
    ("set_limit('q', 'j', concurrency => 2)", ("set_limit", "q", "j", None)),
    ("drop_limit('q', 'old')", ("drop_limit", "q", "old", None)),
    ("set_schedule('new', 'q', every => '1 h')", ("set_schedule", "q", "new", None)),
    ("delete_schedule('s')", ("delete_schedule", "q", "s", None)),
    ("pause_schedule('s')", ("pause_schedule", "q", "s", None)),
    ("resume_schedule('s')", ("resume_schedule", "q", "s", None)),
    ("run_schedule('s')", ("run_schedule", "q", "s", None)),
    ("delete_exchange('e')", ("delete_exchange", None, "e", None)),
    ("grant_to('pg_monitor', '{put}')", ("grant", None, "pg_monitor", None)),
    ("revoke_from('pg_monitor', '{put}')", ("revoke", None, "pg_monitor", None)),
    ("grant('q', 'pg_monitor', '{look}')", ("grant", "q", "pg_monitor", None)),
    ("revoke('q', 'pg_monitor', '{look}')", ("revoke", "q", "pg_monitor", None)),
    ("grant_monitor('pg_monitor')", ("grant", None, "pg_monitor", None)),
    ("revoke_monitor('pg_monitor')", ("revoke", None, "pg_monitor", None)),
    ("restrict_queue('q')", ("restrict", "q", None, None)),
    ("restrict_queue('q', false)", ("unrestrict", "q", None, None)),
    ("set_quota('queues', 5)", ("set_quota", None, "queues", None)),
    ("set_server(3)", ("set_server", None, "3", None)),
    ("add_server(7, 'service=db7')", ("add_server", None, "7", None)),
    ("set_server_state(5, 'draining')", ("set_server_state", None, "5", None)),
    ("remove_server(6)", ("remove_server", None, "6", None)),
    (f"copy_servers((SELECT id FROM pgqueue.cluster), 9, '[{COPIED}]')", ("copy_servers", None, None, None)),
]

#: Functions that change what is there, and are no operators' verbs: what takers, clients and applications call.
OTHERS = {
    *("ack", "ack_many", "allow_flows", "allow_lanes", "ask_lock", "await_ends", "bind", "claim_messages"),
    *("clean_up", "clear_will", "close_batch", "close_session", "count_runs", "create_batch", "create_node"),
    *("create_queue", "declare_exchange", "declare_limit", "declare_schedules", "delete_batch", "delete_message"),
    *("delete_node", "delete_status", "drop_lock", "enter_line", "fail", "finish", "finish_many"),
    *("fire_schedule", "forget_undo", "identify", "join_group", "leave_ends", "leave_line", "observe", "open_session"),
    *("pass_on", "pop", "post", "progress", "promote_all", "publish", "put", "put_flow", "put_flow_many", "put_graph"),
    *("put_many", "queue_id", "record_step", "register_worker", "release", "release_claim", "release_many"),
    *("renew_claim", "requeue", "set_node", "set_status", "set_will", "sweep", "take", "take_id", "take_many"),
    *("take_or_listen", "tick", "touch", "try_lock", "unbind", "undo_take", "unlock", "unobserve"),
    *("unregister_worker", "arm", "arm_again", "disarm", "stop_hearing"),
}


@pytest.fixture
def used(db: psycopg.Connection) -> psycopg.Connection:
    db.execute(BEFORE)
    db.execute("SELECT pgqueue.create_queue('listed', listed => true), pgqueue.declare_exchange('e')")
    put(db, "listed", "5")
    db.execute("SELECT pgqueue.declare_limit('q', 'old', concurrency => 1)")
    db.execute("SELECT pgqueue.set_schedule('s', 'q', every => '1 h')")
    for server in (0, 5, 6):
        db.execute("SELECT pgqueue.add_server(%s, 'service=db')", [server])
    db.execute("SELECT pgqueue.set_server_state(6, 'draining')")
    db.execute("TRUNCATE pgqueue.audit_entry")
    return db


@pytest.mark.parametrize(("call", "left"), VERBS, ids=[call for call, _ in VERBS])
def test_each_operators_verb_leaves_one_row(used: psycopg.Connection, call: str, left: tuple[Any, ...]) -> None:
    if call.startswith("resume"):
        used.execute("SELECT pgqueue.pause_schedule('s')")
        used.execute("TRUNCATE pgqueue.audit_entry")
    elif call.startswith("set_server("):
        used.execute("ALTER SEQUENCE pgqueue.task_id_seq RESTART; TRUNCATE pgqueue.cluster")  # as if it were new
    used.execute(f"SELECT pgqueue.{call}")
    assert rows(used, DEEDS) == [left]
    assert "xyzzy" not in value(used, "SELECT row_to_json(a)::text FROM pgqueue.audit a")


def test_every_function_that_changes_something_is_in_one_of_the_lists(db: psycopg.Connection) -> None:
    """A new verb has to be decided on: it is volatile, and has no leading underscore."""
    found = column(
        db,
        "SELECT DISTINCT p.proname::text FROM pg_proc p"
        " WHERE p.pronamespace = 'pgqueue'::regnamespace AND p.provolatile = 'v' AND p.prorettype <> 'trigger'::regtype"
        " AND NOT starts_with(p.proname, '_')",
    )
    verbs = {call.partition("(")[0] for call, _ in VERBS}
    assert not verbs & OTHERS
    assert (verbs | OTHERS) - set(found) == set()
    unknown = set(found) - verbs - OTHERS
    reading = {name for name in unknown if not _writes(db, name)}
    assert unknown - reading == set()


def _writes(db: psycopg.Connection, name: str) -> bool:
    """Whether a function's own text writes, or calls a helper for it."""
    query = "SELECT string_agg(p.prosrc, ' ') FROM pg_proc p WHERE p.pronamespace = 'pgqueue'::regnamespace"
    text = value(db, query + " AND p.proname = %s", name) or ""
    return any(word in text for word in ("INSERT INTO", "UPDATE pgqueue", "DELETE FROM", "_record", "_signal"))


def test_the_hot_verbs_leave_none(db: psycopg.Connection) -> None:
    for n in range(5):
        put(db, "q", str(n))
    db.execute("SELECT pgqueue.put_many('q', '[1, 2]'::jsonb)")
    for settle in ("ack", "release", "bury", "touch", "finish"):
        id, token = take(db, "q")
        db.execute(f"SELECT pgqueue.{settle}({id}, {token})")
    id, token = take(db, "q")
    db.execute(f"SELECT pgqueue.delete_strict({id}, {token})")  # by its holder
    db.execute("SELECT pgqueue.pop('q'), pgqueue.tick(), pgqueue.clean_up(), pgqueue.sweep()")
    assert rows(db, DEEDS) == []


@pytest.mark.parametrize(
    "call",
    [
        "kick('none')",
        "kick_task(1)",
        "delete(99)",
        "delete_strict(99)",
        "put_again(99)",
        "cancel(99)",
        "cancel_many('{}')",
        "truncate_queue('empty')",
        "release_all('empty')",
        "act_on_tasks('empty', 'delete', 'ready')",
        "act_on_tasks('empty', 'release', 'taken')",
        "act_on_tasks('empty', 'put_again', 'done')",
        "drop_limit('q', 'none')",
        "set_schedule('s', 'q', every => '1 h')",
        "pause_schedule('paused')",
    ],
)
def test_a_call_that_changes_nothing_leaves_none(used: psycopg.Connection, call: str) -> None:
    used.execute("SELECT pgqueue.create_queue('empty'), pgqueue.set_schedule('paused', 'q', every => '1 h')")
    used.execute("SELECT pgqueue.pause_schedule('paused')")
    used.execute("TRUNCATE pgqueue.audit_entry")
    used.execute(f"SELECT pgqueue.{call}")
    assert rows(used, DEEDS) == []


def test_a_call_that_is_rolled_back_or_refused_leaves_none(used: psycopg.Connection, connect: Connect) -> None:
    with connect(autocommit=False) as other:
        other.execute("SELECT pgqueue.truncate_queue('q')")
        other.rollback()
    with pytest.raises(psycopg.Error):
        used.execute("SELECT pgqueue.pause_queue('none', '1 s')")
    assert rows(used, DEEDS) == []


# --- roles


def test_a_row_has_the_role_of_the_call_and_that_of_the_connection(
    db: psycopg.Connection, connect: Connect, make: MakeRole
) -> None:
    role = make()
    put(db, "q", "1")
    connect(options=f"-c role={role}").execute("SELECT pgqueue.pause_queue('q', '1 min')")
    login = value(db, "SELECT session_user")
    assert row(db, "SELECT role, login, actor, detail FROM pgqueue.audit WHERE verb = 'pause'") == (
        role,
        login,
        None,
        "00:01:00",
    )
    assert (
        value(db, "SELECT clock_timestamp() - at BETWEEN '0' AND '1 min' FROM pgqueue.audit WHERE verb = 'pause'")
        is True
    )


def test_the_actor_is_what_the_session_says(db: psycopg.Connection) -> None:
    put(db, "q", "1")
    for actor in ("ada", "", "x" * 1000):
        db.execute("SELECT set_config('pgqueue.actor', %s, false)", [actor])
        db.execute("SELECT pgqueue.pause_queue('q', '1 min')")
    assert column(db, "SELECT actor FROM pgqueue.audit ORDER BY id") == ["ada", None, "x" * 200]
    assert column(db, "SELECT DISTINCT role FROM pgqueue.audit") == [value(db, "SELECT current_user")]


def test_a_role_sees_its_own_and_monitors_and_the_owner_see_all(
    db: psycopg.Connection, connect: Connect, make: MakeRole
) -> None:
    one, other = make(), make()
    monitor = make("SELECT pgqueue.grant_monitor(%s)")
    db.execute("TRUNCATE pgqueue.audit_entry")
    put(db, "q", "1")
    for role in (one, other):
        connect(options=f"-c role={role}").execute("SELECT pgqueue.drain_queue('q')")

    def seen(role: str | None) -> list[str]:
        conn = db if role is None else connect(options=f"-c role={role}")
        return column(conn, "SELECT role FROM pgqueue.audit ORDER BY id")

    assert seen(one) == [one]
    assert seen(other) == [other]
    assert seen(monitor) == seen(None) == [one, other]
    db.execute(sql.SQL("ALTER ROLE {} RENAME TO {}").format(sql.Identifier(one), sql.Identifier(one + "_old")))
    db.execute(sql.SQL("ALTER ROLE {} RENAME TO {}").format(sql.Identifier(other), sql.Identifier(one)))
    try:
        assert seen(one) == []  # another role, with the name that an earlier one had
        assert seen(None) == [one, other]
    finally:
        db.execute(sql.SQL("ALTER ROLE {} RENAME TO {}").format(sql.Identifier(one), sql.Identifier(other)))
        db.execute(sql.SQL("ALTER ROLE {} RENAME TO {}").format(sql.Identifier(one + "_old"), sql.Identifier(one)))


@pytest.mark.parametrize(
    "attempt",
    [
        "INSERT INTO pgqueue.audit_entry (at, role_oid, role, login, verb) VALUES (now(), 10, 'ada', 'ada', 'kick')",
        "INSERT INTO pgqueue.audit (at, verb) VALUES (now(), 'kick')",
        "UPDATE pgqueue.audit SET actor = 'ada'",
        "DELETE FROM pgqueue.audit",
        "TRUNCATE pgqueue.audit_entry",
        "SELECT pgqueue._record('kick', 'q')",
        "SELECT pgqueue._record_tasks('kick', 1, '{1}')",
        "SELECT pgqueue._record_grant('grant', 'pg_monitor', '{put}', 1, NULL)",
        "SELECT pgqueue._clean_audit()",
        "SELECT * FROM pgqueue.audit_entry",
    ],
)
def test_no_other_role_writes_removes_or_forges_a_row(
    db: psycopg.Connection, connect: Connect, make: MakeRole, attempt: str
) -> None:
    role = make()
    before = rows(db, "SELECT * FROM pgqueue.audit_entry")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connect(options=f"-c role={role}").execute(attempt)
    db.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgqueue TO {role}")  # by mistake
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connect(options=f"-c role={role}").execute(attempt)
    assert rows(db, "SELECT * FROM pgqueue.audit_entry") == before


# --- the bound


def test_the_newest_ten_thousand_stay(db: psycopg.Connection) -> None:
    put(db, "q", "1")
    db.execute("SELECT pgqueue.pause_queue('q', '0') FROM generate_series(1, 25)")
    db.execute(
        "INSERT INTO pgqueue.audit_entry (at, role_oid, role, login, verb)"
        " SELECT now(), 10, 'r', 'r', 'new' FROM generate_series(1, 10000)"
    )
    db.execute("SELECT pgqueue.clean_up()")
    assert rows(db, "SELECT verb, count(*) FROM pgqueue.audit GROUP BY 1") == [("new", 10_000)]
    db.execute("SELECT pgqueue.clean_up()")
    assert value(db, "SELECT count(*) FROM pgqueue.audit") == 10_000


@pytest.mark.slow
def test_a_flood_is_removed_in_parts(db: psycopg.Connection) -> None:
    db.execute(
        "INSERT INTO pgqueue.audit_entry (at, role_oid, role, login, verb)"
        " SELECT now(), 10, 'r', 'r', 'flood' FROM generate_series(1, 250000)"
    )
    left = []
    for _ in range(3):
        db.execute("SELECT pgqueue._clean_audit()")
        left.append(value(db, "SELECT count(*) FROM pgqueue.audit"))
    assert left == [150_000, 50_000, 10_000]
