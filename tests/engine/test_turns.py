"""Puts wake the process that has waited longest, and no wake-up is lost when that process does not take the task.

Each test puts once, or in a fixed order, and does nothing else: a later put would make up for a lost call. There is no
poll to fall back on, and where `no_ticks` is used, no net either: then it is the called process that passes on.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from eventually import PATIENCE, Stopwatch, eventually, in_time
from processes import Program, programs
from statements import column, put, rows, value

import pgqueue
from pgqueue._calls.call import Call
from pgqueue._engine import listener, places
from pgqueue._engine.blocking import Signal
from pgqueue._engine.waiters import Channel

Blocking = Callable[..., pgqueue.Client]
Connect = Callable[..., psycopg.Connection]
NET = 0.6  # seconds within which a tick calls again
WAITED_FOR = set[object]()  # the signals for which a thread waits
LIVING = "SELECT FROM pgqueue.session WHERE label = %s"
LONG = 3 * PATIENCE  # of a take: it looks once more at its end, which would make up for a lost call


class Taker:
    """A client of its own, hence a session of its own, with one take after another."""

    def __init__(self, client: pgqueue.Client, db: psycopg.Connection, threads: ThreadPoolExecutor) -> None:
        self.client, self.db, self.threads = client, db, threads

    @property
    def session(self) -> int:
        return int(self.client.shell.core.listener().session or 0)

    def wait(self, *queues: str, timeout: float = LONG, n: int = 1) -> Future[list[Any]]:
        """Begin to take. Returns once it is in line, or hears every put, and its last look has found nothing.

        The listener may enter the line before that look, which may then find the task that a put calls another one for.
        """
        future = self.threads.submit(lambda: [task.data for task in self.client.take_many(list(queues), n, timeout)])
        eventually(lambda: future.done() or all(self.stands(queue) and self.has_looked(queue) for queue in queues))
        return future

    def has_looked(self, queue: str) -> bool:
        channel = self.channel(queue)
        return channel is not None and all(waiter.woken in WAITED_FOR for waiter in channel.waiters)

    def stands(self, queue: str) -> bool:
        return self.hears(queue) or self.session in line(self.db, queue)

    def hears(self, queue: str) -> bool:
        channel = self.channel(queue)
        return bool(channel and channel.armed and channel.waiters and channel.place.hears)

    def sleeps(self, queue: str) -> bool:
        """And does not look again by itself, as while puts that sent no notification are open."""
        channel = self.channel(queue)
        return bool(channel and channel.drained and channel.waiters and self.has_looked(queue))

    def passes_on(self) -> bool:
        """Whether it has calls that another process is to answer."""
        listener = self.client.shell.core.listener()
        return bool(listener.hub._calls or listener._plans.calls)

    def channel(self, queue: str) -> Channel | None:
        hub = self.client.shell.core.listener().hub
        return hub._channels.get(self.client.shell.core.queue_ids.get(queue, 0))


def line(db: psycopg.Connection, queue: str = "q") -> list[int]:
    """The sessions in line; none while one of them still hears every put, which then calls none.

    The next put begins at the first of them: on a slow machine the connection may remember another place for a while.
    """
    db.execute("RESET pgqueue.line")
    return column(
        db,
        "SELECT l.session_id FROM pgqueue.line l JOIN pgqueue.queue q ON q.id = l.queue_id"
        " WHERE q.name = %s AND NOT EXISTS ("
        "SELECT FROM pg_locks h JOIN pg_database d ON d.oid = h.database WHERE d.datname = current_database()"
        " AND h.classid = pgqueue._hearing_lock() AND h.objid = pgqueue._bucket(q.id) AND h.mode = 'ShareLock')"
        " ORDER BY l.since",
        queue,
    )


@pytest.fixture
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a look at the place in line, which makes up for a lost call where the process turns out to be alone."""
    monkeypatch.setattr(listener, "TICK", 60.0)
    monkeypatch.setattr(places, "CHECK", 60.0)


