"""Dead letters: why a task dies, where it goes, and what is never touched. In SQL first, then on both shells."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from eventually import eventually, soon
from statements import column, put, row, rows, state, take, value
from stepping import die

import pgqueue

pytestmark = pytest.mark.once

Connect = Any
DEATHS = "SELECT died_in, reason, count FROM pgqueue.dead_letters WHERE id = %s"
WHERE = "SELECT queue, state, attempts FROM pgqueue.tasks WHERE id = %s"


def create(conn: psycopg.Connection, name: str, options: str = "") -> None:
    conn.execute(f"SELECT pgqueue.create_queue('{name}'{options and ', ' + options})")


def letters(options: str = "", key: str = "dead") -> str:
    """The options of a queue whose dead letters go to the queue `dead`."""
    return f"dead_letter => '', dead_letter_key => '{key}'" + (options and ", " + options)


def exchange(conn: psycopg.Connection, name: str, type: str, *queues: str) -> None:
    """An exchange to which these queues are bound."""
    conn.execute("SELECT pgqueue.declare_exchange(%s, %s)", [name, type])
    for queue in queues:
        conn.execute("SELECT pgqueue.queue_id(%s), pgqueue.bind(%s, %s, '#')", [queue, queue, name])


def fail(conn: psycopg.Connection, queue: str = "q") -> Any:
    return row(conn, "SELECT state FROM pgqueue.release(%s, %s, error => 'bang')", *take(conn, queue))


def expire(conn: psycopg.Connection, *ids: int) -> None:
    """Time is not waited for."""
    conn.execute("UPDATE pgqueue.task SET expires_at = now() - interval '1 s' WHERE id = ANY (%s)", [list(ids)])


def tick(conn: psycopg.Connection) -> int:
    return int(value(conn, "SELECT pgqueue.promote_all()"))


# --- rejected


def test_a_buried_task_is_a_dead_letter(db: psycopg.Connection) -> None:
    create(db, "q", letters())
    id = put(db, "q", "data", priority="3", ttr="1 min", ttl="1 h")
    _, token = take(db, "q")
    assert row(db, "SELECT state, problem FROM pgqueue.bury(%s, %s, 'bang')", id, token) == ("dead", None)
    assert row(db, WHERE, id) == ("dead", "ready", 0)
    assert rows(db, DEATHS, id) == [("q", "rejected", 1)]
    query = "SELECT data #>> '{}', error, priority, ttr::text, expires_at, routing_key FROM pgqueue.task"
    assert row(db, query) == ("data", "bang", 3, "00:01:00", None, "dead")
    assert row(db, "SELECT problem FROM pgqueue.ack(%s, %s)", id, token) == ("not taken",)
    assert take(db, "dead")[0] == id


def test_anybody_may_bury_by_id(db: psycopg.Connection, connect: Connect) -> None:
    create(db, "q", letters())
    held, delayed = put(db, "q"), put(db, "q", delay="1 h")
    take(connect(), "q")
    for id in (held, delayed):
        assert row(db, "SELECT state FROM pgqueue.bury(%s)", id) == ("dead",)
        assert row(db, WHERE, id) == ("dead", "ready", 0)
    assert rows(db, "SELECT FROM pgqueue.take") == []


def test_a_late_holder_buries_nothing(db: psycopg.Connection) -> None:
    create(db, "q", letters())
    id = put(db, "q")
    take(db, "q")
    assert row(db, "SELECT state, problem FROM pgqueue.bury(%s, 1)", id) == ("taken", "taken by another")
    assert row(db, WHERE, id) == ("q", "taken", 0)


@pytest.mark.parametrize("gone", ["no binding", "no exchange", "no queue"])
def test_what_failed_and_has_nowhere_to_go_is_buried(db: psycopg.Connection, gone: str) -> None:
    exchange(db, "dlx", "fanout", *(["dead"] if gone == "no queue" else []))
    create(db, "q", "dead_letter => 'dlx'")
    if gone == "no exchange":
        db.execute("SELECT pgqueue.delete_exchange('dlx')")
    elif gone == "no queue":
        db.execute("SELECT pgqueue.delete_queue('dead')")
    id = put(db, "q")
    assert row(db, "SELECT state FROM pgqueue.bury(%s, %s)", *take(db, "q")) == ("buried",)
    assert row(db, WHERE, id) == ("q", "buried", 0)


def test_every_bound_queue_gets_it_as_its_own(db: psycopg.Connection) -> None:
    exchange(db, "dlx", "fanout", "dead")
    create(db, "later", "delay => '1 h', ttl => '1 h'")
    db.execute("SELECT pgqueue.bind('later', 'dlx', '1'), pgqueue.bind('later', 'dlx', '2')")
    create(db, "q", "dead_letter => 'dlx'")
    id = put(db, "q")
    take(db, "q")
    db.execute("SELECT pgqueue.bury(%s, error => 'bang')", [id])
    query = """SELECT q.name, t.id = %s, state, error, expires_at - run_at = '1 h', deaths #>> '{0,queue}',
                      t.data #>> '{}'
                 FROM pgqueue.task t JOIN pgqueue.queue q ON q.id = queue_id ORDER BY 1"""
    first, second = rows(db, query, id)
    assert (first[1], second[1]) in [(True, False), (False, True)]
    assert (first[0], *first[2:]) == ("dead", "R", "bang", None, "q", "data")
    assert (second[0], *second[2:]) == ("later", "D", "bang", True, "q", "data")


def test_the_original_key_leads_on(db: psycopg.Connection) -> None:
    """As in AMQP: the key that it was published with, else the queue's name."""
    db.execute("SELECT pgqueue.declare_exchange('x', 'topic'), pgqueue.declare_exchange('dlx', 'topic')")
    create(db, "q", "dead_letter => 'dlx'")
    create(db, "named", "dead_letter => 'dlx', dead_letter_key => 'chosen'")
    for queue in ("q", "named"):
        db.execute("SELECT pgqueue.bind(%s, 'x', '#')", [queue])
    for key in ("orders.eu", "q", "chosen"):
        create(db, f"dead {key}")
        db.execute("SELECT pgqueue.bind(%s, 'dlx', %s)", [f"dead {key}", key])
    db.execute("SELECT pgqueue.publish('x', 'orders.eu', '1')")
    put(db, "q")
    for id in column(db, "SELECT id FROM pgqueue.tasks ORDER BY id"):
        db.execute("SELECT pgqueue.bury(%s)", [id])
    assert sorted(rows(db, "SELECT queue, died_in FROM pgqueue.dead_letters")) == [
        ("dead chosen", "named"),
        ("dead orders.eu", "q"),
        ("dead q", "q"),
    ]


