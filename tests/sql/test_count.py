"""Statistics in SQL: the view says what a direct count says, whatever was done, by whom, and folded when.

`direct` counts rows, `counted` asks the view. Every test compares the two, so nothing here knows how deltas look.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from eventually import eventually
from planner import pages
from sampling import sampled
from statements import column, notifications, put, row, rows, take, value

Connect = Any
STATES = ("ready", "delayed", "taken", "buried", "blocked", "kept")
VIEW = f"SELECT queue, {', '.join(STATES)} FROM pgqueue.stats ORDER BY queue"
DIRECT = """
    SELECT q.name,
           count(*) FILTER (WHERE live AND NOT taken AND (state = 'R' OR state = 'D' AND run_at <= now)),
           count(*) FILTER (WHERE state = 'D' AND run_at > now),
           count(*) FILTER (WHERE taken),
           count(*) FILTER (WHERE live AND state = 'B'), count(*) FILTER (WHERE live AND state = 'L'),
           count(*) FILTER (WHERE state = 'F')
      FROM pgqueue.queue q LEFT JOIN (
           SELECT t.queue_id, t.state, t.run_at, k.task_id IS NOT NULL AS taken, clock.now,
                  t.state = 'D' OR k.task_id IS NOT NULL OR coalesce(t.expires_at > clock.now, true) AS live
             FROM (SELECT clock_timestamp() AS now) clock, pgqueue.task t
             LEFT JOIN pgqueue.take k ON k.task_id = t.id AND k.deadline > clock_timestamp()) seen
        ON seen.queue_id = q.id
     GROUP BY q.name ORDER BY q.name"""
FOLD = "SELECT pgqueue._fold_deltas(at_once => true)"
PAST = "now() - interval '1 s'"


def counted(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    return rows(conn, VIEW)


def direct(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    return rows(conn, DIRECT)


def agree(*conns: psycopg.Connection) -> bool:
    """What the view says to each connection is what that connection can count."""
    for conn in conns:
        assert counted(conn) == direct(conn)
    return True


def calls(conn: psycopg.Connection, queue: str = "q") -> dict[str, int]:
    """The verbs that were called."""
    found = value(conn, "SELECT calls FROM pgqueue.stats WHERE queue = %s", queue)
    return {verb: n for verb, n in found.items() if n}


def stat(conn: psycopg.Connection, name: str, queue: str = "q") -> Any:
    return value(conn, f"SELECT {name} FROM pgqueue.stats WHERE queue = %s", queue)


@pytest.fixture
def folded(db: psycopg.Connection) -> psycopg.Connection:
    """There is a queue, and the counters are in use: without a first fold the view counts tasks."""
    value(db, "SELECT pgqueue.queue_id('q')")
    value(db, FOLD)
    assert value(db, "SELECT pgqueue._is_counted()")
    return db


# --- what changes a count

DO = {
    "put": "SELECT pgqueue.put('q', '1')",
    "put delayed": "SELECT pgqueue.put('q', '1', delay => '1 h')",
    "put many": "SELECT pgqueue.put_many('q', '[1, 2, 3]')",
    "put many delayed": "SELECT pgqueue.put_many('q', '[1, 2, 3]', delay => '1 h')",
    "put with a key": "SELECT pgqueue.put('q', '1', key => 'k')",
    "take": "SELECT * FROM pgqueue.take('q')",
    "take many": "SELECT * FROM pgqueue.take_many('{q,r}', 5)",
    "pop": "SELECT * FROM pgqueue.pop('q')",
    "ack": "SELECT pgqueue.ack(%(held)s)",
    "ack many": "SELECT * FROM pgqueue.ack_many(ARRAY [%(held)s, 0])",
    "ack and hand on": """SELECT pgqueue.ack(%(held)s, puts => '[{"queue": "r", "data": 1}]')""",
    "release": "SELECT pgqueue.release(%(held)s)",
    "release delayed": "SELECT pgqueue.release(%(held)s, delay => '1 h')",
    "release many": "SELECT * FROM pgqueue.release_many(ARRAY [%(held)s, 0])",
    "bury taken": "SELECT pgqueue.bury(%(held)s)",
    "bury ready": "SELECT pgqueue.bury(%(ready)s)",
    "kick": "SELECT pgqueue.kick('q', 5)",
    "delete taken": "SELECT pgqueue.delete(%(held)s)",
    "delete ready": "SELECT pgqueue.delete(%(ready)s)",
    "touch": "SELECT pgqueue.touch(%(held)s, more => '1 h')",
    "publish": "SELECT pgqueue.publish('', 'q', '1')",
    "session ends": "SELECT pgqueue.close_session()",
    "queue goes": "SELECT pgqueue.delete_queue('q', force => true)",
    "raw insert": "INSERT INTO pgqueue.task (queue_id, data) SELECT q.id, '1' FROM pgqueue.queue q",
    "raw update": "UPDATE pgqueue.task SET state = 'D', run_at = now() + interval '1 h' WHERE id = %(ready)s",
    "raw update of queues": "UPDATE pgqueue.task SET queue_id = queue_id + 1 WHERE id = %(ready)s",
    "raw delete of a taken one": "DELETE FROM pgqueue.task WHERE id = %(held)s",
    "raw delete": "DELETE FROM pgqueue.task WHERE id = %(ready)s",
    "raw untake": "DELETE FROM pgqueue.take",
    "truncate tasks": "TRUNCATE pgqueue.task, pgqueue.take",
    "truncate takes": "TRUNCATE pgqueue.take",
    "delay over": f"UPDATE pgqueue.task SET run_at = {PAST} WHERE state = 'D'",
    "deadline over": f"UPDATE pgqueue.take SET deadline = {PAST}",
    "expired": f"UPDATE pgqueue.task SET expires_at = {PAST}",
    "expired while taken": f"""UPDATE pgqueue.task SET expires_at = {PAST};
                               UPDATE pgqueue.take SET deadline = {PAST}""",
}


def prepare(conn: psycopg.Connection) -> dict[str, int]:
    """A task of each kind in the queue q, and an empty queue r."""
    value(conn, "SELECT pgqueue.queue_id('r')")
    held, _ = (put(conn, "q"), take(conn, "q"))
    put(conn, "q", delay="1 h")
    value(conn, "SELECT pgqueue.bury(%s) IS NULL", put(conn, "q"))
    return {"held": held, "ready": put(conn, "q")}


@pytest.mark.parametrize("what", sampled([*DO], keep=12))
def test_counts_are_exact_after(folded: psycopg.Connection, connect: Connect, what: str) -> None:
    ids = prepare(folded)
    value(folded, FOLD)
    before = counted(folded)
    with folded.transaction():
        for statement in DO[what].split(";"):
            folded.execute(statement, ids)
        changed = counted(folded)
        assert changed == direct(folded)  # one's own, before the commit
        if "TRUNCATE" not in DO[what]:
            other = connect()
            assert counted(other) == direct(other) == before
    assert agree(folded, connect())
    if what != "touch":
        assert changed != before, "it was to change a count"
    value(folded, FOLD)
    assert agree(folded, connect())
    value(folded, "SELECT pgqueue.promote_all()")
    assert agree(folded, connect())


@pytest.mark.parametrize("what", [what for what in DO if what not in ("session ends",)])
def test_what_is_rolled_back_was_never_counted(folded: psycopg.Connection, what: str) -> None:
    ids = prepare(folded)
    before = counted(folded), calls(folded)
    with folded.transaction():
        with folded.transaction(force_rollback=True):  # a savepoint
            for statement in DO[what].split(";"):
                folded.execute(statement, ids)
        assert (counted(folded), calls(folded)) == before
    value(folded, FOLD)
    assert (counted(folded), calls(folded)) == before
    assert agree(folded)


def test_total_leaves_out_what_is_done_and_kept(folded: psycopg.Connection) -> None:
    folded.execute("UPDATE pgqueue.queue SET keep_done = '1 h'")
    for _ in range(3):
        put(folded, "q")
    value(folded, "SELECT pgqueue.ack(%s, %s) IS NULL", *take(folded, "q"))
    assert row(folded, "SELECT total, ready, done, kept FROM pgqueue.stats") == (2, 2, 1, 1)
    assert agree(folded)


# --- calls


def test_statistics_as_in_tarantools_queue(folded: psycopg.Connection) -> None:
    """030-utube.t: one task is acked and one is deleted."""
    ids = [put(folded, "q") for _ in range(3)]
    value(folded, "SELECT pgqueue.ack(%s, %s) IS NULL", *take(folded, "q"))
    value(folded, "SELECT pgqueue.delete(%s)", ids[1])
    found = calls(folded)
    assert stat(folded, "done") == 2
    assert (found["ack"], found["delete"], found["put"], found["take"]) == (1, 1, 3, 1)


def test_a_task_that_expires_counts_as_ttl_as_deleted_and_as_done(folded: psycopg.Connection) -> None:
    put(folded, "q", ttl="1 h")
    folded.execute(f"UPDATE pgqueue.task SET expires_at = {PAST}")
    assert row(folded, "SELECT total, ready, done FROM pgqueue.stats") == (0, 0, 0)
    value(folded, "SELECT pgqueue.promote_all()")
    assert calls(folded) == {"put": 1, "ttl": 1, "delete": 1}
    assert row(folded, "SELECT total, ready, done FROM pgqueue.stats") == (0, 0, 1)


def test_every_verb_is_there_and_counts_its_tasks(folded: psycopg.Connection) -> None:
    verbs = {"put", "take", "ack", "release", "bury", "kick", "delete", "touch", "delay", "ttr", "ttl", "maxlen"}
    assert stat(folded, "calls") == dict.fromkeys(verbs, 0)
    value(folded, "SELECT pgqueue.put_many('q', '[1, 2, 3, 4, 5, 6, 7]', ttr => '1 h')")
    taken = rows(folded, "SELECT id, token FROM pgqueue.take_many('{q}', 6)")
    folded.execute("SELECT * FROM pgqueue.ack_many(%s)", [[id for id, _ in taken[:2]]])
    folded.execute("SELECT pgqueue.touch(%s)", [taken[2][0]])
    folded.execute("SELECT pgqueue.release(%s, delay => '1 h')", [taken[2][0]])
    folded.execute("SELECT pgqueue.release(%s)", [taken[3][0]])
    folded.execute("SELECT pgqueue.bury(%s)", [taken[4][0]])
    folded.execute("SELECT pgqueue.kick('q', 1)")
    folded.execute("SELECT pgqueue.delete(%s)", [taken[4][0]])
    folded.execute(f"UPDATE pgqueue.task SET run_at = {PAST} WHERE run_at IS NOT NULL")
    folded.execute(f"UPDATE pgqueue.take SET deadline = {PAST}")
    value(folded, "SELECT pgqueue.promote_all()")
    expected = dict.fromkeys(verbs - {"ttl", "maxlen"}, 1) | {"put": 7, "take": 6, "ack": 2, "release": 2}
    assert calls(folded) == expected
    value(folded, FOLD)
    assert calls(folded) == expected


def test_calls_that_are_refused_do_not_count(folded: psycopg.Connection) -> None:
    id = put(folded, "q")
    for call in ("ack(%s, 1)", "release(%s, 1)", "bury(%s, 1)", "touch(%s, 1)"):
        folded.execute(f"SELECT pgqueue.{call}", [id])
    folded.execute("SELECT pgqueue.kick('q')")
    folded.execute("SELECT pgqueue.delete(0)")
    assert calls(folded) == {"put": 1}


# --- the oldest


def ages(conn: psycopg.Connection) -> int | None:
    """The age of the oldest ready task, to the hour."""
    return value(conn, "SELECT (extract(epoch FROM oldest_ready_age) / 3600)::int FROM pgqueue.stats WHERE queue = 'q'")


def test_the_oldest_ready_task(folded: psycopg.Connection) -> None:
    assert ages(folded) is None
    ids = [put(folded, "q", priority=priority) for priority in (3, 1, 2, 2)]
    for hours, id in zip((2, 5, 9, 7), ids, strict=True):
        folded.execute("UPDATE pgqueue.task SET created_at = now() - %s * interval '1 h' WHERE id = %s", [hours, id])
    assert ages(folded) == 9  # not the first in line
    folded.execute("SELECT pgqueue.delete(%s)", [ids[2]])
    assert ages(folded) == 7
    folded.execute("SELECT pgqueue.bury(%s)", [ids[3]])
    assert ages(folded) == 5
    id, token = take(folded, "q")
    assert (id, ages(folded)) == (ids[1], 2)
    folded.execute("SELECT pgqueue.release(%s, %s)", [id, token])
    assert ages(folded) == 5
    folded.execute(f"UPDATE pgqueue.task SET expires_at = {PAST}")
    assert ages(folded) is None


@pytest.mark.parametrize("seed", range(20))
def test_the_oldest_is_the_same_by_the_short_way(folded: psycopg.Connection, seed: int) -> None:
    """Queues with one priority or several, with tasks that were kicked, are taken, have expired, or are in no order."""
    chance = random.Random(seed)
    hours = "now() - %s * interval '1 h'"
    for q in range(5):
        kinds = chance.choice(
            [("plain",), ("plain", "taken", "expired"), ("plain", "kicked"), ("plain", "all", "taken")]
        )
        priorities = chance.choice([(0,), (0, 0, 1), (-1, 0, 1)])
        for _ in range(chance.randrange(8)):
            id = put(folded, f"q{q}", priority=chance.choice(priorities))
            folded.execute(
                f"UPDATE pgqueue.task SET created_at = {hours} WHERE id = %s", [chance.randrange(10, 99), id]
            )
            kind = chance.choice(kinds)
            if kind in ("kicked", "all"):
                sql = f"UPDATE pgqueue.task SET ready_at = {hours} WHERE id = %s"
                folded.execute(sql, [chance.randrange(99), id])
            if kind in ("expired", "all") and chance.random() < 0.5:
                folded.execute(f"UPDATE pgqueue.task SET expires_at = {PAST} WHERE id = %s", [id])
            if kind == "taken":
                folded.execute("SELECT pgqueue.take_id(%s)", [id])
    found = rows(
        folded,
        """SELECT q.name, pgqueue._find_oldest(q.id), clock_timestamp() - s.oldest_ready_age
             FROM pgqueue.queue q JOIN pgqueue.stats s ON s.queue = q.name ORDER BY 1""",
    )
    assert [(name, short and round((short - long).total_seconds())) for name, long, short in found] == [
        (name, long and 0) for name, long, _ in found
    ]


def test_a_task_whose_delay_is_over_may_be_the_oldest(folded: psycopg.Connection) -> None:
    put(folded, "q")
    id = put(folded, "q", delay="1 h")
    folded.execute("UPDATE pgqueue.task SET created_at = now() - interval '9 h' WHERE id = %s", [id])
    assert ages(folded) == 0
    folded.execute("UPDATE pgqueue.task SET run_at = now() - interval '3 h' WHERE id = %s", [id])
    assert ages(folded) == 3  # since its delay was over, not since its put
    folded.execute("SELECT pgqueue.promote_all()")
    assert ages(folded) == 3


def test_an_oldest_that_is_dear_to_find_is_remembered_for_a_while(folded: psycopg.Connection) -> None:
    q = value(folded, "SELECT pgqueue.queue_id('q')")
    put(folded, "q")
    remember = "INSERT INTO pgqueue.oldest VALUES (%s, now() - %s::interval, '3 ms', now() - interval '7 h')"
    folded.execute(remember, [q, "5 s"])
    assert ages(folded) == 7

    def forgotten() -> bool:
        """The ticks look again, and find it at once."""
        value(folded, "SELECT pgqueue.promote_all()")
        return not rows(folded, "SELECT * FROM pgqueue.oldest")

    eventually(forgotten)  # the first look compiles
    assert ages(folded) == 0
    folded.execute(remember, [q, "11 s"])  # the ticks have ended
    assert ages(folded) == 0


def test_a_task_is_no_older_than_a_look_that_found_none(folded: psycopg.Connection) -> None:
    """A tick remembered that nothing was ready; then a task came."""
    put(folded, "q")
    folded.execute(
        "UPDATE pgqueue.task SET created_at = now() - interval '9 h';"
        " INSERT INTO pgqueue.oldest SELECT queue_id, now() - interval '5 s', '3 ms', NULL FROM pgqueue.task"
    )
    age = value(folded, "SELECT extract(epoch FROM oldest_ready_age) FROM pgqueue.stats")
    assert 5 <= age < 65


# --- folds


def deltas(conn: psycopg.Connection) -> int:
    return int(value(conn, "SELECT count(*) FROM pgqueue.delta"))


def test_a_fold_leaves_no_delta_that_it_saw_and_one_counter_a_queue(folded: psycopg.Connection) -> None:
    for _ in range(3):
        put(folded, "q")
        put(folded, "r")
        assert deltas(folded) > 0
        value(folded, FOLD)
        assert deltas(folded) == 0
        assert agree(folded)
    assert value(folded, "SELECT count(*) FROM pgqueue.counter") == 2
    assert value(folded, "SELECT count(*) FROM pgqueue.fold") == 1


@pytest.mark.parametrize("late", ["commit", "rollback"])
def test_a_transaction_that_ends_after_a_fold(folded: psycopg.Connection, connect: Connect, late: str) -> None:
    """It began before the fold, which others' puts led past it: only its number in the fold's row tells of it."""
    slow, other = connect(autocommit=False), connect()
    value(other, "SELECT pgqueue.queue_id('r')")
    put(slow, "q")
    put(slow, "r")
    for _ in range(2):
        put(other, "q")
        value(folded, FOLD)
        assert agree(folded, slow, other)
    put(slow, "q")
    assert agree(folded, slow, other)
    getattr(slow, late)()
    assert agree(folded, slow, other)
    assert stat(folded, "ready") == (4 if late == "commit" else 2)
    slow.rollback()
    value(folded, FOLD)
    assert agree(folded, slow, other)
    assert deltas(folded) == 0


def test_a_fold_inside_a_transaction_that_puts_before_and_after(folded: psycopg.Connection, connect: Connect) -> None:
    conn, other = connect(autocommit=False), connect()
    for _ in range(3):
        put(conn, "q")
        put(other, "q")
        value(conn, FOLD)
        assert agree(conn, other)
    put(conn, "q")
    assert agree(conn, other)
    conn.commit()
    assert agree(conn, other)
    conn.rollback()
    value(folded, FOLD)
    assert agree(folded)
    assert (stat(folded, "ready"), calls(folded)) == (7, {"put": 7})


def test_a_fold_that_is_rolled_back(folded: psycopg.Connection) -> None:
    put(folded, "q")
    with folded.transaction(force_rollback=True):
        value(folded, FOLD)
    put(folded, "q")
    value(folded, FOLD)
    assert agree(folded)
    assert stat(folded, "ready") == 2


def test_a_reader_with_an_old_snapshot_keeps_what_it_saw(folded: psycopg.Connection, connect: Connect) -> None:
    reader = connect(autocommit=False)
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    put(folded, "q")
    before = counted(reader)
    for _ in range(3):
        put(folded, "q")
        value(folded, FOLD)
    assert counted(reader) == before == direct(reader)
    assert value(reader, FOLD) is None  # its snapshot is older than the last fold
    assert counted(reader) == before
    reader.rollback()
    assert agree(reader)


def test_nobody_waits_for_a_fold_or_for_a_producer(folded: psycopg.Connection, connect: Connect) -> None:
    folder, producer, other = connect(autocommit=False), connect(autocommit=False), connect()
    put(producer, "q")
    put(folded, "q")
    assert value(folder, FOLD)
    other.execute("SET statement_timeout = '5 s'")
    put(other, "q")
    value(other, "SELECT pgqueue.ack(%s, %s) IS NULL", *take(other, "q"))
    assert value(other, FOLD) is None  # somebody is at it
    assert agree(other)
    folder.commit()
    producer.commit()
    value(other, FOLD)
    assert agree(other)


def test_few_deltas_are_left_alone_while_they_are_young(folded: psycopg.Connection) -> None:
    tick = "SELECT pgqueue.promote_all()"
    value(folded, "SELECT pgqueue.put_many('q', '[1]')")
    value(folded, tick)
    assert deltas(folded) == 1
    folded.execute("UPDATE pgqueue.fold SET folded_at = folded_at - interval '6 s'")
    value(folded, tick)
    assert deltas(folded) == 0
    folded.execute("SELECT pgqueue.put('q', '1') FROM generate_series(1, 999)")
    value(folded, tick)
    assert deltas(folded) == 999
    put(folded, "q")
    value(folded, tick)
    assert deltas(folded) == 0
    assert agree(folded)


def test_counters_go_with_their_queue(folded: psycopg.Connection) -> None:
    put(folded, "q")
    put(folded, "r")
    value(folded, FOLD)
    folded.execute("SELECT pgqueue.delete_queue('q')")
    value(folded, FOLD)
    assert [queue for queue, *_ in counted(folded)] == ["r"]
    assert value(folded, "SELECT count(*) FROM pgqueue.counter") == 1
    value(folded, FOLD)
    value(folded, "SELECT pgqueue.delete(id) FROM pgqueue.task")
    value(folded, FOLD)
    folded.execute("SELECT pgqueue.delete_queue('r')")  # it was empty: no delta tells of its end
    folded.execute("SELECT pgqueue.clean_up()")
    assert value(folded, "SELECT count(*) FROM pgqueue.counter") == 0


# --- counting anew


def crash(conn: psycopg.Connection) -> None:
    """What a crash of the server leaves of the UNLOGGED tables. A real one is in test_restarts.py."""
    with conn.transaction():
        conn.execute("SET LOCAL session_replication_role = replica")  # a crash fires no triggers
        conn.execute(
            "TRUNCATE pgqueue.take, pgqueue.delta, pgqueue.counter, pgqueue.fold, pgqueue.recount, pgqueue.oldest"
        )


def test_after_a_crash_tasks_are_counted_anew(folded: psycopg.Connection, connect: Connect) -> None:
    prepare(folded)
    value(folded, FOLD)
    slow = connect(autocommit=False)
    crash(folded)
    put(slow, "q")
    assert agree(folded, slow)  # before the first fold
    assert calls(folded) == {}
    put(folded, "q")
    value(folded, FOLD)
    assert value(folded, "SELECT pgqueue._is_counted()")
    assert agree(folded, slow)
    slow.commit()
    put(folded, "q")
    assert agree(folded, slow)
    assert calls(folded) == {"put": 3}


def test_others_go_on_while_tasks_are_counted_anew(folded: psycopg.Connection, connect: Connect) -> None:
    """The count is in the folder's transaction, and others commit before and after it."""
    for _ in range(3):
        put(folded, "q")
    crash(folded)
    early, late, folder = (connect(autocommit=False) for _ in range(3))
    put(early, "q")
    put(late, "q")
    value(folder, FOLD)
    early.commit()
    put(folded, "r")
    assert agree(folded)
    folder.commit()
    assert agree(folded, late)
    late.commit()
    assert agree(folded, late)
    assert stat(folded, "ready") == 5


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("isolation", [psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ])
def test_a_truncate_that_is_open_while_others_count(
    folded: psycopg.Connection, connect: Connect, end: str, isolation: psycopg.IsolationLevel
) -> None:
    conn, folder = connect(autocommit=False), connect(options="-c lock_timeout=100ms")
    conn.isolation_level = isolation
    put(folded, "q")
    assert agree(conn)  # its snapshot, if it keeps one, is older than what follows
    put(folded, "q")
    conn.execute("TRUNCATE pgqueue.task")
    value(folder, FOLD)  # needs no task
    assert counted(conn) == direct(conn) == [("q", 0, 0, 0, 0, 0, 0)]
    getattr(conn, end)()
    assert agree(folded)
    assert calls(folded) == {"put": 2}
    put(folded, "q")
    value(folded, FOLD)
    assert agree(folded)
    assert value(folded, "SELECT pgqueue._is_counted()")
    assert (stat(folded, "ready"), calls(folded)) == (1 if end == "commit" else 3, {"put": 3})


