"""lock_timeout: a listener's is short, a worker's too, and a commit with a notification must not end by them.

PostgreSQL lets such commits pass one after another. Behind many of them a tick or an ack waits for longer than it may
wait for other locks, and would be rolled back with all its work. See nowait.sql, and hasty() of _calls/call.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from eventually import eventually
from statements import put, rows, value

from pgqueue._calls import ack, attempts, results, settle
from pgqueue._calls.call import Call, Fence, Refused
from pgqueue._engine.listener import LOCK_TIMEOUT

Connect = Callable[..., psycopg.Connection]

NOW = "SELECT current_setting('lock_timeout')"
#: Functions that set lock_timeout back by hand, or by a SET of their own, although they reach _notify: why they may.
ALLOWED = {
    "_promote_or_wait": "it notifies only while nothing has changed the setting",
    "fire_schedule": "no listener calls it: a clock has a connection of its own",
}


@pytest.fixture
def listener(connect: Connect) -> psycopg.Connection:
    """A listener's connection, for which a taker waits in q."""
    conn = connect(autocommit=True)
    conn.execute("SELECT pgqueue.open_session(label => 'listener')")
    conn.execute(LOCK_TIMEOUT.encode())
    conn.execute("SELECT pgqueue.arm(ARRAY [pgqueue.queue_id('q')])")
    return conn


def left_by(conn: psycopg.Connection, call: str) -> str:
    """The lock_timeout with which the transaction of a call commits."""
    with conn.transaction():
        rows(conn, call)
        return str(value(conn, NOW))


def a_task_is_due(db: psycopg.Connection) -> None:
    put(db, "q", delay="1 h")
    db.execute("UPDATE pgqueue.task SET run_at = now()")


def test_a_tick_that_notifies_commits_without_a_limit(db: psycopg.Connection, listener: psycopg.Connection) -> None:
    assert left_by(listener, "SELECT pgqueue.promote_all()") == "10ms"
    a_task_is_due(db)
    assert left_by(listener, "SELECT pgqueue.promote_all()") == "0"
    assert value(listener, NOW) == "10ms", "after its end"


def test_so_does_a_tick_beside_another_one_that_stays_open(
    db: psycopg.Connection, connect: Connect, listener: psycopg.Connection
) -> None:
    other = connect(autocommit=False)
    other.execute("SELECT pgqueue.promote_all()")
    ready = "SELECT count(*) FROM pgqueue.task WHERE state = 'R'"
    left = []

    def tick() -> bool:
        a_task_is_due(db)
        before = value(db, ready)
        left.append(left_by(listener, "SELECT pgqueue.promote_all()"))
        return bool(value(db, ready) > before)

    eventually(tick)  # after two seconds
    assert left[-1] == "0"
    assert set(left[:-1]) <= {"10ms"}
    other.rollback()


@pytest.mark.parametrize("call", ["join_group('g')", "create_node('/n', '1')"])
def test_so_does_a_member_or_a_node(listener: psycopg.Connection, call: str) -> None:
    assert left_by(listener, f"SELECT pgqueue.{call}") == "0"


def test_join_group_waits_a_second_and_gives_the_setting_back(db: psycopg.Connection, connect: Connect) -> None:
    conn = connect()
    conn.execute("SET lock_timeout = '20 s'")
    conn.execute("SELECT pgqueue.open_session()")
    assert left_by(conn, "SELECT pgqueue.join_group('g')") == "20s"
    holder = connect(autocommit=False)
    holder.execute("SELECT pgqueue.open_session()")
    holder.execute("SELECT pgqueue.join_group('new')")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        conn.execute("SELECT pgqueue.join_group('new')")
    holder.rollback()


def test_no_other_function_undoes_what_notify_has_set(db: psycopg.Connection) -> None:
    found = rows(db, "SELECT proname, prosrc, proconfig FROM pg_proc WHERE pronamespace = 'pgqueue'::regnamespace")
    bodies = {name: re.sub(r"--.*", "", body) for name, body, _ in found}
    reaching = {"_notify"}
    while (
        more := {
            name for name, body in bodies.items() if reaching & {*re.findall(r"(?<!INTO )\bpgqueue\.(\w+)\s*\(", body)}
        }
        - reaching
    ):
        reaching |= more
    assert {"put", "promote_all", "join_group", "_do_beside"} - reaching == {"_do_beside"}, "its parts are texts"
    undoing = {name for name, body in bodies.items() if re.search(r"set_config\('lock_timeout', [a-z]", body)}
    undoing |= {name for name, _, config in found if any(one.startswith("lock_timeout=") for one in config or ())}
    assert undoing & (reaching | {"_do_beside"}) == ALLOWED.keys()


# --- a worker's calls


#: As a worker settles tasks: by ids, each with its token.
HASTY: dict[str, Callable[[list[tuple[int, int]]], Call[list[Refused]]]] = {
    "ack": lambda named: ack.ack_many(named, Fence(None, None), patient=False),
    "finish": lambda named: results.finish_many(named, ["1"] * len(named), Fence(None, None), 60),
    "release": lambda named: settle.release_many(named, Fence(None, None), patient=False),
    "put off": lambda named: settle.put_off_many([(id, token, 60.0) for id, token in named]),
    "fail": lambda named: results.fail_many(
        [
            results.Failed(
                id=id, token=token, error="broken", keep=60.0, delay=None, hold_lane=False, report=attempts.Report()
            )
            for id, token in named
        ],
        patient=False,
    ),
}


def taken(db: psycopg.Connection, n: int) -> list[tuple[int, int]]:
    for _ in range(n):
        put(db, "q")
    return [(id, token) for id, token in rows(db, "SELECT id, token FROM pgqueue.take_many('{q}', %s)", n)]


@pytest.mark.parametrize("verb", HASTY)
def test_a_worker_waits_for_no_lock_and_commits_without_a_limit(
    db: psycopg.Connection, connect: Connect, verb: str
) -> None:
    db.execute("SELECT pgqueue.open_session()")
    named = taken(db, 2)
    call: Call[Any] = HASTY[verb](named)
    holder = connect(autocommit=False)
    holder.execute("SELECT FROM pgqueue.task WHERE id = %s FOR UPDATE", [named[1][0]])
    holder.execute("SELECT FROM pgqueue.take WHERE task_id = %s FOR UPDATE", [named[1][0]])
    with pytest.raises(psycopg.errors.LockNotAvailable):
        db.execute(call.sql, call.args)
    holder.rollback()
    with db.transaction():
        assert call.read(rows(db, call.sql, *call.args)) == []
        assert value(db, NOW) == "0"
    assert rows(db, "SELECT FROM pgqueue.take") == []