@pytest.fixture
def waits_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Signal.wait

    def noted(signal: Signal, seconds: float | None = None) -> bool:
        WAITED_FOR.add(signal)
        try:
            return wait(signal, seconds)
        finally:
            WAITED_FOR.discard(signal)

    monkeypatch.setattr(Signal, "wait", noted)


@pytest.fixture
def taker(blocking: Blocking, db: psycopg.Connection, waits_noted: None) -> Iterator[Callable[[], Taker]]:
    put(db, "q")
    db.execute("SELECT pgqueue.pop('q')")
    with ThreadPoolExecutor(64) as threads:
        clients: list[pgqueue.Client] = []

        def make() -> Taker:
            clients.append(blocking(poll=None))
            return Taker(clients[-1], db, threads)

        yield make
        for client in clients:
            client.close()


Make = Callable[[], Taker]


def two(
    taker: Make, queue: str = "q", timeout: float = LONG
) -> tuple[Taker, Taker, Future[list[Any]], Future[list[Any]]]:
    """A and B wait, both in line, A first; A for `timeout` seconds, or longer where that was over before B stood."""
    a, b = taker(), taker()
    first, second = a.wait(queue, timeout=timeout), b.wait(queue)
    eventually(lambda: first.done() or line(a.db, queue) == [a.session, b.session])
    eventually(lambda: first.done() or (a.sleeps(queue) and b.sleeps(queue)))
    if first.done():
        b.client.close()
        assert first.result() == second.result(PATIENCE) == []
        return two(taker, queue, 3 * timeout)
    return a, b, first, second


# --- the order


@pytest.mark.slow
@pytest.mark.usefixtures("no_ticks")
def test_puts_serve_the_processes_in_the_order_in_which_they_began_to_wait(taker: Make, db: psycopg.Connection) -> None:
    futures = [taker().wait("q") for _ in range(5)]
    eventually(lambda: len(line(db)) == 5)
    for number, future in enumerate(futures):
        put(db, "q", str(number))
        assert future.result(PATIENCE) == [str(number)]
        assert not any(other.done() for other in futures[number + 1 :])


@pytest.mark.usefixtures("no_ticks")
def test_a_put_of_two_tasks_wakes_two_processes(taker: Make, db: psycopg.Connection) -> None:
    futures = [taker().wait("q") for _ in range(4)]
    eventually(lambda: len(line(db)) == 4)
    db.execute("SELECT pgqueue.put_many('q', '[1, 2]')")
    assert sorted(futures[0].result(PATIENCE) + futures[1].result(PATIENCE)) == [1, 2]
    assert len(line(db)) == 2
    db.execute("SELECT pgqueue.put_many('q', '[3, 4, 5]')")  # more than are in line
    assert sorted(futures[2].result(PATIENCE) + futures[3].result(PATIENCE)) == [3, 4]


@pytest.mark.usefixtures("no_ticks")
def test_a_process_alone_stands_in_no_line_until_another_comes(taker: Make, db: psycopg.Connection) -> None:
    a = taker()
    first = a.wait("q")
    assert a.hears("q")
    assert line(db) == []
    b = taker()
    second = b.wait("q")
    eventually(lambda: line(db) == [a.session, b.session])
    put(db, "q", "1")
    assert first.result(PATIENCE) == ["1"]
    put(db, "q", "2")
    assert second.result(PATIENCE) == ["2"]


@pytest.mark.usefixtures("no_ticks")
def test_a_process_alone_enters_when_another_waits_on_a_queue_of_the_same_bucket(
    taker: Make, db: psycopg.Connection
) -> None:
    far = value(db, "SELECT max(id) FROM pgqueue.queue") + 1024
    db.execute(f"ALTER TABLE pgqueue.queue ALTER COLUMN id RESTART WITH {far}")
    assert value(db, "SELECT pgqueue._bucket(pgqueue.queue_id('far')) = pgqueue._bucket(pgqueue.queue_id('q'))")
    a, b = taker(), taker()
    first = a.wait("q")
    assert a.hears("q")
    second = b.wait("far")
    eventually(lambda: line(db, "q") == [a.session] and line(db, "far") == [b.session])
    put(db, "far")
    assert second.result(PATIENCE)
    put(db, "q")
    assert first.result(PATIENCE)