def test_a_take_that_is_being_settled_when_its_task_was_deleted_by_hand(
    folded: psycopg.Connection, connect: Connect
) -> None:
    """Whoever has it locked will count its end: until then nobody trusts the counters."""
    put(folded, "q")
    holder, other = connect(), connect(autocommit=False)
    id, token = take(holder, "q")
    value(folded, FOLD)
    other.execute("SELECT FROM pgqueue.take WHERE task_id = %s FOR UPDATE", [id])
    folded.execute("DELETE FROM pgqueue.task")
    value(folded, FOLD)
    assert agree(folded)
    assert value(other, "SELECT state FROM pgqueue.ack(%s, %s)", id, token) == "done"
    other.commit()
    assert agree(folded)
    value(folded, FOLD)
    assert agree(folded)
    assert value(folded, "SELECT pgqueue._is_counted()")
    assert rows(folded, "SELECT standing, taken FROM pgqueue._counts(NULL)") == [(0, 0)]


def test_counters_of_another_server_count_for_nothing(folded: psycopg.Connection) -> None:
    """Restored from a dump, into a server that has not come as far: deltas would look older than the fold."""
    for _ in range(3):
        put(folded, "q")
    value(folded, FOLD)
    folded.execute("UPDATE pgqueue.fold SET since = '4611686018427387904'")
    folded.execute(
        "INSERT INTO pgqueue.delta (xid, queue_id, standing) SELECT '4611686018427387905', id, 5 FROM pgqueue.queue"
    )
    put(folded, "q")
    assert agree(folded)
    value(folded, FOLD)
    assert deltas(folded) == 0
    put(folded, "q")
    assert agree(folded)
    assert (stat(folded, "ready"), calls(folded)) == (5, {"put": 5})


