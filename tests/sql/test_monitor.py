"""What monitors and operators ask of the queues: pages of tasks, takes, sessions, listeners, rates, and why."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from claiming import claim
from eventually import eventually
from planner import pages
from statements import column, put, row, rows, take, value

Connect = Any
MakeRole = Any
LABEL = "web-1.example.org:4711:worker.py"
STATES = ["ready", "taken", "delayed", "buried", "blocked", "done"]
ORDERS = {"taken": "taken_at", "delayed": "run_at", "blocked": "lane, priority, id", "done": "done_at"}


def why(conn: psycopg.Connection, what: str | int) -> dict[str, str]:
    """The detail of each reason, the first one where there are several."""
    return dict(reversed(rows(conn, "SELECT reason, detail FROM pgqueue.why(%s)", what)))


@pytest.fixture
def holder(connect: Connect) -> psycopg.Connection:
    """A connection with the session of a process, as a client's listener has it."""
    conn = connect(application_name="pgqueue listener")
    conn.execute("SELECT pgqueue.open_session(label => %s, grace => '1 h')", [LABEL])
    return conn


# --- pages of tasks


@pytest.fixture
def full(db: psycopg.Connection, holder: psycopg.Connection) -> None:
    """Two queues alike, with several tasks in each state, and priorities and times against the order of the ids."""
    for queue in ("q", "other"):
        db.execute("SELECT pgqueue.create_queue(%s, keep_done => '1 h')", [queue])
        for n in range(3):
            put(db, queue, priority=-20 - n)
            holder.execute("SELECT pgqueue.take(%s)", [queue])
            put(db, queue, priority=-10 - n)
            holder.execute("SELECT pgqueue.ack(id, token) FROM pgqueue.take(%s)", [queue])
        for n in range(4):
            put(db, queue, priority=-n)
            put(db, queue, delay=f"{9 - n} h", priority=n)
            db.execute("SELECT pgqueue.bury(%s)", [put(db, queue, priority=-n)])
        for lane in ("b", "a"):
            for n in range(3):
                put(db, queue, lane=lane, priority=n)


@pytest.mark.parametrize("state", STATES)
def test_a_page_has_the_tasks_of_a_state_in_its_order(db: psycopg.Connection, full: None, state: str) -> None:
    order = ORDERS.get(state, "priority, id")
    whole = rows(db, f"SELECT * FROM pgqueue.tasks WHERE queue = 'q' AND state = %s ORDER BY {order}", state)
    assert len(whole) >= 3
    assert rows(db, "SELECT * FROM pgqueue.find_tasks('q', %s)", state) == whole
    assert rows(db, "SELECT * FROM pgqueue.find_tasks('q', %s, backwards => true)", state) == whole[::-1]
    assert rows(db, "SELECT * FROM pgqueue.find_tasks('q', %s, 1, skip => 1)", state) == whole[1:2]


def test_every_task_is_in_one_page(db: psycopg.Connection, full: None) -> None:
    found = [id for state in STATES for id in column(db, "SELECT id FROM pgqueue.find_tasks('q', %s)", state)]
    assert sorted(found) == column(db, "SELECT id FROM pgqueue.tasks WHERE queue = 'q' ORDER BY id")


def test_what_is_due_is_on_the_page_of_ready_tasks(db: psycopg.Connection) -> None:
    late, first = put(db, "q", delay="1 h"), put(db, "q", priority=-1)
    db.execute("UPDATE pgqueue.task SET run_at = now() - interval '1 s' WHERE id = %s", [late])
    assert column(db, "SELECT id FROM pgqueue.find_tasks('q', 'ready')") == [first, late]
    assert column(db, "SELECT id FROM pgqueue.find_tasks('q', 'delayed')") == []


def test_a_page_of_nothing(db: psycopg.Connection) -> None:
    put(db, "q")
    assert rows(db, "SELECT * FROM pgqueue.find_tasks('q', 'buried')") == []
    assert rows(db, "SELECT * FROM pgqueue.find_tasks('none', 'ready')") == []
    with pytest.raises(psycopg.Error, match='no task is ever "gone": the states are ready') as caught:
        db.execute("SELECT * FROM pgqueue.find_tasks('q', 'gone')")
    assert caught.value.sqlstate == "PQ002"