# --- delivery_limit


@pytest.mark.parametrize("way", ["error", "deadline", "death"])
def test_a_task_that_came_back_max_takes_times(db: psycopg.Connection, connect: Connect, way: str) -> None:
    create(db, "q", letters("max_takes => 2, ttr => '1 h'"))
    id = put(db, "q")

    def come_back() -> None:
        if way == "error":
            fail(db)
        elif way == "deadline":
            take(db, "q")
            db.execute("UPDATE pgqueue.take SET deadline = now() - interval '1 s'")
            tick(db)
        else:
            taker = connect()
            taker.execute("SELECT pgqueue.open_session(grace => '0')")
            take(taker, "q")
            die(taker, db)
            db.execute("SELECT pgqueue.sweep()")

    come_back()
    assert row(db, WHERE, id) == ("q", "ready", 1)
    come_back()
    assert row(db, WHERE, id) == ("dead", "ready", 0)
    assert rows(db, DEATHS, id) == [("q", "delivery_limit", 1)]


def test_the_last_failure_says_what_became_of_it(db: psycopg.Connection) -> None:
    create(db, "q", letters("max_takes => 1"))
    create(db, "r", "max_takes => 1")
    put(db, "q"), put(db, "r")
    assert [fail(db, "q"), fail(db, "r")] == [("dead",), ("buried",)]
    assert sorted(rows(db, "SELECT queue, state, error FROM pgqueue.tasks")) == [
        ("dead", "ready", "bang"),
        ("r", "buried", "bang"),
    ]