# --- who counts

ADDS_OR_DELETES = r"(INSERT\s+INTO|DELETE\s+FROM)\s+pgqueue\.(task|take)\b"
COUNTS = r"INSERT INTO pgqueue\.delta|pgqueue\._count_(new|takes|places)\("


def test_each_function_that_adds_or_deletes_counts(db: psycopg.Connection) -> None:
    """A trigger counts updates; the rest nobody sees but who does it."""
    functions = rows(
        db, "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'pgqueue'::regnamespace AND prokind = 'f'"
    )
    sources = {name: re.sub(r"--.*", "", source) for name, source in functions}
    changing = {name for name, source in sources.items() if re.search(ADDS_OR_DELETES, source)}
    assert {"put", "_claim", "ack", "_delete_tasks", "_deliver", "_put_special", "_put_together"} <= changing
    silent = {name for name in changing if not re.search(COUNTS, sources[name])}
    # The callers of two count, with what else they do; the other removes what no counter has.
    assert silent <= {"_drop_takes", "_insert_takes", "_correct_counts"}


def test_each_public_function_is_told_from_raw_sql(db: psycopg.Connection) -> None:
    """By its search_path. One that has another would ask for a recount each time."""
    path = "search_path=pg_catalog, pg_temp, pg_temp"
    query = "SELECT proname FROM pg_proc WHERE pronamespace = 'pgqueue'::regnamespace AND prosecdef"
    assert column(db, f"{query} AND NOT coalesce(%s = ANY (proconfig), false)", path) == []
    prepare(db)
    value(db, FOLD)
    db.execute("SELECT pgqueue.take('q'), pgqueue.put('q', '1'), pgqueue.pop('q')")
    db.execute("SELECT pgqueue.delete_queue('q', force => true)")
    assert rows(db, "SELECT * FROM pgqueue.recount") == []


