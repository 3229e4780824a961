"""The listener survives its statements: they fail, and the connection with all that hangs on it lives on. And it waits
for no lock, whatever is locked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from eventually import Stopwatch, eventually
from sampling import sampled
from statements import column, put, rows, state, value
from stepping import die, waiting

import pgqueue
from pgqueue._calls.call import Call, nothing, scalar
from pgqueue._calls.session import undo_take
from pgqueue._engine import listener, retries, ticks

Blocking = Callable[..., pgqueue.Client]
Connect = Callable[..., psycopg.Connection]

OURS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgqueue listener'"
TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'pgqueue'::regnamespace AND relkind = 'r' ORDER BY 1"
DDL = {
    "create index": "CREATE INDEX made ON pgqueue.{} ((1))",
    "alter table": "ALTER TABLE pgqueue.{} ADD COLUMN made int",
}
HELD = 0.4  # seconds for which each table is locked: many ticks, as short as they are here


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks as often as the machine allows."""
    monkeypatch.setattr(listener, "TICK", 0.03)
    monkeypatch.setattr(listener, "CLEANING", 0.06)


def test_the_first_cleaning_of_a_connection_comes_within_an_interval_and_not_at_once(
    blocking: Blocking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that lives for a second does not pay for it, unless chance wants it."""
    made: list[ticks.Tick] = []

    class Noted(ticks.Tick):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(listener, "Tick", Noted)
    before = time.monotonic()
    for _ in range(3):
        with blocking() as client:
            client.queue("q").take(0)
    sweeps, cleanings = made[::2], made[1::2]
    assert [len(sweeps), len(cleanings)] == [3, 3]
    firsts = [tick.at - before for tick in cleanings]
    assert len(set(firsts)) == 3
    assert all(0 < first < listener.CLEANING + 30 for first in firsts)


def test_ticks_that_take_long_are_followed_by_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """But a single one is not: a machine stalled, or the server compiled the functions of a new connection."""
    clock = 100.0
    monkeypatch.setattr(ticks, "time", SimpleNamespace(monotonic=lambda: clock))
    took = [0.2, 0.2, 0.3, 0.01, 60.0, 0.01, 0.3]
    rests = [0.0, 1.0, 1.0, 0.05, 0.05, 0.05, 0.05]
    left = iter(took)

    def work() -> None:
        nonlocal clock
        clock += next(left)

    tick = ticks.Tick(0.25, ticks.Work("a work", work))
    for rest in rests:
        clock = tick.at = max(tick.at, clock)
        tick.run(cast("psycopg.Connection", "conn"), 1)
        assert tick.at - clock == pytest.approx(max(rest, 0.25 * 0.9), abs=0.25 * 0.1)


def test_a_work_with_a_later_first_time_is_done_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr(ticks, "time", SimpleNamespace(monotonic=lambda: clock))
    done: list[tuple[str, float]] = []
    sweep = ticks.Work("a sweep", lambda: done.append(("sweep", clock)))
    promotion = ticks.Work("a promotion", lambda: done.append(("promotion", clock)), first=100.1)
    tick = ticks.Tick(0.25, sweep, promotion)
    for _ in range(2):
        tick.run(cast("psycopg.Connection", "conn"), 1)
        clock = tick.at
    assert done == [("sweep", 100.0), ("sweep", 100.1), ("promotion", 100.1)]
    assert 100.1 + 0.2 <= tick.at <= 100.1 + 0.245


def test_a_new_connection_sweeps_at_once_and_promotes_within_an_interval(
    db: psycopg.Connection, blocking: Callable[..., pgqueue.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    firsts = []

    class Noted(ticks.Work):
        def __init__(self, what: str, do: Callable[[], float | None], first: float = 0.0) -> None:
            firsts.append(first - time.monotonic())
            super().__init__(what, do, first)

    monkeypatch.setattr(listener, "Work", Noted)
    blocking().queue("q").take(0)
    eventually(lambda: len(firsts) == 3)  # a take goes on as soon as there is a session
    sweep, promotion, _cleaning = firsts
    assert sweep < 0 < promotion <= listener.TICK
    eventually(lambda: value(db, "SELECT last_value > 1 FROM pgqueue.last_promotion"))


BLOCKED = f"""
    WITH RECURSIVE blocked AS (
        SELECT wait_event, query, unnest(pg_blocking_pids(pid)) AS by {OURS} AND wait_event_type = 'Lock'
        UNION SELECT wait_event, query, unnest(pg_blocking_pids(by)) FROM blocked
    )
    SELECT wait_event, query FROM blocked WHERE by = %s"""


@contextmanager
def watched(connect: Connect, locker: psycopg.Connection) -> Iterator[list[Any]]:
    """The statements in which listeners waited for the locker's transaction, looked for all the time.

    Other waits are none of the locker's doing. The server itself takes locks for an instant: to extend a file, to
    commit one transaction with notifications after another, to cut off the end of a table after a vacuum."""
    seen: list[Any] = []
    over = threading.Event()
    conn, pid = connect(), locker.info.backend_pid

    def watch() -> None:
        while not over.wait(0.002):
            seen.extend(rows(conn, BLOCKED, pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def dead_session(connect: Connect, db: psycopg.Connection) -> int:
    """A session that has ended with all that one can have: its task, a node, a will, a lock, queues and an exchange.
    Returns the task."""
    dead = connect()
    dead.execute("SELECT pgqueue.open_session(label => 'dead', grace => '0')")
    dead.execute("SELECT pgqueue.put('dead', '1')")
    (id,) = column(dead, "SELECT id FROM pgqueue.take('dead')")
    dead.execute("SELECT pgqueue.create_node('/dead', ephemeral => true), pgqueue.try_lock('dead')")
    dead.execute("SELECT pgqueue.create_queue('its own', exclusive => true, session => pgqueue.own_session())")
    dead.execute("SELECT pgqueue.create_queue('passing', auto_delete => true)")
    dead.execute("SELECT pgqueue.take('passing')")  # its only taker
    dead.execute("SELECT pgqueue.observe(pgqueue.queue_id('dead'))")
    dead.execute("SELECT pgqueue.set_will('', 'wills', '1')")
    die(dead, db)
    return int(id)


class Holder:
    """A client that holds what a lost connection would cost: a task without a grace, a lock, and a leadership."""

    def __init__(self, client: pgqueue.Client) -> None:
        self.client = client
        queue = client.queue("held")
        queue.put("mine")
        task = queue.take(0)
        assert task is not None
        self.task = task
        self.lost: list[Any] = []
        self.lock = client.lock("l", on_lost=self.lost.append)
        self.lock.__enter__()
        self.election = client.elect("e", lost=self.lost.append)
        eventually(lambda: self.election.leader)
        self._session = client.shell.core.listener().session

    def check(self) -> None:
        assert self.lost == []
        assert self.lock.held
        assert self.election.leader
        assert self.client.shell.core.listener().session == self._session
        self.task.touch()


# --- locked tables


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["ACCESS EXCLUSIVE", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("EXCLUSIVE", "SHARE", *DDL))]
)
def test_no_tick_waits_for_a_table_and_nothing_is_lost(
    blocking: Blocking, db: psycopg.Connection, connect: Connect, often: None, mode: str
) -> None:
    """Each of our tables in turn is locked, while there is a dead session to end and a delayed task to promote."""
    holder, bystander = Holder(blocking(session_grace=0)), blocking()
    bystander.queue("held").take(0)
    db.execute("SELECT pgqueue.create_queue('wills'); SELECT pgqueue.set_status('old', '1', '1 ms')")
    locker = connect(autocommit=False)
    with watched(connect, locker) as waits:
        for table in column(db, TABLES):
            id = dead_session(connect, db)
            put(db, "later", delay="0.01 s")
            locker.execute(DDL[mode].format(table) if mode in DDL else f"LOCK TABLE pgqueue.{table} IN {mode} MODE")
            time.sleep(HELD)
            locker.rollback()
            eventually(lambda id=id: state(db, id) == "ready")
            assert not waits, (table, waits)
            holder.check()
            db.execute("SELECT pgqueue.truncate_queue('dead')")
        eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.task WHERE state = 'D'") == 0)
    holder.check()
    assert bystander.queue("held").take(0) is None


@pytest.mark.slow
def test_no_tick_waits_for_vacuum_full(
    blocking: Blocking, db: psycopg.Connection, connect: Connect, often: None
) -> None:
    holder = Holder(blocking(session_grace=0))
    with watched(connect, db) as waits:
        for table in column(db, TABLES):
            db.execute(f"VACUUM FULL pgqueue.{table}")
        assert not waits, waits
    holder.check()


@pytest.mark.slow
def test_takers_go_on_after_a_lock(blocking: Blocking, db: psycopg.Connection, connect: Connect, often: None) -> None:
    queue = blocking().queue("q")
    taken: list[Any] = []
    taker = threading.Thread(target=lambda: taken.append(queue.take(60)))
    taker.start()
    held = "SELECT count(*) FROM pg_locks WHERE classid = pgqueue._waiter_lock()"
    eventually(lambda: value(db, held))
    locker = connect(autocommit=False)
    locker.execute("LOCK TABLE pgqueue.task, pgqueue.take, pgqueue.session IN ACCESS EXCLUSIVE MODE")
    time.sleep(HELD)
    locker.commit()
    put(db, "q", "after")
    taker.join(30)
    assert [task.data for task in taken] == ["after"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "locked",
    sampled(
        [
            "SELECT FROM pgqueue.session FOR UPDATE",
            "SELECT FROM pgqueue.queue FOR UPDATE",
            "SELECT FROM pgqueue.task FOR UPDATE",
            "SELECT FROM pgqueue.take FOR UPDATE",
            "SELECT FROM pgqueue.taker FOR UPDATE",
            "SELECT FROM pgqueue.will FOR UPDATE",
            "SELECT FROM pgqueue.node FOR UPDATE",
            "SELECT FROM pgqueue.lock_holder FOR UPDATE",
            "SELECT FROM pgqueue.observer FOR UPDATE",
            "SELECT FROM pgqueue.payload FOR UPDATE",
            "SELECT FROM pgqueue.counter FOR UPDATE",
            "DELETE FROM pgqueue.status",
            "DELETE FROM pgqueue.result",
            "SELECT pgqueue.close_session()",
            "SELECT pgqueue.rename_queue('limited', 'renamed')",
        ],
        keep=3,
    ),
)
def test_no_tick_waits_for_a_row(
    blocking: Blocking, db: psycopg.Connection, connect: Connect, often: None, locked: str
) -> None:
    holder = Holder(blocking(session_grace=0))
    locker = connect(autocommit=False)
    locker.execute("SELECT pgqueue.open_session(label => 'locker', grace => '0')")
    locker.commit()
    db.execute("SELECT pgqueue.post('c', repeat('x', 9000)), pgqueue.set_status('old', '1', '1 ms')")
    older = connect(autocommit=False)
    older.execute("SELECT pg_current_xact_id()")
    db.execute("SELECT pgqueue.queue_id('limited'), pgqueue.set_limit('limited', concurrency => 1)")
    eventually(lambda: rows(db, "SELECT FROM pgqueue.task_limit WHERE ended IS NOT NULL"))
    with watched(connect, locker) as waits:
        dead_session(connect, db)
        locker.execute(locked)
        older.rollback()  # the change of the limit is over
        time.sleep(2 * HELD)
        locker.rollback()
        eventually(lambda: rows(db, "SELECT FROM pgqueue.session WHERE label = 'dead'") == [])
        eventually(lambda: rows(db, "SELECT FROM pgqueue.task_limit WHERE changing") == [])
        assert not waits, waits
    holder.check()


# --- statements that fail


@contextmanager
def broken(db: psycopg.Connection, name: str, how: str = "RAISE EXCEPTION 'a bug' USING ERRCODE = '53100'") -> Any:
    """A function of pgqueue that fails, as with a full disk."""
    whole, body = rows(
        db, "SELECT pg_get_functiondef(oid), prosrc FROM pg_proc WHERE proname = %s ORDER BY pronargs", name
    )[0]
    db.execute(whole.replace(body, f"\nBEGIN {how}; END ").encode())
    try:
        yield
    finally:
        db.execute(whole.encode())


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sweep", "promote_all", "clean_up"])
def test_a_tick_that_fails_costs_itself_only(
    blocking: Blocking,
    db: psycopg.Connection,
    connect: Connect,
    often: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr(retries, "PAUSE", (0.02, 0.1))
    caplog.set_level(logging.INFO, logger="pgqueue")
    holder = Holder(blocking(session_grace=0))
    backend = value(db, f"SELECT pid {OURS}")
    with broken(db, name):
        eventually(lambda: said(caplog, "failed, and is tried again: a bug"))
        if name != "sweep":
            id = dead_session(connect, db)
            eventually(lambda: state(db, id) == "ready")
        if name != "promote_all":
            late = put(db, "later", delay="0.05 s")
            eventually(lambda: value(db, "SELECT state FROM pgqueue.task WHERE id = %s", late) == "R")
        time.sleep(0.5)
        assert said(caplog, "failed, and is tried again") == 1
    eventually(lambda: said(caplog, "works again"))
    with broken(db, name, "PERFORM 1 / 0"):
        eventually(lambda: said(caplog, "division by zero"))
    holder.check()
    assert column(db, f"SELECT pid {OURS}") == [backend]


@pytest.mark.slow
def test_a_tick_that_fails_pauses_longer_and_longer(blocking: Blocking, db: psycopg.Connection, often: None) -> None:
    db.execute("CREATE SEQUENCE attempt; GRANT ALL ON attempt TO PUBLIC")
    with broken(db, "sweep", "PERFORM nextval('public.attempt'); RAISE EXCEPTION 'a bug'"):
        watch = Stopwatch()
        blocking().queue("q").take(0)
        eventually(lambda: value(db, "SELECT last_value FROM attempt") >= 5)
        assert watch() >= 1.8  # at least half of 0.25, 0.5, 1 and 2 s; without the pauses it takes 0.2 s


@pytest.mark.slow
def test_a_connection_that_is_lost_in_its_first_round_is_not_made_at_once_again(
    blocking: Blocking, db: psycopg.Connection
) -> None:
    db.execute("CREATE SEQUENCE attempt; GRANT ALL ON attempt TO PUBLIC")
    with broken(db, "sweep", "PERFORM nextval('public.attempt'), pg_terminate_backend(pg_backend_pid())"):
        watch = Stopwatch()
        client = blocking()
        client.shell.core.listener()
        eventually(lambda: value(db, "SELECT last_value FROM attempt") >= 8)
        assert watch() >= 1.2  # at least half of 0.02, 0.04 and so on to 1.28 s
    eventually(lambda: client.shell.core.listener().session)


def test_a_job_that_fails_blocks_no_other_and_is_not_dropped(
    blocking: Blocking, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retries, "PAUSE", (0.02, 0.1))
    db.execute("CREATE SEQUENCE first; CREATE SEQUENCE second; GRANT ALL ON first, second TO PUBLIC")
    db.execute("CREATE TABLE divisor AS SELECT 0 AS n; GRANT ALL ON divisor TO PUBLIC")
    works = blocking().shell.core.listener()
    works.later(Call("SELECT 1 / n, nextval('public.first') FROM public.divisor", (), nothing))
    works.later(Call("SELECT nextval('public.second')", (), scalar))
    called = "SELECT is_called FROM {}"
    eventually(lambda: value(db, called.format("second")))
    eventually(lambda: said(caplog, "division by zero"))
    assert not value(db, called.format("first"))
    db.execute("UPDATE divisor SET n = 1")
    eventually(lambda: value(db, called.format("first")))
    assert said(caplog, "division by zero") == 1
    assert value(db, "SELECT last_value FROM first") == 1


def test_a_job_that_fails_for_good_is_given_up_and_said(
    blocking: Blocking, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retries, "PAUSE", (0.02, 0.1))
    monkeypatch.setattr("pgqueue._engine.jobs.GIVE_UP", 0.3)
    blocking().shell.core.listener().later(Call("SELECT 1 / 0", (), nothing))
    eventually(lambda: said(caplog, "is given up (SELECT 1 / 0)"))


def test_a_queue_that_cannot_be_armed_is_not_taken_for_armed(
    blocking: Blocking, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its takers look at each attempt, and once it is armed a put wakes them."""
    monkeypatch.setattr(retries, "PAUSE", (0.02, 0.1))
    client = blocking()
    queue = client.queue("q")
    queue.take(0)
    works = client.shell.core.listener()
    backend = value(db, f"SELECT pid {OURS}")
    taken: list[Any] = []

    def take() -> threading.Thread:
        thread = threading.Thread(target=lambda: taken.append(queue.take(60)))
        thread.start()
        return thread

    with broken(db, "arm"):
        taker = take()
        eventually(lambda: works._plans._retry.failing_for() > 0)
        assert not any(channel.armed for channel in works.hub._channels.values())
        put(db, "q", "while it fails")
        taker.join(30)
    assert [task.data for task in taken] == ["while it fails"]
    taker = take()
    eventually(lambda: any(channel.armed for channel in works.hub._channels.values()))
    put(db, "q", "after")
    taker.join(30)
    assert [task.data for task in taken] == ["while it fails", "after"]
    assert column(db, f"SELECT pid {OURS}") == [backend]
    held = "SELECT count(*) FROM pg_locks WHERE classid = pgqueue._waiter_lock() AND pid = %s"
    eventually(lambda: value(db, held, backend) == 0)


def test_a_failed_arming_keeps_no_lock(connect: Connect, db: psycopg.Connection) -> None:
    """Of two queues the second cannot be armed: the lock of the first would stay, as often as it is tried."""
    blocker, conn = connect(), connect()
    conn.execute("SET lock_timeout = '10ms'")
    blocker.execute("SELECT pg_advisory_lock(pgqueue._waiter_lock(), 2)")
    for _ in range(2):
        with pytest.raises(psycopg.Error, match="takers that wait for queue 2") as caught:
            conn.execute("SELECT pgqueue.arm('{1,2}')")
        assert caught.value.sqlstate == "PQ007"
    assert column(db, "SELECT pid FROM pg_locks WHERE classid = pgqueue._waiter_lock()") == [blocker.info.backend_pid]


def test_a_large_payload_that_cannot_be_fetched_comes_later_and_in_order(
    blocking: Blocking, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PAUSE", (0.02, 0.1))
    client = blocking()
    large = "x" * 9000
    with client.subscribe("c") as heard:
        works = client.shell.core.listener()
        with broken(db, "stored_payload"):
            client.post("c", "first")
            client.post("c", large)
            client.post("c", "last")
            eventually(lambda: works._posts._retry.failing_for() > 0)
        assert [next(heard) for _ in range(3)] == ["first", large, "last"]


def test_a_call_that_a_locked_table_refuses_is_made_again(
    blocking: Blocking, db: psycopg.Connection, connect: Connect
) -> None:
    client = blocking()
    client.queue("q").take(0)
    locker = connect(autocommit=False)
    locker.execute("LOCK TABLE pgqueue.lock_holder IN ACCESS EXCLUSIVE MODE")
    threading.Timer(0.5, locker.rollback).start()
    with client.lock("a", 5) as lock:
        assert lock.held


# --- undone claims


def test_a_claim_that_was_undone_is_refused_also_after_a_reconnect(
    blocking: Blocking, db: psycopg.Connection, connect: Connect
) -> None:
    """A claim that is stalled in the server, and its taker gives up; the listener's connection breaks besides."""
    client = blocking(session_grace=60)
    queue = client.queue("q")
    id = queue.put("x").id
    assert client.queue("other").take(0) is None
    works = client.shell.core.listener()
    session = works.session
    blocker, late = connect(autocommit=False), connect()
    claim = "SELECT FROM pgqueue.take('q', %s, new_token => 7)"
    blocker.execute("SELECT pg_advisory_xact_lock(pgqueue._claiming_lock(), %s)", [session])
    with waiting(late, db, claim, session) as answer:
        works.undo(7)
        eventually(lambda: works._jobs._undone)
        blocker.rollback()
    with pytest.raises(psycopg.DatabaseError, match="was undone"):
        answer.result()
    db.execute(f"SELECT pg_terminate_backend(pid, 5000) {OURS}")
    # The backend is gone, and with it the mark, until the client has noticed and undoes the claim once more.
    eventually(lambda: not value(db, "SELECT pg_try_advisory_xact_lock(pgqueue._token_lock(7))"))
    assert works.session == session
    with pytest.raises(psycopg.DatabaseError, match="was undone"):
        late.execute(claim, [session])
    assert state(db, id) == "ready"
    assert value(db, undo_take(7).sql, 7) is None  # only the client's connection has the mark


def test_tokens_are_forgotten_in_time(
    blocking: Blocking, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue._engine.jobs.MOST", 3)
    works = blocking().shell.core.listener()
    for token in range(10):
        works.undo(token)
    kept = "SELECT count(*) FROM pg_locks WHERE objsubid = 1 AND locktype = 'advisory'"
    eventually(lambda: len(works._jobs._undone) == 3 and value(db, kept) == 3)
    monkeypatch.setattr("pgqueue._engine.jobs.KEEP", 0.1)
    works.undo(11)
    works._jobs._undone[0].until = 0.0
    eventually(lambda: value(db, kept) <= 3)


# --- sessions that others end


def test_a_client_whose_session_was_deleted_notices_and_opens_another(
    blocking: Blocking, db: psycopg.Connection, often: None
) -> None:
    client = blocking()
    queue = client.queue("q")
    queue.put("x")
    assert queue.take(0)
    lost: list[Any] = []
    lock = client.lock("l", on_lost=lost.append)
    lock.__enter__()
    works = client.shell.core.listener()
    before = works.session
    db.execute("DELETE FROM pgqueue.session")
    eventually(lambda: works.session not in (None, before))
    assert lost == [lock]
    eventually(lambda: column(db, "SELECT state FROM pgqueue.tasks") == ["ready"])
    assert queue.take(30)