def test_the_columns_for_filters_say_where_a_task_is(db: psycopg.Connection, full: None) -> None:
    ours = "SELECT id FROM pgqueue.queues WHERE name = 'q'"
    for state, stored in {"delayed": "D", "buried": "B", "done": "F"}.items():
        by_column = "SELECT id FROM pgqueue.tasks WHERE queue_id = %s AND stored = %s ORDER BY id"
        by_state = "SELECT id FROM pgqueue.tasks WHERE queue = 'q' AND state = %s ORDER BY id"
        assert column(db, by_column, value(db, ours), stored) == column(db, by_state, state) != []


# --- who


def test_takes_say_who_holds_what_and_until_when(db: psycopg.Connection, holder: psycopg.Connection) -> None:
    first, second = put(db, "q", ttr="1 h"), put(db, "other", lane="x")
    (take(holder, "q"), take(holder, "other"))
    session = value(holder, "SELECT pgqueue.own_session()")
    query = "SELECT id, queue, holder, host, pid, session, backend_pid, lane FROM pgqueue.takes ORDER BY id"
    who = (LABEL, "web-1.example.org", 4711, session, holder.info.backend_pid)
    assert rows(db, query) == [(first, "q", *who, None), (second, "other", *who, "x")]
    times = """SELECT deadline - taken_at = '1 h', age BETWEEN '0' AND '1 min', time_left BETWEEN '59 min' AND '1 h'
                 FROM pgqueue.takes WHERE id = %s"""
    assert row(db, times, first) == (True, True, True)
    assert row(db, "SELECT deadline, time_left FROM pgqueue.takes WHERE id = %s", second) == (None, None)
    db.execute("UPDATE pgqueue.take SET deadline = now() - interval '1 s' WHERE task_id = %s", [first])
    assert column(db, "SELECT id FROM pgqueue.takes") == [second]


def test_takes_of_a_claim_and_of_a_connection_have_no_process(db: psycopg.Connection, connect: Connect) -> None:
    (put(db, "q"), put(db, "q"))
    claim(db, 1)
    conn = connect(application_name="psql")
    take(conn, "q")
    query = "SELECT holder, host, pid FROM pgqueue.takes ORDER BY id"
    assert rows(db, query) == [("a claim", None, None), (f"psql, backend {conn.info.backend_pid}", None, None)]


def test_a_session_whose_connection_is_gone_is_missing_at_once(
    db: psycopg.Connection, holder: psycopg.Connection
) -> None:
    (put(db, "q"), put(db, "q"))
    (take(holder, "q"), take(holder, "q"))
    query = "SELECT state, host, pid, taken, missing_since IS NULL, longest_take <= age FROM pgqueue.sessions"
    assert row(db, query) == ("connected", "web-1.example.org", 4711, 2, True, True)
    db.execute("SELECT pg_terminate_backend(%s::int)", [holder.info.backend_pid])
    eventually(lambda: row(db, query) == ("missing", "web-1.example.org", 4711, 2, True, True))  # nobody has swept
    db.execute("SELECT pgqueue.sweep()")
    assert row(db, query) == ("missing", "web-1.example.org", 4711, 2, False, True)


def test_a_session_that_was_closed_for_its_identity(db: psycopg.Connection, holder: psycopg.Connection) -> None:
    holder.execute("SELECT pgqueue.identify()")
    holder.execute("SELECT pgqueue.close_session()")
    assert column(db, "SELECT state FROM pgqueue.sessions") == ["closed"]


@pytest.mark.parametrize("label", ["", "a:b", "::", "a:99999999999:b", "psql, backend 1", "a:-1:b"])
def test_a_label_may_be_anything(db: psycopg.Connection, connect: Connect, label: str) -> None:
    conn = connect()
    conn.execute("SELECT pgqueue.open_session(label => %s)", [label])
    assert row(db, "SELECT label, host, pid FROM pgqueue.sessions") == (label, None, None)