def test_raw_sql_in_a_function_with_a_careful_search_path_is_raw_sql(db: psycopg.Connection) -> None:
    prepare(db)
    value(db, FOLD)
    db.execute(
        "CREATE FUNCTION forget() RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp"
        " AS 'DELETE FROM pgqueue.task'"
    )
    db.execute("SELECT forget()")
    assert len(rows(db, "SELECT * FROM pgqueue.recount")) == 1


# --- who is told


TOLD = """CREATE OR REPLACE FUNCTION pgqueue._tell_lanes(queues int[], lanes text[], freed boolean[]) RETURNS void
    LANGUAGE sql AS 'INSERT INTO told SELECT DISTINCT * FROM unnest(queues, lanes, freed)'"""


def raw(conn: psycopg.Connection, queue: str, state: str, lane: str | None = "a") -> int:
    insert = (
        "INSERT INTO pgqueue.task (queue_id, data, state, lane) VALUES (pgqueue.queue_id(%s), '1', %s, %s) RETURNING id"
    )
    return int(value(conn, insert, queue, state, lane))


def test_lanes_are_told_of_places_that_are_free_and_of_tasks_behind_others(db: psycopg.Connection) -> None:
    db.execute("CREATE TABLE told (queue int, lane text, freed boolean)")
    db.execute("GRANT ALL ON told TO PUBLIC")
    db.execute(TOLD.replace("told SELECT", "public.told SELECT"))
    q, r = (value(db, "SELECT pgqueue.queue_id(%s)", name) for name in "qr")

    def told() -> list[tuple[int, str, bool]]:
        return sorted(rows(db, "DELETE FROM told RETURNING *"))

    def change(sql: str, *args: Any) -> list[tuple[int, str, bool]]:
        db.execute(f"UPDATE pgqueue.task SET {sql}", args)
        return told()

    ready, other, blocked = raw(db, "q", "R"), raw(db, "q", "R", "b"), raw(db, "q", "L")
    assert told() == []  # raw SQL: the next fold asks about all lanes
    assert change("attempts = 3, data = '2'") == []
    assert change("state = 'R' WHERE id = %s", blocked) == []
    assert change("state = 'L' WHERE id = %s", blocked) == [(q, "a", False), (q, "a", True)]
    assert change("lane = 'c' WHERE id = %s", ready) == [(q, "a", True)]
    assert change("lane = 'a', queue_id = %s WHERE id = %s", r, ready) == [(q, "c", True)]
    assert change("queue_id = %s WHERE id = %s", q, ready) == [(r, "a", True)]
    assert change("priority = 1 WHERE id = ANY (%s)", [ready, blocked]) == [(q, "a", False), (q, "a", True)]
    assert change("state = 'B' WHERE state = 'R'") == [(q, "a", True), (q, "b", True)]
    assert change("state = 'R' WHERE state = 'B'") == []
    db.execute("SELECT pgqueue._delete_tasks(%s)", [[blocked]])
    assert told() == []
    db.execute("SELECT pgqueue._delete_tasks(%s)", [[ready, other]])
    assert told() == [(q, "a", True), (q, "b", True)]