@pytest.mark.usefixtures("no_ticks")
def test_a_taker_that_is_called_in_vain_keeps_its_place(taker: Make, db: psycopg.Connection) -> None:
    a, b, first, second = two(taker)
    with db.transaction():
        put(db, "q", "stolen")
        db.execute("SELECT pgqueue.pop('q')")  # A is called, and finds nothing
    eventually(lambda: line(db) == [a.session, b.session])
    db.execute("RESET pgqueue.line")  # where this connection begins to look for live rows
    put(db, "q", "1")
    assert first.result(PATIENCE) == ["1"]
    put(db, "q", "2")
    assert second.result(PATIENCE) == ["2"]


# --- transactions


@pytest.mark.usefixtures("no_ticks")
def test_a_put_that_rolls_back_leaves_the_line_as_it_was(taker: Make, db: psycopg.Connection) -> None:
    a, b, first, second = two(taker)
    with db.transaction(force_rollback=True):
        put(db, "q")
        assert line(db) == [b.session]
    assert line(db) == [a.session, b.session]
    with db.transaction():
        with db.transaction(force_rollback=True):
            put(db, "q")
        put(db, "q", "1")
    assert first.result(PATIENCE) == ["1"]
    assert not second.done()
    put(db, "q")
    assert second.result(PATIENCE)


@pytest.mark.usefixtures("no_ticks")
def test_a_put_in_a_long_transaction_does_not_hold_up_the_next(
    taker: Make, db: psycopg.Connection, connect: Connect
) -> None:
    _, _, first, second = two(taker)
    long = connect(autocommit=False)
    put(long, "q", "late")
    put(db, "q", "early")
    assert second.result(PATIENCE) == ["early"]
    assert not first.done()
    long.commit()
    assert first.result(PATIENCE) == ["late"]


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_put_with_an_old_snapshot_wakes_everyone(
    taker: Make, db: psycopg.Connection, connect: Connect, isolation: str
) -> None:
    old = connect(autocommit=False)
    old.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
    old.execute("SELECT FROM pgqueue.task")
    a, b, first, second = two(taker)
    put(old, "q", "old")
    assert line(db) == [a.session, b.session]
    old.commit()
    eventually(lambda: first.done() or second.done())
    put(db, "q", "new")
    assert sorted(first.result(PATIENCE) + second.result(PATIENCE)) == ["new", "old"]


# --- a called process that takes nothing


@pytest.mark.slow
@pytest.mark.usefixtures("no_ticks")
def test_a_taker_that_left_before_its_call_passes_it_on(taker: Make, db: psycopg.Connection, connect: Connect) -> None:
    a, _, first, second = two(taker, timeout=2)
    long = connect(autocommit=False)
    put(long, "q", "x")  # calls A
    assert first.result(PATIENCE) == []
    eventually(lambda: not a.client.shell.core.listener().hub._channels[1].armed)
    long.commit()
    assert second.result(PATIENCE) == ["x"]