def test_what_is_given_back_untouched_does_not_count(db: psycopg.Connection) -> None:
    create(db, "q", "max_takes => 1")
    id = put(db, "q")
    for _ in range(3):
        db.execute("SELECT pgqueue.release(%s, %s)", take(db, "q"))
    assert row(db, WHERE, id) == ("q", "ready", 0)


# --- expired


def test_an_expired_task_is_never_taken_with_no_maintenance_running(db: psycopg.Connection) -> None:
    id = put(db, "q", ttl="1 h")
    assert value(db, "SELECT seconds FROM pgqueue.next_due('{q}')") == 0
    expire(db, id)
    for claim in (
        "take('q')",
        "take_many('{q}', 5)",
        "take_many('{q, r}', 5)",
        "pop('q', 5)",
        "take('q', NULL, 1, 0, 0)",
    ):
        assert rows(db, f"SELECT * FROM pgqueue.{claim}") == []
    assert value(db, "SELECT seconds FROM pgqueue.next_due('{q}')") is None  # a taker sleeps
    assert state(db, id) == "ready"
    tick(db)
    assert state(db, id) is None


def test_what_does_not_expire_yet_is_taken_before_and_behind_it(db: psycopg.Connection) -> None:
    ids = [put(db, "q", ttl="1 h") for _ in range(5)]
    expire(db, ids[0], ids[2])
    assert take(db, "q")[0] == ids[1]
    assert column(db, "SELECT id FROM pgqueue.take_many('{q}', 5)") == ids[3:]


def test_an_expired_task_is_a_dead_letter(db: psycopg.Connection) -> None:
    create(db, "q", letters("ttl => '1 h'"))
    kept, expired = put(db, "q"), put(db, "q")
    buried = put(db, "q")
    db.execute("UPDATE pgqueue.task SET state = 'B' WHERE id = %s", [buried])
    expire(db, expired, buried)
    assert tick(db) == 0  # nothing became ready here
    for id in (expired, buried):
        assert row(db, WHERE, id) == ("dead", "ready", 0)
        assert rows(db, DEATHS, id) == [("q", "expired", 1)]
    assert row(db, WHERE, kept) == ("q", "ready", 0)


def test_a_taken_task_expires_once_it_comes_back(db: psycopg.Connection) -> None:
    create(db, "q", letters("ttl => '1 h', ttr => '1 h'"))
    id = put(db, "q")
    _, token = take(db, "q")
    expire(db, id)
    tick(db)
    assert state(db, id) == "taken"
    assert row(db, "SELECT state FROM pgqueue.touch(%s, %s, more => '1 s')", id, token) == ("taken",)
    db.execute("SELECT pgqueue.release(%s, %s)", [id, token])
    tick(db)
    assert row(db, WHERE, id) == ("dead", "ready", 0)


def test_one_past_its_deadline_expires_in_the_same_tick(db: psycopg.Connection) -> None:
    create(db, "q", letters("ttl => '1 h', ttr => '1 h'"))
    id = put(db, "q")
    take(db, "q")
    expire(db, id)
    db.execute("UPDATE pgqueue.take SET deadline = now() - interval '1 s'")
    tick(db)
    assert rows(db, DEATHS, id) == [("q", "expired", 1)]


def test_a_taken_task_that_expired_can_be_acked(db: psycopg.Connection) -> None:
    id = put(db, "q", ttl="1 h")
    _, token = take(db, "q")
    expire(db, id)
    assert row(db, "SELECT state FROM pgqueue.ack(%s, %s)", id, token) == ("done",)


def test_delayed_tasks_do_not_expire_before_they_are_ready(db: psycopg.Connection) -> None:
    create(db, "q", "ttl => '1 h', delay => '1 h'")
    id = put(db, "q")
    assert value(db, "SELECT expires_at - run_at = interval '1 h' FROM pgqueue.task") is True
    expire(db, id)
    tick(db)
    assert state(db, id) == "delayed"
    db.execute("UPDATE pgqueue.task SET run_at = now() - interval '1 s'")
    tick(db), tick(db)
    assert state(db, id) is None