def test_who_waits_for_room_is_told(db: psycopg.Connection, connect: Connect) -> None:
    db.execute("SELECT pgqueue.create_queue('full', capacity => 2), pgqueue.create_queue('q')")
    q, full = (value(db, "SELECT pgqueue.queue_id(%s)", name) for name in ("q", "full"))
    waiter = connect()
    for id in (-q, -full):
        waiter.execute(f'LISTEN "pgqueue:{id}"')
    waiter.execute("SELECT pgqueue.arm(%s)", [[-q, -full]])

    def told(sql: str, *args: Any) -> list[str]:
        db.execute(sql, args)
        return notifications(waiter, db)

    room = [f"pgqueue:{-full}"]
    ids = [raw(db, "full", "R", None) for _ in range(4)]
    elsewhere = raw(db, "q", "R", None)
    assert told("UPDATE pgqueue.task SET state = 'B'") == []
    assert told("SELECT pgqueue.delete(%s)", ids[0]) == room
    assert told("UPDATE pgqueue.task SET queue_id = %s WHERE id = %s", q, ids[1]) == room
    assert told("UPDATE pgqueue.task SET state = 'F', done_at = now() WHERE id = %s", ids[2]) == room
    assert told("SELECT pgqueue.delete(%s)", ids[2]) == []
    assert told("SELECT pgqueue.delete(%s)", elsewhere) == []
    assert told("DELETE FROM pgqueue.task") == []
    assert told(FOLD) == room  # raw SQL tells nobody, and the next fold does