def test_listeners_are_the_connections_that_are_woken(db: psycopg.Connection, holder: psycopg.Connection) -> None:
    query = "SELECT backend_pid, label, host, pid, session, role, state FROM pgqueue.listeners"
    session, role = rows(holder, "SELECT pgqueue.own_session(), current_user")[0]
    expected = (holder.info.backend_pid, LABEL, "web-1.example.org", 4711, session, role, "idle")
    eventually(lambda: rows(db, query) == [expected])
    assert row(db, "SELECT age >= '0', connected_at <= state_since FROM pgqueue.listeners") == (True, True)
    holder.close()
    eventually(lambda: rows(db, query) == [])


# --- rates


def test_rates_are_those_of_the_last_minute(db: psycopg.Connection) -> None:
    for _ in range(6):
        put(db, "q")
    db.execute("SELECT pgqueue.promote_all()")
    db.execute("UPDATE pgqueue.sample SET sampled_at = sampled_at + interval '30 s'")  # new, however slow we are
    assert row(db, "SELECT seconds, puts, drained_in FROM pgqueue.rates") == (None, None, None)
    db.execute("UPDATE pgqueue.sample SET sampled_at = sampled_at - interval '90 s'")
    for _ in range(6):
        put(db, "q")
    for _ in range(3):
        db.execute("SELECT pgqueue.ack(id, token) FROM pgqueue.take('q')")
    query = """SELECT round(seconds) BETWEEN 60 AND 200, round(puts * seconds), round(takes * seconds),
                      round(acks * seconds), round(done * seconds), round(growth * seconds), drained_in
                 FROM pgqueue.rates"""
    assert row(db, query) == (True, 6, 3, 3, 3, 3, None)
    db.execute("SELECT pgqueue.delete(id) FROM pgqueue.find_tasks('q', 'ready', 6)")
    query = """SELECT round(done * seconds), round(growth * seconds),
                      round(extract(epoch FROM drained_in) / seconds * 3)
                 FROM pgqueue.rates"""
    assert row(db, query) == (9, -3, 3)  # three are left: at three in `seconds` that takes as long again
    assert value(db, "SELECT pgqueue.last_tick() < now() - interval '1 min'") is True


def test_some_queues_have_the_stats_and_rates_that_the_views_have(db: psycopg.Connection) -> None:
    for queue, n in (("q", 3), ("other", 2), ("last", 1)):
        for _ in range(n):
            put(db, queue)
    db.execute("SELECT pgqueue.promote_all()")
    db.execute("UPDATE pgqueue.sample SET sampled_at = sampled_at - interval '60 s'")
    db.execute("SELECT pgqueue.ack(id, token) FROM pgqueue.take('q')")
    names, counts = ["q", "last", "missing"], "queue, total, ready, done, calls"
    of_view = rows(db, f"SELECT {counts} FROM pgqueue.stats WHERE queue = ANY (%s) ORDER BY queue", names)
    assert [name for name, *_ in of_view] == ["last", "q"]
    assert rows(db, f"SELECT {counts} FROM pgqueue.queue_stats(%s::text[]) ORDER BY queue", names) == of_view
    assert rows(db, "SELECT queue FROM pgqueue.queue_stats(NULL::text[]) ORDER BY queue") == [
        ("last",),
        ("other",),
        ("q",),
    ]
    rates = "SELECT queue, round(puts * seconds), round(done * seconds), drained_in IS NULL FROM pgqueue"
    assert rows(db, f"{rates}.queue_rates(%s) ORDER BY queue", names) == [("last", 0, 0, True), ("q", 0, 1, False)]
    assert rows(db, f"{rates}.rates ORDER BY queue") == rows(db, f"{rates}.queue_rates() ORDER BY queue")


def test_samples_are_few(db: psycopg.Connection) -> None:
    put(db, "q")
    for minutes in range(6):
        (db.execute("SELECT pgqueue.promote_all()"), db.execute("SELECT pgqueue.promote_all()"))
        assert value(db, "SELECT count(*) FROM pgqueue.sample") == min(minutes, 2) + 1
        db.execute("UPDATE pgqueue.sample SET sampled_at = sampled_at - interval '61 s'")
    db.execute("UPDATE pgqueue.sample SET sampled_at = sampled_at - interval '1 h'")
    assert value(db, "SELECT seconds FROM pgqueue.rates") is None  # nobody ticked: not the rate of an hour ago


# --- why