def test_a_thousand_at_a_time(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.put_many('q', (SELECT jsonb_agg(i) FROM generate_series(1, 1500) i), ttl => '1 h')")
    db.execute("UPDATE pgqueue.task SET expires_at = now()")
    tick(db)
    assert len(rows(db, "SELECT FROM pgqueue.task")) == 500
    tick(db)
    assert len(rows(db, "SELECT FROM pgqueue.task")) == 0


def test_expiry_waits_for_nobody(db: psycopg.Connection, connect: Connect) -> None:
    create(db, "q", letters("ttl => '1 h'"))
    locked, free = put(db, "q"), put(db, "q")
    other = connect(autocommit=False)
    take(other, "q")
    expire_by = connect()
    expire_by.execute("UPDATE pgqueue.task SET expires_at = now() WHERE id = %s", [free])
    db.execute("SET lock_timeout = '1 ms'")
    tick(db)
    assert row(db, WHERE, free) == ("dead", "ready", 0)
    other.rollback()
    assert row(db, WHERE, locked) == ("q", "ready", 0)


def test_a_task_that_is_taken_while_others_choose_does_not_die(db: psycopg.Connection, connect: Connect) -> None:
    """A claim that commits between the snapshot and the row's lock: the second look sees its take."""
    create(db, "q", letters("maxlen => 1"))
    id, other = put(db, "q"), connect()
    chosen = connect(autocommit=False)
    chosen.execute("SELECT FROM pgqueue.task WHERE id = %s FOR UPDATE", [id])
    assert column(chosen, "SELECT pgqueue._untaken(%s)", [id]) == [[id]]
    chosen.rollback()
    take(other, "q")
    assert column(chosen, "SELECT pgqueue._untaken(%s)", [id]) == [[]]
    chosen.rollback()
    chosen.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert column(chosen, "SELECT pgqueue._untaken(%s)", [id]) == [[]]


# --- maxlen


def test_the_oldest_go(db: psycopg.Connection) -> None:
    create(db, "q", letters("maxlen => 2"))
    ids = [put(db, "q", priority=str(-n)) for n in range(4)]
    assert column(db, "SELECT id FROM pgqueue.tasks WHERE queue = 'q' ORDER BY id") == ids[2:]
    assert rows(db, DEATHS, ids[0]) == rows(db, DEATHS, ids[1]) == [("q", "maxlen", 1)]


@pytest.mark.parametrize("options", ["maxlen => 2", letters("maxlen => 2")], ids=["dropped", "dead letters"])
def test_what_goes_is_counted(db: psycopg.Connection, options: str) -> None:
    create(db, "q", options)
    for n in range(5):
        put(db, "q", priority=str(-n))
    counted = "SELECT done, (calls ->> 'maxlen')::int, (calls ->> 'delete')::int FROM pgqueue.queue_stats('q')"
    assert row(db, counted) == (3, 3, 3)
    db.execute("SELECT pgqueue.alter_queue('q', '{\"maxlen\": 1}')")
    assert row(db, counted) == (4, 4, 4)


def test_taken_delayed_and_buried_tasks_are_not_in_the_way(db: psycopg.Connection) -> None:
    create(db, "q", "maxlen => 1")
    taken = put(db, "q")
    take(db, "q")
    buried = put(db, "q")
    db.execute("SELECT pgqueue.bury(%s)", [buried])
    delayed, ready = put(db, "q", delay="1 h"), put(db, "q")
    assert column(db, "SELECT id FROM pgqueue.tasks ORDER BY id") == [taken, buried, delayed, ready]
    newer = put(db, "q")
    assert column(db, "SELECT id FROM pgqueue.tasks ORDER BY id") == [taken, buried, delayed, newer]


def test_many_at_once_and_published_ones(db: psycopg.Connection) -> None:
    create(db, "q", "maxlen => 3")
    ids = value(db, "SELECT pgqueue.put_many('q', '[1, 2, 3, 4, 5]')")
    assert column(db, "SELECT id FROM pgqueue.tasks ORDER BY id") == ids[2:]
    db.execute("SELECT pgqueue.publish('', 'q', '6')")
    assert column(db, "SELECT data::text FROM pgqueue.tasks ORDER BY id") == ["4", "5", "6"]


def test_what_a_put_could_not_see_is_trimmed_later(db: psycopg.Connection, connect: Connect) -> None:
    create(db, "q", "maxlen => 1")
    one, other = connect(autocommit=False), connect(autocommit=False)
    put(one, "q"), put(other, "q")
    one.commit(), other.commit()
    other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    newest = put(other, "q")  # there nobody dies
    other.commit()
    assert len(rows(db, "SELECT FROM pgqueue.tasks")) == 3
    db.execute("SELECT pgqueue._clean_routes()")
    assert column(db, "SELECT id FROM pgqueue.tasks") == [newest]


# --- circles


def test_a_circle_without_a_rejection_is_broken(db: psycopg.Connection) -> None:
    exchange(db, "to b", "fanout")
    create(db, "a", "ttl => '1 h', dead_letter => 'to b'")
    create(db, "b", "ttl => '1 h', dead_letter => '', dead_letter_key => 'a'")
    db.execute("SELECT pgqueue.bind('b', 'to b')")
    id = put(db, "a")
    expire(db, id), tick(db)
    assert rows(db, DEATHS, id) == [("a", "expired", 1)]
    expire(db, id), tick(db)
    assert rows(db, "SELECT FROM pgqueue.task") == []


def test_a_circle_with_a_rejection_goes_on_and_counts(db: psycopg.Connection) -> None:
    """The usual retry queue: rejected, it waits there until it expires, and comes back."""
    exchange(db, "to wait", "fanout")
    create(db, "work", "dead_letter => 'to wait'")
    create(db, "wait", "ttl => '1 h', dead_letter => '', dead_letter_key => 'work'")
    db.execute("SELECT pgqueue.bind('wait', 'to wait')")
    id = put(db, "work")
    for n in (1, 2, 3):
        db.execute("SELECT pgqueue.bury(%s, %s)", take(db, "work"))
        assert row(db, WHERE, id) == ("wait", "ready", 0)
        expire(db, id), tick(db)
        assert row(db, WHERE, id) == ("work", "ready", 0)
        assert rows(db, DEATHS, id) == [("wait", "expired", n), ("work", "rejected", n)]


def test_only_the_queues_that_close_a_circle_are_left_out(db: psycopg.Connection) -> None:
    exchange(db, "dlx", "fanout", "dead")
    create(db, "q", "ttl => '1 h', dead_letter => 'dlx'")
    db.execute("SELECT pgqueue.bind('q', 'dlx')")
    id = put(db, "q")
    expire(db, id), tick(db)
    assert rows(db, "SELECT id, queue FROM pgqueue.tasks") == [(id, "dead")]


def test_a_chain_of_short_queues_ends(db: psycopg.Connection) -> None:
    """Each drops its oldest into the next, the last into the first again."""
    create(db, "c")
    create(db, "b", letters("maxlen => 1", key="c"))
    create(db, "a", letters("maxlen => 1", key="b"))
    db.execute("UPDATE pgqueue.queue SET maxlen = 1, dead_letter = '', dead_letter_key = 'a' WHERE name = 'c'")
    for n in range(6):
        put(db, "a", str(n))
    assert rows(db, "SELECT queue, data #>> '{}' FROM pgqueue.tasks ORDER BY 1") == [("a", "5"), ("b", "4"), ("c", "3")]


# --- options


@pytest.mark.parametrize(
    ("sqlstate", "options"),
    [
        ("PQ002", "ttl => '-1 s'"),
        ("PQ002", "ttl => '0'"),
        ("PQ002", "maxlen => 0"),
        ("PQ002", "maxlen => -1"),
        ("PQ002", "max_takes => 0"),
        ("PQ031", "dead_letter => 'none'"),
        ("PQ002", "dead_letter_key => 'k'"),
        ("PQ002", "dead_letter => ''"),
        ("PQ001", "dead_letter => '', dead_letter_key => repeat('k', 201)"),
        ("PQ001", "dead_letter => 'x', dead_letter_key => repeat('k', 256)"),
    ],
)
def test_options_that_cannot_be(db: psycopg.Connection, sqlstate: str, options: str) -> None:
    db.execute("SELECT pgqueue.declare_exchange('x')")
    with pytest.raises(psycopg.Error) as caught:
        create(db, "q", options)
    assert caught.value.sqlstate == sqlstate
    assert rows(db, "SELECT FROM pgqueue.queue") == []


# --- both shells


async def test_from_either_shell(client: Any, db: psycopg.Connection) -> None:
    queue = await client.create_queue("q", dead_letter="", dead_letter_key="dead", max_takes=2, maxlen=5, ttl=60)
    query = "SELECT dead_letter, dead_letter_key, max_takes, maxlen, ttl::text FROM pgqueue.queue WHERE name = 'q'"
    assert row(db, query) == ("", "dead", 2, 5, "00:01:00")
    await queue.put("buried"), await queue.put("failing")
    buried = await queue.take(5)
    assert (await buried.bury(error="no")).state == "dead"
    for expected in ("ready", "dead"):
        failing = await queue.take(5)
        assert (await failing.release(error="bang")).state == expected
    dead = client.queue("dead")
    for reason in ("rejected", "delivery_limit"):
        task = await dead.take(5)
        (death,) = await client.exchanges.deaths(task)
        assert (death.queue, death.reason, death.count) == ("q", reason, 1)
        assert death.time.tzinfo is not None
    assert await client.exchanges.deaths(12345) == []
    with pytest.raises(pgqueue.errors.TaskIdRequired):
        await client.exchanges.deaths("x")


async def test_a_waiting_taker_gets_the_dead_letter_of_one_that_expires(client: Any, db: psycopg.Connection) -> None:
    queue = await client.create_queue("q", dead_letter="", dead_letter_key="dead")
    await queue.put("late", ttl=0.05)
    task = await client.queue("dead").take(10)
    assert task.data == "late"
    await soon(lambda: not rows(db, "SELECT FROM pgqueue.tasks WHERE queue = 'q'"))


async def test_put_many_with_a_ttl(client: Any, db: psycopg.Connection) -> None:
    await client.queue("q").put_many([1, 2], ttl=60)
    assert column(db, "SELECT expires_at - created_at < interval '70 s' FROM pgqueue.task") == [True, True]


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": float("nan")},
        {"ttl": "1"},
        {"maxlen": 0},
        {"maxlen": True},
        {"maxlen": 2**31},
        {"max_takes": -1},
        {"max_takes": 1.5},
        {"dead_letter": 1},
        {"dead_letter": "a\0b"},
        {"dead_letter": "", "dead_letter_key": "\ud800"},
        {"dead_letter": "", "dead_letter_key": "k" * 256},
        {"dead_letter_key": "k"},
        {"exclusive": 1},
        {"auto_delete": None},
    ],
)
async def test_options_that_cannot_be_from_either_shell(client: Any, db: psycopg.Connection, options: Any) -> None:
    with pytest.raises(ValueError, match=r"must be|cannot hold|has at most|needs a"):
        await client.create_queue("q", **options)
    assert rows(db, "SELECT FROM pgqueue.queue") == []


def test_a_worker_that_gives_up_makes_a_dead_letter(blocking: Any, db: psycopg.Connection) -> None:
    client = blocking()
    client.create_queue("q", dead_letter="", dead_letter_key="dead")
    client.queue("q").put(1)
    arrived = []

    @client.handler("q")
    def fails(data: Any) -> None:
        raise RuntimeError("bang")

    @client.handler("dead")
    def collect(data: Any, task: pgqueue.Task) -> None:
        arrived.append((data, task.attempts, [(death.queue, death.reason) for death in client.exchanges.deaths(task)]))
        worker.stop()

    worker = pgqueue.Worker(client, max_attempts=2, retry_delay=0)
    worker.run()
    assert arrived == [(1, 0, [("q", "rejected")])]
    eventually(lambda: not rows(db, "SELECT FROM pgqueue.tasks"))