def test_the_length_of_a_queue_has_what_the_transaction_put(folded: psycopg.Connection, connect: Connect) -> None:
    conn = connect(autocommit=False)
    q = value(folded, "SELECT pgqueue.queue_id('q')")
    length = "SELECT pgqueue._queue_length(%s)"
    put(folded, "q")
    for n in (2, 3):
        put(conn, "q", delay="1 h")
        assert value(conn, length, q) == n
    assert value(folded, length, q) == 1
    assert value(folded, length, 12345) == 0


# --- anything, in any order, by several at once


def steps(rng: random.Random, conn: psycopg.Connection, held: list[tuple[int, int]]) -> None:
    """One thing that somebody may do."""
    queue = rng.choice("qr")
    id, token = rng.choice(held) if held else (0, 0)
    any_id = "(SELECT id FROM pgqueue.task ORDER BY md5(id::text || %s) LIMIT 1 FOR UPDATE SKIP LOCKED)"
    salt = str(rng.random())
    choice = rng.randrange(16)
    if choice < 3:
        conn.execute("SELECT pgqueue.put(%s, '1', delay => %s::interval)", [queue, rng.choice([None, "1 h", "1 us"])])
    elif choice == 3:
        conn.execute("SELECT pgqueue.put_many(%s, '[1, 2, 3]', ttl => '1 h')", [queue])
    elif choice < 7:
        held += rows(conn, "SELECT id, token FROM pgqueue.take_many('{q,r}', %s)", rng.randint(1, 3))
    elif choice == 7:
        conn.execute("SELECT pgqueue.ack(%s, %s)", [id, token])
    elif choice == 8:
        conn.execute("SELECT * FROM pgqueue.ack_many(%s, %s)", [[i for i, _ in held[-3:]], [k for _, k in held[-3:]]])
    elif choice == 9:
        conn.execute("SELECT pgqueue.release(%s, %s, delay => %s)", [id, token, rng.choice(["0", "1 h"])])
    elif choice == 10:
        conn.execute("SELECT pgqueue.bury(%s, %s)", [id, token])
    elif choice == 11:
        conn.execute("SELECT pgqueue.kick(%s, 2)", [queue])
    elif choice == 12:
        conn.execute(f"DELETE FROM pgqueue.task WHERE id = {any_id}", [salt])
    elif choice == 13:
        conn.execute(f"UPDATE pgqueue.task SET expires_at = {PAST} WHERE id = {any_id}", [salt])
    elif choice == 14:
        conn.execute("SELECT * FROM pgqueue.pop(%s, 2)", [queue])
    else:
        conn.execute("SELECT pgqueue.promote_all()")


