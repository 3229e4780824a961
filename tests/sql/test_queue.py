"""Managing queues in SQL: options, renaming, pausing, draining, emptying."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, eventually
from statements import column, notifications, put, row, rows, state, take, value

Connect = Any


def fails(conn: psycopg.Connection, sqlstate: str, statement: str, *args: Any) -> str:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(statement, args)
    assert caught.value.sqlstate == sqlstate, caught.value
    return str(caught.value.diag.message_primary)


def create(conn: psycopg.Connection, name: str, options: str = "") -> int:
    return int(value(conn, f"SELECT pgqueue.create_queue(%s{options and ', ' + options})", name))


def option(conn: psycopg.Connection, queue: str, *names: str) -> tuple[Any, ...] | None:
    return row(conn, f"SELECT {', '.join(names)} FROM pgqueue.queues WHERE name = %s", queue)


# --- making


def test_creating_a_queue_twice(db: psycopg.Connection) -> None:
    id = create(db, "q", "type => 'fifottl', ttl => '1 h'")
    fails(db, "PQ003", "SELECT pgqueue.create_queue('q')")
    assert create(db, "q", "if_not_exists => true, ttl => '2 h'") == id
    assert option(db, "q", "type", "ttl") == ("fifottl", timedelta(hours=1))
    assert create(db, "new", "if_not_exists => true, ttl => '2 h'") != id
    assert option(db, "new", "ttl") == (timedelta(hours=2),)


def test_if_not_exists_of_two_at_once(db: psycopg.Connection, connect: Connect) -> None:
    one, other = connect(autocommit=False), connect()
    id = create(one, "q")
    with ThreadPoolExecutor() as threads:
        second = threads.submit(create, other, "q", "if_not_exists => true")
        waiting = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
        eventually(lambda: value(db, waiting, other.info.backend_pid))
        one.commit()
        assert second.result(30) == id


# --- options


@pytest.mark.parametrize(
    "said",
    [
        "maxlen => 0",
        "max_takes => 0",
        "max_size => 0",
        "capacity => -1",
        "keep_done => '0'",
        "expires => '0'",
        "ttl => '0'",
    ],
)
def test_options_that_cannot_be(db: psycopg.Connection, said: str) -> None:
    fails(db, "PQ002", f"SELECT pgqueue.create_queue('q', {said})")
    create(db, "q")
    name, _, given = said.replace("'", '"').partition(" => ")
    fails(db, "PQ002", "SELECT pgqueue.alter_queue('q', %s)", f'{{"{name}": {given}}}')


def test_a_capacity_of_0_is_unlimited(db: psycopg.Connection) -> None:
    create(db, "q", "capacity => 0")
    assert option(db, "q", "capacity") == (None,)
    assert value(db, "SELECT special FROM pgqueue.queue") is False


def test_alter_changes_what_is_named(db: psycopg.Connection) -> None:
    create(db, "q", "ttl => '1 h', maxlen => 5, priority => 3, metadata => '{\"a\": 1}'")
    db.execute(
        """SELECT pgqueue.alter_queue('q', '{"ttl": 90.5, "maxlen": null, "metadata": [2], "keep_done": "1 day"}')"""
    )
    names = "ttl", "maxlen", "priority", "metadata", "keep_done"
    assert option(db, "q", *names) == (timedelta(seconds=90.5), None, 3, [2], timedelta(days=1))
    db.execute("""SELECT pgqueue.alter_queue('q', '{"priority": null, "metadata": null, "delay": null}')""")
    assert option(db, "q", "priority", "metadata", "delay") == (0, None, timedelta(0))


@pytest.mark.parametrize("name", ["type", "exclusive", "name", "id", "special", "restricted", "none"])
def test_what_cannot_be_altered(db: psycopg.Connection, name: str) -> None:
    create(db, "q")
    before = rows(db, "SELECT q::text FROM pgqueue.queue q")
    assert name in fails(db, "PQ002", "SELECT pgqueue.alter_queue('q', %s)", f'{{"{name}": null, "ttl": 5}}')
    assert rows(db, "SELECT q::text FROM pgqueue.queue q") == before


def test_alter_a_queue_that_is_not_there(db: psycopg.Connection) -> None:
    fails(db, "PQ032", "SELECT pgqueue.alter_queue('none', '{}')")


def test_a_lower_maxlen_trims(db: psycopg.Connection) -> None:
    ids = [put(db, "q") for _ in range(5)]
    db.execute("""SELECT pgqueue.alter_queue('q', '{"maxlen": 2}')""")
    assert column(db, "SELECT id FROM pgqueue.tasks ORDER BY id") == ids[3:]


@pytest.mark.parametrize("how", ["alter_queue('q', '{\"capacity\": null}')", "drain_queue('q')", "delete_queue('q')"])
def test_who_waits_for_room_is_told(db: psycopg.Connection, connect: Connect, how: str) -> None:
    q = create(db, "q", "capacity => 1")
    put(db, "q")
    sleeper = connect()
    sleeper.execute(f"LISTEN \"pgqueue:{-q}\"; SELECT pgqueue.arm('{{{-q}}}')")
    db.execute(f"SELECT pgqueue.{how}")
    assert notifications(sleeper, db).count(f"pgqueue:{-q}") == 1


# --- renaming


def test_a_renamed_queue_keeps_its_tasks_and_who_holds_them(db: psycopg.Connection) -> None:
    q = create(db, "old")
    put(db, "old")
    db.execute("SELECT pgqueue.declare_exchange('x', 'fanout'), pgqueue.bind('old', 'x')")
    id, token = take(db, "old")
    db.execute("SELECT pgqueue.rename_queue('old', 'new')")
    assert value(db, "SELECT pgqueue.queue_id('new')") == q
    assert row(db, "SELECT queue, state FROM pgqueue.tasks WHERE id = %s", id) == ("new", "taken")
    assert value(db, "SELECT state FROM pgqueue.ack(%s, %s)", id, token) == "done"
    assert value(db, "SELECT pgqueue.publish('x', '', '1')") == 1
    assert value(db, "SELECT queue FROM pgqueue.tasks") == "new"


def test_dead_letters_follow_a_renamed_queue(db: psycopg.Connection) -> None:
    create(db, "q", "dead_letter => '', dead_letter_key => 'dead'")
    db.execute("SELECT pgqueue.rename_queue('dead', 'late')")
    put(db, "q")
    assert value(db, "SELECT state FROM pgqueue.bury(%s, %s)", *take(db, "q")) == "dead"
    assert column(db, "SELECT queue FROM pgqueue.tasks") == ["late"]


def test_a_rename_that_cannot_be(db: psycopg.Connection) -> None:
    create(db, "q"), create(db, "other")
    fails(db, "PQ003", "SELECT pgqueue.rename_queue('q', 'other')")
    fails(db, "PQ032", "SELECT pgqueue.rename_queue('none', 'new')")
    fails(db, "PQ001", "SELECT pgqueue.rename_queue('q', '')")
    assert column(db, "SELECT name FROM pgqueue.queues ORDER BY name") == ["other", "q"]


def test_who_sleeps_is_told_of_a_rename(db: psycopg.Connection, connect: Connect) -> None:
    q = create(db, "q")
    sleeper = connect()
    sleeper.execute(f"LISTEN \"pgqueue:{q}\"; SELECT pgqueue.arm('{{{q}}}')")
    db.execute("SELECT pgqueue.rename_queue('q', 'new')")
    assert notifications(sleeper, db) == [f"pgqueue:{q}"]


# --- dropping


def test_a_queue_with_a_waiter_is_in_use(db: psycopg.Connection, connect: Connect) -> None:
    q = create(db, "q")
    sleeper = connect()
    sleeper.execute("SELECT pgqueue.arm(%s)", [[q]])
    assert "a taker waits" in fails(db, "PQ034", "SELECT pgqueue.delete_queue('q', if_unused => true)")
    sleeper.execute("SELECT pgqueue.disarm(%s)", [[q]])
    assert value(db, "SELECT pgqueue.delete_queue('q', if_unused => true)") == 0


def test_a_queue_with_a_taken_task_is_in_use(db: psycopg.Connection) -> None:
    put(db, "q"), put(db, "q")
    id, token = take(db, "q")
    fails(db, "PQ034", "SELECT pgqueue.delete_queue('q', if_unused => true)")
    db.execute("SELECT pgqueue.ack(%s, %s)", [id, token])
    assert value(db, "SELECT pgqueue.delete_queue('q', if_unused => true)") == 1
    assert rows(db, "SELECT FROM pgqueue.tasks") == rows(db, "SELECT FROM pgqueue.queues") == []


# --- emptying


def every_state(db: psycopg.Connection, connect: Connect, queue: str) -> None:
    """A task of each state: ready, taken, delayed, buried, blocked, done."""
    create(db, queue, "keep_done => '1 h'")
    for _ in range(3):
        put(db, queue)
    db.execute("SELECT pgqueue.ack(%s, %s)", take(db, queue))
    take(connect(), queue)
    put(db, queue, delay="1 h")
    db.execute("SELECT pgqueue.bury(%s)", [put(db, queue)])
    put(db, queue, lane="a"), put(db, queue, lane="a")


def test_truncate_removes_all_tasks_whatever_their_state(db: psycopg.Connection, connect: Connect) -> None:
    every_state(db, connect, "q"), every_state(db, connect, "other")
    states = "SELECT array_agg(state::text ORDER BY id) FROM pgqueue.tasks WHERE queue = %s"
    before = value(db, states, "other")
    assert sorted(before) == ["blocked", "buried", "delayed", "done", "ready", "ready", "taken"]
    assert value(db, "SELECT pgqueue.truncate_queue('q')") == 7
    assert value(db, states, "q") is None
    assert value(db, states, "other") == before
    assert value(db, "SELECT count(*) FROM pgqueue.take") == 1
    total = "SELECT total, ready, delayed, taken, buried FROM pgqueue.stats WHERE queue = 'q'"
    assert row(db, total) == (0, 0, 0, 0, 0)
    assert value(db, "SELECT pgqueue.truncate_queue('q')") == 0
    fails(db, "PQ032", "SELECT pgqueue.truncate_queue('none')")


def test_truncate_takes_many(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.put_many('q', jsonb_agg(n)) FROM generate_series(1, 2500) n")
    column(db, "SELECT id FROM pgqueue.take_many('{q}', 1200)")
    assert value(db, "SELECT pgqueue.truncate_queue('q')") == 2500
    assert rows(db, "SELECT FROM pgqueue.take") == []


def test_truncate_removes_at_most_n_tasks(db: psycopg.Connection, connect: Connect) -> None:
    every_state(db, connect, "q")
    for n, removed in ((3, 3), (1, 1), (20, 3), (20, 0)):
        assert value(db, f"SELECT pgqueue.truncate_queue('q', {n})") == removed
    assert value(db, "SELECT count(*) FROM pgqueue.task") == 0
    fails(db, "PQ002", "SELECT pgqueue.truncate_queue('q', 0)")


@pytest.mark.parametrize(
    ("states", "left"),
    [
        ("{ready}", ["blocked", "buried", "delayed", "done", "taken"]),
        ("{ready,delayed,blocked}", ["buried", "done", "taken"]),
        ("{taken}", ["blocked", "buried", "delayed", "done", "ready", "ready"]),
        ("{done,buried,done}", ["blocked", "delayed", "ready", "ready", "taken"]),
        ("{}", ["blocked", "buried", "delayed", "done", "ready", "ready", "taken"]),
    ],
)
def test_truncate_leaves_tasks_in_other_states(
    db: psycopg.Connection, connect: Connect, states: str, left: list[str]
) -> None:
    every_state(db, connect, "q")
    taken = rows(db, "SELECT id, holder FROM pgqueue.tasks WHERE state = 'taken'")
    before = rows(db, "SELECT id, state::text FROM pgqueue.tasks")
    assert value(db, "SELECT pgqueue.truncate_queue('q', states => %s)", states) == 7 - len(left)
    ids = column(db, "SELECT id FROM pgqueue.tasks")
    assert sorted(state for id, state in before if id in ids) == left
    if "taken" in left:
        assert rows(db, "SELECT id, holder FROM pgqueue.tasks WHERE state = 'taken'") == taken
    assert value(db, "SELECT total + kept FROM pgqueue.stats WHERE queue = 'q'") == len(left)
    assert value(db, "SELECT count(*) FROM pgqueue.take") == left.count("taken")


def test_truncate_of_states_removes_at_most_n_tasks(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.put_many('q', jsonb_agg(n)) FROM generate_series(1, 2300) n")
    column(db, "SELECT id FROM pgqueue.take_many('{q}', 1100)")
    for n, removed in ((1, 1), (1199, 1199), (1000, 0)):
        assert value(db, f"SELECT pgqueue.truncate_queue('q', {n}, '{{ready,delayed}}')") == removed
    assert rows(db, "SELECT state, count(*) FROM pgqueue.tasks GROUP BY state") == [("taken", 1100)]


def test_truncate_refuses_a_state_that_does_not_exist(db: psycopg.Connection) -> None:
    put(db, "q")
    for states in ("{ripe}", "{ready,NULL}"):
        fails(db, "PQ002", "SELECT pgqueue.truncate_queue('q', states => %s)", states)
    with db.transaction():
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        fails(db, "PQ002", "SELECT pgqueue.truncate_queue('q', states => '{ready}')")
    assert value(db, "SELECT count(*) FROM pgqueue.task") == 1


def test_truncate_of_states_leaves_a_task_that_is_taken_meanwhile(db: psycopg.Connection, connect: Connect) -> None:
    put(db, "q"), put(db, "q")
    other = connect(autocommit=False)
    id, token = take(other, "q")
    assert value(db, "SELECT pgqueue.truncate_queue('q', states => '{ready}')") == 1  # and it does not wait
    other.commit()
    other.execute("SELECT pgqueue.ack(%s, %s)", (id, token))
    assert value(db, "SELECT count(*) FROM pgqueue.task") == 1  # of the ack, which is open
    other.commit()
    assert value(db, "SELECT count(*) FROM pgqueue.task") == 0


def test_truncate_leaves_what_is_being_settled(db: psycopg.Connection, connect: Connect) -> None:
    put(db, "q"), put(db, "q")
    other = connect(autocommit=False)
    assert column(other, "SELECT id FROM pgqueue.pop('q')")
    assert value(db, "SELECT pgqueue.truncate_queue('q')") == 1  # and it does not wait for the other
    other.rollback()
    assert value(db, "SELECT count(*) FROM pgqueue.tasks WHERE state = 'ready'") == 1


def test_release_all_gives_back_what_is_taken(db: psycopg.Connection, connect: Connect) -> None:
    for _ in range(3):
        put(db, "q")
    put(db, "other")
    take(db, "q"), take(connect(), "q"), take(db, "other")
    assert value(db, "SELECT pgqueue.release_all('q')") == 2
    assert column(db, "SELECT state FROM pgqueue.tasks ORDER BY id") == ["ready", "ready", "ready", "taken"]
    assert value(db, "SELECT pgqueue.release_all('q')") == 0
    fails(db, "PQ032", "SELECT pgqueue.release_all('none')")


def test_release_all_leaves_what_is_being_settled_and_tells_takers(db: psycopg.Connection, connect: Connect) -> None:
    put(db, "q"), put(db, "q")
    first, token = take(db, "q")
    second, _ = take(db, "q")
    other = connect(autocommit=False)
    other.execute("SELECT pgqueue.ack(%s, %s)", [first, token])
    q = value(db, "SELECT pgqueue.queue_id('q')")
    sleeper = connect()
    sleeper.execute(f"LISTEN \"pgqueue:{q}\"; SELECT pgqueue.arm('{{{q}}}')")
    assert value(db, "SELECT pgqueue.release_all('q')") == 1
    assert notifications(sleeper, db) == [f"pgqueue:{q}"]
    other.commit()
    assert rows(db, "SELECT id, state FROM pgqueue.tasks") == [(second, "ready")]


# --- pausing and draining


@pytest.mark.parametrize("claim", ["take('q')", "take_many('{q}', 5)", "pop('q')"])
def test_nothing_is_taken_from_a_paused_queue(db: psycopg.Connection, claim: str) -> None:
    put(db, "q")
    db.execute("SELECT pgqueue.pause_queue('q', '1 h')")
    assert rows(db, f"SELECT id FROM pgqueue.{claim}") == []
    assert 3500 < value(db, "SELECT seconds FROM pgqueue.next_due('{q}')") <= 3600
    put(db, "q")  # goes on
    db.execute("SELECT pgqueue.pause_queue('q', '0')")
    assert option(db, "q", "paused_until") == (None,)
    assert rows(db, f"SELECT id FROM pgqueue.{claim}") != []


def test_a_pause_ends_by_itself(db: psycopg.Connection) -> None:
    id = put(db, "q")
    passed = Stopwatch()
    db.execute("SELECT pgqueue.pause_queue('q', '0.1 s')")
    eventually(lambda: rows(db, "SELECT id FROM pgqueue.take('q')") == [(id,)])
    assert passed() >= 0.1


def test_who_sleeps_is_told_of_a_pause(db: psycopg.Connection, connect: Connect) -> None:
    """It may end before the moment until which they sleep."""
    q = create(db, "q")
    sleeper = connect()
    sleeper.execute(f"LISTEN \"pgqueue:{q}\"; SELECT pgqueue.arm('{{{q}}}')")
    for duration in ("1 h", "1 s", "0"):
        db.execute("SELECT pgqueue.pause_queue('q', %s)", [duration])
        assert notifications(sleeper, db) == [f"pgqueue:{q}"]


def test_pausing_draining_and_counting_make_no_queue(db: psycopg.Connection) -> None:
    fails(db, "PQ032", "SELECT pgqueue.pause_queue('q', '1 s')")
    fails(db, "PQ032", "SELECT pgqueue.drain_queue('q')")
    fails(db, "PQ032", "SELECT pgqueue.list_messages('q')")
    assert rows(db, "SELECT * FROM pgqueue.queue_stats('q')") == []
    assert row(db, "SELECT free, claimed, total FROM pgqueue.message_stats('q')") == (0, 0, 0)
    assert rows(db, "SELECT FROM pgqueue.find_tasks('q', 'ready')") == rows(db, "SELECT FROM pgqueue.queue") == []


def test_a_pause_that_cannot_be(db: psycopg.Connection) -> None:
    create(db, "q")
    fails(db, "PQ002", "SELECT pgqueue.pause_queue('q', '-1 s')")
    fails(db, "PQ002", "SELECT pgqueue.pause_queue('q', NULL)")
    fails(db, "PQ032", "SELECT pgqueue.pause_queue('', '1 s')")


def test_nothing_is_put_into_a_draining_queue(db: psycopg.Connection) -> None:
    put(db, "q")
    db.execute("SELECT pgqueue.drain_queue('q')")
    fails(db, "PQ035", "SELECT pgqueue.put('q', '1')")
    fails(db, "PQ035", "SELECT pgqueue.put_many('q', '[1]')")
    put(db, "other")
    take(db, "q")  # what is there is taken as ever
    db.execute("SELECT pgqueue.drain_queue('q', false)")
    put(db, "q")


def test_draining_all_holds_for_queues_that_come_later(db: psycopg.Connection) -> None:
    put(db, "q")
    db.execute("SELECT pgqueue.drain_queues()")
    for queue in ("q", "new"):
        fails(db, "PQ035", "SELECT pgqueue.put(%s, '1')", queue)
    create(db, "made")
    fails(db, "PQ035", "SELECT pgqueue.put('made', '1')")
    db.execute("SELECT pgqueue.drain_queues()")  # twice is once
    db.execute("SELECT pgqueue.drain_queues(false)")
    for queue in ("q", "new", "made", "later"):
        put(db, queue)


@pytest.mark.parametrize("now", ["ready", "delayed", "buried", "blocked", "done"])
def test_what_is_locked_when_its_queue_is_deleted_goes_later(
    db: psycopg.Connection, connect: Connect, now: str
) -> None:
    create(db, "q", "keep_done => '1 h'")
    put(db, "q", lane="a")
    id = put(db, "q", delay="1 h" if now == "delayed" else "0", lane="a" if now == "blocked" else None)
    if now == "buried":
        db.execute("SELECT pgqueue.bury(%s)", [id])
    if now == "done":
        token = value(db, "SELECT token FROM pgqueue.take_id(%s)", id)
        db.execute("SELECT pgqueue.ack(%s, %s)", [id, token])
    assert state(db, id) == now
    other = connect(autocommit=False)
    other.execute("SELECT FROM pgqueue.task WHERE id = %s FOR UPDATE", [id])
    assert value(db, "SELECT pgqueue.delete_queue('q')") == 1
    other.rollback()
    assert column(db, "SELECT id FROM pgqueue.task") == [id]
    db.execute("SELECT pgqueue.clean_up()")
    assert rows(db, "SELECT FROM pgqueue.task") == []


def test_draining_all_misses_what_nobody_sees_yet(db: psycopg.Connection, connect: Connect) -> None:
    other = connect(autocommit=False)
    put(other, "new")
    db.execute("SELECT pgqueue.drain_queues()")
    other.commit()
    put(db, "new")
    db.execute("SELECT pgqueue.drain_queues()")
    fails(db, "PQ035", "SELECT pgqueue.put('new', '1')")


# --- queues that end with a session


def test_a_temporary_queue_ends_with_its_session_and_anybody_may_take(db: psycopg.Connection, connect: Connect) -> None:
    owner = connect()
    create(owner, "q", "temporary => true")
    assert option(db, "q", "temporary", "exclusive") == (True, False)
    put(db, "q")
    take(db, "q")
    owner.execute("SELECT pgqueue.close_session()")
    assert rows(db, "SELECT FROM pgqueue.queues") == rows(db, "SELECT FROM pgqueue.tasks") == []


def test_an_exclusive_queue_is_for_its_session_alone(db: psycopg.Connection, connect: Connect) -> None:
    owner = connect()
    create(owner, "q", "exclusive => true")
    put(db, "q")
    fails(db, "PQ033", "SELECT pgqueue.take('q')")
    fails(db, "PQ033", "SELECT pgqueue.take_id(1)")
    for more in ("", ", exclusive => true", ", temporary => true"):
        again = f"SELECT pgqueue.create_queue('q', if_not_exists => true{more})"
        fails(db, "PQ033", again)
        owner.execute(again)
    assert value(db, "SELECT count(*) FROM pgqueue.session") == 1  # a refused call opens none
    take(owner, "q")