@pytest.mark.usefixtures("no_ticks")
def test_a_taker_that_got_a_task_of_another_queue_passes_its_call_on(
    taker: Make, db: psycopg.Connection, connect: Connect
) -> None:
    put(db, "other")
    db.execute("SELECT pgqueue.pop('other')")
    a, b = taker(), taker()
    first, second = a.wait("q", "other"), b.wait("q")
    eventually(lambda: line(db) == [a.session, b.session])
    long = connect(autocommit=False)
    put(long, "q", "x")  # calls A
    put(db, "other", "y")
    assert first.result(PATIENCE) == ["y"]
    long.commit()
    assert second.result(PATIENCE) == ["x"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_ticks")
def test_a_call_goes_to_the_next_taker_of_the_same_process(
    taker: Make, db: psycopg.Connection, connect: Connect
) -> None:
    a, _, first, second = two(taker, timeout=1.5)
    neighbour = a.threads.submit(lambda: [task.data for task in a.client.take_many(["q"], 1, LONG)])
    long = connect(autocommit=False)
    put(long, "q", "x")
    assert first.result(PATIENCE) == []
    long.commit()
    assert neighbour.result(PATIENCE) == ["x"]
    put(db, "q", "y")
    assert second.result(PATIENCE) == ["y"]


@pytest.mark.usefixtures("no_ticks")
def test_a_client_that_closes_passes_on_what_it_may_have_been_called_for(
    taker: Make, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _, first, second = two(taker)
    monkeypatch.setattr(a.client.shell.core.listener().hub, "called", lambda queue: None)  # the call has come
    put(db, "q", "x")
    a.client.close()
    assert first.result(PATIENCE) == []
    assert second.result(PATIENCE) == ["x"]
    assert line(db) == []


@pytest.mark.slow
@pytest.mark.usefixtures("no_ticks")
def test_a_call_that_cannot_be_passed_on_at_once_is_passed_on_later(
    taker: Make, db: psycopg.Connection, connect: Connect
) -> None:
    """The lock is granted when the put commits, hence before its call arrives."""
    a, _, first, second = two(taker, timeout=2)
    long = connect(autocommit=False)
    put(long, "q", "x")  # calls A
    assert first.result(PATIENCE) == []
    eventually(lambda: not a.client.shell.core.listener().hub._channels[1].armed)
    with connect(autocommit=False) as locker:
        locked = a.threads.submit(locker.execute, "LOCK TABLE pgqueue.queue")
        eventually(lambda: rows(db, "SELECT FROM pg_locks WHERE NOT granted AND pid = %s", locker.info.backend_pid))
        long.commit()
        locked.result(PATIENCE)
        plans = a.client.shell.core.listener()._plans
        eventually(lambda: plans._line.failing_for() > 0)
        assert not second.done()
    assert second.result(PATIENCE) == ["x"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_ticks")
def test_a_client_that_closes_passes_on_a_call_of_which_it_has_not_heard(
    taker: Make, db: psycopg.Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _, first, second = two(taker, timeout=2)
    long = connect(autocommit=False)
    put(long, "q", "x")  # calls A
    assert first.result(PATIENCE) == []
    engine = a.client.shell.core.listener()
    eventually(lambda: not engine.hub._channels[1].armed)
    end = engine._end

    def commit_and_end() -> None:
        long.commit()
        end()

    monkeypatch.setattr(engine, "_end", commit_and_end)
    a.client.close()
    assert second.result(PATIENCE) == ["x"]


@pytest.mark.usefixtures("no_ticks")
def test_a_process_whose_own_sweep_called_another_that_died_looks_for_itself(
    taker: Make, db: psycopg.Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hears every put, but what its own connection makes ready does not see that. B has entered, and A not yet."""
    a = taker()
    first = a.wait("q")
    assert a.hears("q")
    engine, asked = a.client.shell.core.listener(), list[int]()
    come = engine.hub.come
    monkeypatch.setattr(engine.hub, "come", asked.append)
    id = value(db, "SELECT pgqueue.queue_id('q')")
    b = connect()
    b.execute("SELECT pgqueue.open_session(label => 'b')")
    b.execute("SELECT pgqueue.arm(%s, in_turn => true)", [[id]])
    b.execute("SELECT pgqueue.enter_line(%s, '{0}')", [[id]])
    eventually(lambda: asked == [id])
    db.execute("INSERT INTO pgqueue.task (queue_id, data) VALUES (%s, '\"x\"')", [id])  # freed by A's sweep, which
    done = threading.Event()
    engine.ask(Call("SELECT pgqueue._signal(%s, 1)", (id,), lambda rows: None), done)  # calls B
    assert done.wait(PATIENCE)
    assert line(db) == []
    b.close()
    eventually(lambda: not value(db, "SELECT count(*) > 1 FROM pg_locks WHERE classid = pgqueue._waiter_lock()"))
    come(id)
    engine.poke()
    assert first.result(PATIENCE) == ["x"]


# --- several takes, and several queues, in one process


@pytest.mark.usefixtures("no_ticks")
def test_calls_of_two_queues_for_one_take_serve_one_and_the_other_is_passed_on(
    taker: Make, db: psycopg.Connection
) -> None:
    a, b, c = taker(), taker(), taker()
    put(db, "other")
    db.execute("SELECT pgqueue.pop('other')")
    both, of_q, of_other = a.wait("q", "other"), b.wait("q"), c.wait("other")
    eventually(lambda: line(db) == [a.session, b.session] and line(db, "other") == [a.session, c.session])
    with db.transaction():
        put(db, "q", "x")
        put(db, "other", "y")
    assert both.result(PATIENCE) == ["x"]
    assert of_other.result(PATIENCE) == ["y"]
    assert not of_q.done()
    put(db, "q", "z")
    assert of_q.result(PATIENCE) == ["z"]


@pytest.mark.usefixtures("no_ticks")
def test_a_take_of_many_from_two_queues_leaves_the_others_in_their_places(taker: Make, db: psycopg.Connection) -> None:
    a, b, c = taker(), taker(), taker()
    put(db, "other")
    db.execute("SELECT pgqueue.pop('other')")
    both, of_q, of_other = a.wait("q", "other", n=2), b.wait("q"), c.wait("other")
    eventually(lambda: line(db) == [a.session, b.session] and line(db, "other") == [a.session, c.session])
    with db.transaction():
        put(db, "q", "x")
        put(db, "other", "y")
    got = both.result(PATIENCE)
    left = {"x": of_q, "y": of_other}
    if got == ["x", "y"]:
        put(db, "q", "x")
        put(db, "other", "y")
    else:
        put(db, "q" if got == ["x"] else "other", *got)
    assert {data: future.result(PATIENCE) for data, future in left.items()} == {"x": ["x"], "y": ["y"]}


@pytest.mark.slow
@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("goes_on", [True, False])
def test_one_take_is_called_and_another_of_its_process_is_served(
    taker: Make, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    a, b, first, second = two(taker, timeout=LONG if goes_on else 5)
    hub = a.client.shell.core.listener().hub
    called, calls = hub.called, list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(hub, "called", calls.append)
        put(db, "q", "1")
        eventually(lambda: calls)
        assert [task.data for task in a.client.take_many(["q"], 2, 0)] == ["1"]  # fewer than 2: A's waiter sleeps on
        if not goes_on:
            assert first.result(PATIENCE) == []  # its time is over
        put(db, "q", "2")  # calls B
        assert second.result(PATIENCE) == ["2"]
        second = b.wait("q")
    called(calls[0])
    if goes_on:
        eventually(lambda: line(db) == [a.session, b.session])
        put(db, "q", "3")
        assert first.result(PATIENCE) == ["3"]
    put(db, "q", "4")
    assert second.result(PATIENCE) == ["4"]


# --- processes that stop, die and come back: the net


@pytest.fixture
def start(dsn: str) -> Iterator[Callable[..., Program]]:
    with programs() as make:
        yield lambda *arguments: make("waiter", dsn, "q", *arguments)


def stopped_head(
    start: Callable[..., Program], taker: Make, db: psycopg.Connection
) -> tuple[Program, Future[list[Any]]]:
    """A process that is stopped at the head of the line, and a taker behind it."""
    head = start()
    session = head.hear()["session"]
    eventually(lambda: value(db, "SELECT pgqueue._is_awaited(pgqueue.queue_id('q'))"))
    behind = taker()
    second = behind.wait("q")
    eventually(lambda: line(db) == [session, behind.session])
    head.stop()
    return head, second


@pytest.mark.slow
def test_a_process_that_forks_while_its_taker_waits(dsn: str, db: psycopg.Connection) -> None:
    """Parent and child stand in line for themselves, and the death of one takes nothing from the other."""
    put(db, "q")
    db.execute("SELECT pgqueue.pop('q')")
    with programs() as make:
        parent = make("forked_waiter", dsn, "q", 60)
        begun = parent.hear()
        eventually(lambda: value(db, "SELECT pgqueue._is_awaited(pgqueue.queue_id('q'))"))
        parent.tell("fork")
        forked = parent.hear()
        try:
            served = set[int]()
            for number in range(10):
                eventually(lambda: sorted(line(db)) == sorted([begun["session"], forked["session"]]))
                put(db, "q", str(number))
                told = parent.hear()
                assert told["data"] == str(number)
                served.add(told["pid"])
            assert served == {begun["pid"], forked["pid"]}
        finally:
            os.kill(forked["pid"], signal.SIGKILL)
        alive = "SELECT FROM pg_stat_activity a JOIN pgqueue.session s ON s.backend_pid = a.pid WHERE s.id = %s"
        eventually(lambda: rows(db, alive, forked["session"]) == [])
        for number in range(3):
            put(db, "q", str(number))
            assert parent.hear() == {"pid": begun["pid"], "data": str(number)}


@pytest.mark.slow
@pytest.mark.timeout(900)  # with the wait for `undisturbed`
@pytest.mark.usefixtures("undisturbed")
def test_a_stopped_process_at_the_head_of_the_line_costs_two_ticks(
    start: Callable[..., Program], taker: Make, db: psycopg.Connection
) -> None:
    def attempt() -> float:
        head, second = stopped_head(start, taker, db)
        watch = Stopwatch()
        put(db, "q", "x")
        assert second.result(PATIENCE) == ["x"]
        took = watch()
        head.kill()
        eventually(lambda: line(db) == [])
        return took

    in_time(attempt, NET)


@pytest.mark.slow
def test_a_called_process_that_is_killed_costs_two_ticks(
    start: Callable[..., Program], taker: Make, db: psycopg.Connection
) -> None:
    head, second = stopped_head(start, taker, db)
    put(db, "q", "x")
    head.kill()
    assert second.result(PATIENCE) == ["x"]


@pytest.mark.slow
def test_a_process_that_dies_between_a_put_and_its_commit(
    start: Callable[..., Program], taker: Make, db: psycopg.Connection, connect: Connect
) -> None:
    """The put has called it. Meanwhile another taker comes: it is not alone, since a put that only called is open."""
    head = start()
    session = head.hear()["session"]
    for seconds in (3, 10, 30):
        a = taker()
        first = a.wait("q", timeout=seconds)
        eventually(lambda: first.done() or sorted(line(db)) == sorted([session, a.session]))  # noqa: B023
        if not first.done():
            break
    long = connect(autocommit=False)
    with long.cursor():
        called = set(line(db))
        put(long, "q", "x")
    assert len(set(line(long)) & called) == 1
    head.kill()
    eventually(lambda: rows(db, "SELECT FROM pgqueue.session WHERE id = %s", session) == [])
    assert first.result(PATIENCE) == []
    b = taker()
    second = b.wait("q")
    assert not b.hears("q")
    long.commit()
    assert second.result(PATIENCE) == ["x"]


def test_the_net_compares_queues_and_not_tasks(db: psycopg.Connection, connect: Connect) -> None:
    """Under flow the oldest ready task is another one at each tick."""
    waiter = connect()
    session = value(waiter, "SELECT pgqueue.open_session(label => 'w')")
    id = value(db, "SELECT pgqueue.queue_id('q')")
    other = connect()
    for conn in (waiter, other):
        conn.execute("SELECT pgqueue.arm(%s, in_turn => true)", [[id]])
    waiter.execute(f'LISTEN "pgqueue:call:{session}"')
    enter = "SELECT hears FROM pgqueue.enter_line(%s, '{1}', hearing => %s)"
    assert value(waiter, enter, [id], [id]) is False
    waiter.execute("SELECT pgqueue.stop_hearing(%s)", [[id]])
    for number in range(2):
        db.execute("INSERT INTO pgqueue.task (queue_id, data) VALUES (%s, '1')", [id])  # and its call was lost
        if number:
            db.execute("DELETE FROM pgqueue.task WHERE id = (SELECT min(id) FROM pgqueue.task)")
            db.execute("UPDATE pgqueue.unanswered SET seen_at = seen_at - interval '0.2 s'")
        assert line(db) == [session]
        db.execute("SELECT pgqueue._call_again()")
    assert line(db) == []
    eventually(lambda: [note.payload.split()[0] for note in waiter.notifies(timeout=0.1)] == [str(id)])


def test_a_call_without_an_answer_ends_the_line(db: psycopg.Connection, connect: Connect) -> None:
    """All processes of a machine that hangs: to call one at each tick would take as many ticks."""
    waiters = [connect() for _ in range(5)]
    id = value(db, "SELECT pgqueue.queue_id('q')")
    for waiter in waiters:
        value(waiter, "SELECT pgqueue.open_session(label => 'w')")
        waiter.execute("SELECT pgqueue.arm(%s, in_turn => true)", [[id]])
        waiter.execute(f'LISTEN "pgqueue:{id}"')
    for number, waiter in enumerate(waiters):
        hearing = [] if number else [id]
        waiter.execute("SELECT pgqueue.enter_line(%s, '{1}', hearing => %s)", [[id], hearing])
    waiters[0].execute("SELECT pgqueue.stop_hearing(%s)", [[id]])
    db.execute("INSERT INTO pgqueue.task (queue_id, data) VALUES (%s, '1')", [id])  # and its call was lost
    left = []
    for _ in range(4):
        db.execute("SELECT pgqueue._call_again()")
        db.execute("UPDATE pgqueue.unanswered SET seen_at = seen_at - interval '0.2 s'")
        left.append(len(line(db)))
    assert left == [5, 4, 0, 0]
    for waiter in waiters:
        heard: list[str] = []
        eventually(lambda: heard.extend(note.payload for note in waiter.notifies(timeout=0.1)) or heard[-1:] == [""])  # noqa: B023


@pytest.mark.usefixtures("no_ticks")
def test_a_connection_that_is_lost_and_the_client_stands_in_line_again(taker: Make, db: psycopg.Connection) -> None:
    a, b, first, second = two(taker)
    before = a.client.shell.core.listener()._conn
    db.execute("SELECT pg_terminate_backend(backend_pid) FROM pgqueue.session WHERE id = %s", [a.session])
    eventually(lambda: a.client.shell.core.listener()._conn not in (None, before))
    eventually(lambda: a.sleeps("q"))  # else B may get the task, from a tick
    eventually(lambda: line(db) == [a.session, b.session])
    put(db, "q", "1")
    assert first.result(PATIENCE) == ["1"]
    put(db, "q", "2")
    assert second.result(PATIENCE) == ["2"]


@pytest.mark.slow
def test_a_call_that_a_lost_connection_swallowed(taker: Make, db: psycopg.Connection, connect: Connect) -> None:
    a, _, first, second = two(taker, timeout=2)
    long = connect(autocommit=False)
    put(long, "q", "x")
    assert first.result(PATIENCE) == []
    db.execute("SELECT pg_terminate_backend(backend_pid) FROM pgqueue.session WHERE id = %s", [a.session])
    long.commit()
    assert second.result(PATIENCE) == ["x"]


@pytest.mark.usefixtures("no_ticks")
def test_a_reload_keeps_the_place(taker: Make, db: psycopg.Connection) -> None:
    a, b, first, second = two(taker)
    a.client.reload()
    b.client.reload()
    assert line(db) == [a.session, b.session]
    put(db, "q", "1")
    assert first.result(PATIENCE) == ["1"]
    put(db, "q", "2")
    assert second.result(PATIENCE) == ["2"]


@pytest.mark.usefixtures("no_ticks")
def test_what_a_sweep_frees_goes_to_the_first_in_line(taker: Make, db: psycopg.Connection, connect: Connect) -> None:
    victim = connect()
    put(victim, "q", "x")
    victim.execute("SELECT pgqueue.open_session(grace => '0', label => 'victim')")
    assert len(rows(victim, "SELECT * FROM pgqueue.take('q')")) == 1
    _, _, first, second = two(taker)
    victim.close()
    eventually(lambda: rows(db, "SELECT pgqueue.sweep()") and not rows(db, LIVING, "victim"))
    assert first.result(PATIENCE) == ["x"]
    assert not second.done()
    put(db, "q")
    second.result(PATIENCE)


# --- the table


def test_a_put_does_not_wait_for_the_line(taker: Make, db: psycopg.Connection, connect: Connect) -> None:
    _, _, first, second = two(taker)
    with connect(autocommit=False) as locker:
        locker.execute("LOCK TABLE pgqueue.line")
        db.execute(f"SET statement_timeout = '{PATIENCE} s'")  # the lock is held until the put is done
        put(db, "q", "1")
        eventually(lambda: first.done() or second.done())
    put(db, "q", "2")
    assert sorted(first.result(PATIENCE) + second.result(PATIENCE)) == ["1", "2"]


@pytest.mark.usefixtures("no_ticks")
def test_takers_that_cannot_enter_are_woken_and_enter_later(
    taker: Make, db: psycopg.Connection, connect: Connect
) -> None:
    with connect(autocommit=False) as locker, ThreadPoolExecutor(2) as threads:
        locker.execute("LOCK TABLE pgqueue.line")
        clients = [taker() for _ in range(2)]
        futures = [threads.submit(each.client.take, ["q"], LONG) for each in clients]
        armed = "SELECT count(DISTINCT pid) FROM pg_locks WHERE classid = pgqueue._waiter_lock()"
        eventually(lambda: value(db, armed) == 2)
        put(db, "q", "1")
        eventually(lambda: any(future.done() for future in futures))
        locker.rollback()
        eventually(lambda: len(line(db)) == 1 or any(each.hears("q") for each in clients))
        put(db, "q", "2")
        assert all(future.result(PATIENCE) for future in futures)


@pytest.mark.usefixtures("no_ticks")
def test_a_line_that_was_truncated_costs_the_order_only(taker: Make, db: psycopg.Connection) -> None:
    futures = [taker().wait("q") for _ in range(3)]
    eventually(lambda: len(line(db)) == 3)
    db.execute("TRUNCATE pgqueue.line")
    for number in range(3):
        put(db, "q", str(number))
        eventually(lambda: sum(future.done() for future in futures) > number)  # noqa: B023  # at once
    assert sorted(data for future in futures for data in future.result()) == ["0", "1", "2"]


@pytest.mark.slow
def test_many_queues(taker: Make, db: psycopg.Connection) -> None:
    names = [f"q{i}" for i in range(20)]
    for name in names:
        db.execute("SELECT pgqueue.create_queue(%s)", [name])
    a, b = taker(), taker()
    firsts, seconds = [a.wait(name) for name in names], [b.wait(name) for name in names]
    eventually(lambda: all(line(db, name) == [a.session, b.session] for name in names))
    for name in reversed(names):
        put(db, name, name)
    assert [future.result(PATIENCE) for future in firsts] == [[name] for name in names]
    for name in names:
        put(db, name, name)
    assert [future.result(PATIENCE) for future in seconds] == [[name] for name in names]


# --- strangers


@pytest.mark.slow
@pytest.mark.usefixtures("no_ticks")
def test_forged_calls_wake_and_do_no_more(taker: Make, db: psycopg.Connection, stranger: Callable[[], Any]) -> None:
    a, b, first, second = two(taker)
    id = value(db, "SELECT pgqueue.queue_id('q')")
    with a.client.subscribe("over") as a_hears, b.client.subscribe("over") as b_hears, stranger() as conn:
        for number in range(200):
            for text in (f"{id} {number}.5", "garbage", f"{id}", f"{2**31} 1", f"-{id} 1", "9" * 5000):
                conn.execute("SELECT pg_notify(%s, %s)", [f"pgqueue:call:{a.session}", text])
            conn.execute("SELECT pg_notify(%s, 'come')", [f"pgqueue:{id}"])
        b.client.post("over")
        a_hears.get(PATIENCE), b_hears.get(PATIENCE)  # and so all that was sent before
    eventually(lambda: not a.passes_on() and not b.passes_on())
    eventually(lambda: line(db) == [a.session, b.session])
    eventually(lambda: a.sleeps("q") and b.sleeps("q"))
    put(db, "q", "1")
    assert first.result(PATIENCE) == ["1"]
    put(db, "q", "2")
    assert second.result(PATIENCE) == ["2"]