def in_transactions(rng: random.Random, conn: psycopg.Connection, held: list[tuple[int, int]]) -> None:
    """A few of them, in a transaction that may roll back, as may a part of it."""
    try:
        with conn.transaction(force_rollback=rng.random() < 0.2):
            for _ in range(rng.randint(1, 3)):
                with conn.transaction(force_rollback=rng.random() < 0.2):
                    steps(rng, conn, held)
            if rng.random() < 0.1:
                value(conn, FOLD)
    except psycopg.errors.DeadlockDetected:
        pass  # raw deletes lock in any order


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(6), keep=2))
def test_anything_in_any_order(folded: psycopg.Connection, connect: Connect, seed: int) -> None:
    rng = random.Random(seed)
    other, held = connect(), [(0, 0)]
    for step in range(120):
        in_transactions(rng, folded, held)
        if step % 10 == 0:
            value(folded, FOLD)
        if step == 60:
            crash(folded) if seed % 2 else folded.execute("TRUNCATE pgqueue.take")
        assert agree(folded, other)


@pytest.mark.slow
def test_many_at_once(folded: psycopg.Connection, connect: Connect, fold_until: Callable[[], Any]) -> None:
    """Four connections do anything while one folds all the time and one reads; each snapshot adds up."""

    def work(seed: int) -> None:
        rng, conn, held = random.Random(seed), connect(), [(0, 0)]
        for _ in range(150):
            in_transactions(rng, conn, held)

    reader = connect(autocommit=False)
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(work, seed) for seed in range(4)]
        while not all(future.done() for future in working):
            # Rows and not states: time passes between the two counts, and a delay of a microsecond with it.
            assert rows(reader, KNOWN) == rows(reader, ROWS)
            reader.rollback()
    assert [future.result() for future in working] == [None] * 4
    fold_until()
    assert agree(folded)