def test_why_a_queue_stands_still(db: psycopg.Connection, holder: psycopg.Connection) -> None:
    assert why(db, "q") == {"no queue": 'there is no queue "q"'}
    db.execute("SELECT pgqueue.create_queue('q', capacity => 3)")
    assert why(db, "q") == {}
    id = put(db, "q")
    assert "no taker waits" in why(db, "q")["no taker"]
    q = value(db, "SELECT id FROM pgqueue.queues")
    holder.execute("SELECT pgqueue.arm(%s)", [[q]])
    assert why(db, "q") == {}
    db.execute("SELECT pgqueue.pause_queue('q', '1 h'), pgqueue.drain_queue('q'), pgqueue.restrict_queue('q')")
    assert why(db, "q").keys() == {"paused", "draining", "restricted"}
    db.execute(
        "SELECT pgqueue.pause_queue('q', '0'), pgqueue.drain_queue('q', false), pgqueue.restrict_queue('q', false)"
    )
    take(holder, "q")
    assert why(db, "q")["taken"].startswith(f"by {LABEL} (connected), the longest for 00:0")
    due = put(db, "q", delay="1 h")
    db.execute("SELECT pgqueue.bury(%s)", [put(db, "q")])
    found = why(db, "q")
    assert found.keys() == {"full", "taken", "delayed", "buried"}
    assert f"the next is task {due}, at " in found["delayed"]
    assert found["buried"] == "without an error"
    db.execute("SELECT pg_terminate_backend(%s::int)", [holder.info.backend_pid])
    eventually(lambda: "(missing)" in why(db, "q")["taken"])
    assert why(db, id)["taken"].startswith(f"{LABEL} has it since ")


def test_why_a_lane_stands_still(db: psycopg.Connection, holder: psycopg.Connection) -> None:
    first, second = put(db, "q", lane="x"), put(db, "q", lane="x")
    assert why(db, second)["blocked"] == f'in lane "x", behind task {first}, which is ready'
    take(holder, "q")
    assert why(db, "q")["blocked"].startswith(f'lane "x" waits for task {first}, which {LABEL} has since ')
    assert why(db, second)["blocked"].startswith(f'in lane "x", behind task {first}, which {LABEL} has since ')


def test_why_a_lane_stands_still_for_a_role_that_may_not_look(
    db: psycopg.Connection, holder: psycopg.Connection, connect: Connect, make: MakeRole
) -> None:
    conn = connect(options=f"-c role={make('SELECT pgqueue.grant_monitor(%s)')}")
    first, second = put(db, "q", lane="secret"), put(db, "q", lane="secret")
    assert why(conn, second)["blocked"] == f"in a lane, behind task {first}, which is ready"
    take(holder, "q")
    assert why(conn, "q")["blocked"].startswith(f"a lane waits for task {first}, which {LABEL} has since ")
    assert why(conn, second)["blocked"].startswith(f"in a lane, behind task {first}, which {LABEL} has since ")
    assert not any("secret" in text for what in ("q", second) for text in why(conn, what).values())