ROWS = """SELECT q.id, (SELECT count(*) FROM pgqueue.task t WHERE t.queue_id = q.id AND t.state = 'R'),
                 (SELECT count(*) FROM pgqueue.task t WHERE t.queue_id = q.id AND t.state = 'D'),
                 (SELECT count(*) FROM pgqueue.take k JOIN pgqueue.task t ON t.id = k.task_id
                   WHERE k.queue_id = q.id) FROM pgqueue.queue q ORDER BY q.id"""
KNOWN = "SELECT queue_id, standing, delayed, taken FROM pgqueue._counts(NULL) ORDER BY queue_id"


@pytest.fixture
def fold_until(connect: Connect) -> Iterator[Callable[[], None]]:
    """Somebody folds, again and again, until this is called."""
    conn, stop = connect(), threading.Event()

    def fold() -> None:
        while not stop.is_set():
            value(conn, FOLD)

    thread = threading.Thread(target=fold)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    yield end
    end()


@pytest.mark.parametrize("n", [99, 101])
def test_the_counts_of_many_queues_are_those_of_each(folded: psycopg.Connection, n: int) -> None:
    """Few queues are looked up, of many all is added up."""
    names = [f"q{i}" for i in range(n)]
    folded.execute("SELECT count(pgqueue.put(q, '1')) FROM unnest(%s::text[] || 'another'::text) q", [names])
    ids = column(folded, "SELECT id FROM pgqueue.queue WHERE name = ANY (%s)", [names])
    found = rows(folded, "SELECT queue_id, standing, calls FROM pgqueue._known(%s)", [ids])
    assert sorted(found) == sorted((id, 1, {"put": 1}) for id in ids)


# --- what it costs


@pytest.mark.slow
def test_the_cost_does_not_grow_with_the_backlog_nor_under_a_held_snapshot(
    folded: psycopg.Connection, connect: Connect
) -> None:
    poll = "SELECT * FROM pgqueue.stats"
    put(folded, "q")
    value(folded, FOLD)
    before = min(pages(folded, poll) for _ in range(5))
    holder = connect(autocommit=False)
    holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    value(holder, "SELECT count(*) FROM pgqueue.task")
    for _ in range(40):
        folded.execute("SELECT pgqueue.put_many('q', (SELECT jsonb_agg(i) FROM generate_series(1, 2500) i))")
        value(folded, FOLD)
        folded.execute("SELECT pgqueue.pop('q', 2500)")
        value(folded, FOLD)
    put(folded, "q")
    value(folded, "SELECT pgqueue._look_for_oldest(%s)", column(folded, "SELECT id FROM pgqueue.queue"))
    assert value(folded, "SELECT count(*) FROM pgqueue.oldest") == 1  # the walk over 100,000 dead entries was noticed
    after = min(pages(folded, poll) for _ in range(5))
    print(f"{before} pages before, {after} after 100,000 tasks under a held snapshot")
    assert after <= before + 30
    assert agree(folded)


def test_a_listener_folds(folded: psycopg.Connection, blocking: Any) -> None:
    client = blocking()
    folded.execute("SELECT pgqueue.put('q', '1') FROM generate_series(1, 1500)")
    client.queue("q").take(0)
    eventually(lambda: deltas(folded) < 100)
    assert agree(folded)