def test_why_tasks_wait_for_limits(db: psycopg.Connection, holder: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('q'), pgqueue.set_limit('q', 'mail', rate => 1, per => '1 h')")
    db.execute("SELECT pgqueue.set_limit('q', concurrency => 1)")
    for job in ("mail", "mail", "mail", "other", "other"):
        db.execute("SELECT pgqueue.put('q', jsonb_build_object('job', %s::text))", [job])
    assert why(db, "q").keys() == {"no taker", "waiting"}  # no task has begun
    for _ in range(2):
        take(holder, "q")
    assert why(db, "q").keys() == {"taken", "waiting"}
    waits = "SELECT tasks, detail, subject FROM pgqueue.why('q') WHERE reason = 'waiting'"
    (mail, rest) = rows(db, waits)
    assert (mail[0], mail[2], rest) == (2, "mail", (1, "for the limit of its queue: 1 at once", None))
    assert mail[1].startswith('for the limit of job "mail": 1 in each 01:00:00, the next at ')


def test_why_tasks_wait_for_other_tasks(db: psycopg.Connection) -> None:
    first = put(db, "others", delay="1 h")
    put_after = "SELECT id FROM pgqueue.put_flow('q', '1', after => ARRAY [%s::bigint])"
    waiting = [value(db, put_after, first) for _ in range(2)]
    assert rows(db, "SELECT * FROM pgqueue.why('q')") == [("waiting", 2, "for other tasks", str(waiting[0]))]
    assert why(db, waiting[0]) == {"waiting": "for other tasks"}


def test_why_a_waiting_taker_gets_nothing(db: psycopg.Connection, holder: psycopg.Connection, connect: Connect) -> None:
    put(db, "q")
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '10 s'")
    holder.execute("SELECT pgqueue.arm(array_agg(id)) FROM pgqueue.queues")
    popping = connect(autocommit=False)
    popping.execute("SELECT pgqueue.pop('q')")
    assert "a transaction that is open may have them" in why(db, "q")["locked"]
    popping.commit()
    assert why(db, "q") == {}


def test_why_an_exclusive_queue_stands_still(db: psycopg.Connection, holder: psycopg.Connection) -> None:
    session = value(holder, "SELECT pgqueue.own_session()")
    holder.execute("SELECT pgqueue.create_queue('mine', exclusive => true)")
    assert why(db, "mine") == {"exclusive": f"only session {session} may take: {LABEL}, connected"}


def test_why_tasks_are_buried(db: psycopg.Connection) -> None:
    for error in ("disk", "net", "disk"):
        put(db, "q")
        db.execute("SELECT pgqueue.bury(id, token, error => %s) FROM pgqueue.take('q')", [error])
    query = "SELECT tasks, detail FROM pgqueue.why('q') WHERE reason = 'buried'"
    assert rows(db, query) == [(2, "disk"), (1, "net")]
    assert why(db, 2) == {"buried": "net"}


def test_why_one_task_is_not_done(db: psycopg.Connection) -> None:
    assert why(db, 1).keys() == {"no task"}
    db.execute("SELECT pgqueue.create_queue('q', keep_done => '1 h')")
    ready, delayed, done = put(db, "q"), put(db, "q", delay="1 h"), put(db, "q", priority=-1)
    db.execute("SELECT pgqueue.ack(id, token) FROM pgqueue.take('q')")
    db.execute("SELECT pgqueue.pause_queue('q', '1 h')")
    assert why(db, ready).keys() == {"ready", "paused", "no taker"}
    assert why(db, delayed)["delayed"].startswith("until ")
    assert why(db, done)["done"].startswith("since ")


def test_a_role_that_takes_from_other_queues_is_named_only_where_no_role_may_take(
    db: psycopg.Connection, connect: Connect, make: MakeRole
) -> None:
    """Two applications in one database: while the worker of one is down, that of the other is not what is missing."""
    ours, theirs = make(), make()
    for role, queue in ((ours, "ours"), (theirs, "theirs")):
        db.execute("SELECT pgqueue.revoke_from(%s)", [role])
        db.execute("SELECT pgqueue.grant(%s, %s)", [queue, role])
    put(db, "ours"), put(db, "new")
    with connect(options=f"-c role={theirs}") as worker:
        worker.execute("SELECT pgqueue.open_session()")
        assert "no right" not in why(db, "ours")
        assert "no taker" in why(db, "ours")
        assert theirs in why(db, "new")["no right"]


@pytest.mark.slow
def test_a_page_of_taken_tasks_reads_no_more_tasks_than_it_has(db: psycopg.Connection) -> None:
    """The takes are sorted, which needs an index that would cost each claim. Their tasks are not read, also where a
    filter lets all of them pass."""
    value(db, "SELECT cardinality(pgqueue.put_many('q', (SELECT jsonb_agg(i) FROM generate_series(1, 20000) i)))")
    value(db, "SELECT count(*) FROM pgqueue.take_many('{q}', 20000)")
    db.execute("VACUUM ANALYZE pgqueue.task, pgqueue.take")
    takes = value(db, "SELECT pg_relation_size('pgqueue.take') / current_setting('block_size')::int")
    for filter in ("", ", older => '0 s'", ", backwards => true, older => '0 s'"):
        query = f"SELECT * FROM pgqueue.find_tasks('q', 'taken', 10{filter})"
        assert len(rows(db, query)) == 10
        assert pages(db, query) < takes + 200
