"""Clients share their ticks: however many there are, the work is done as often as by one; and whichever of them die,
stop, hang or cheat, it is done in time."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import psycopg
import pytest
from eventually import Stopwatch, eventually, in_time
from processes import Program
from statements import column, put, rows, state, value
from stepping import die

import pgqueue
from pgqueue._calls.take import next_due
from pgqueue._engine import listener, ticks, uses

Blocking = Callable[..., pgqueue.Client]
Connect = Callable[..., psycopg.Connection]

STAMPS = ("last_sweep", "last_promotion", "last_cleaning")


def dead_task(connect: Connect, db: psycopg.Connection) -> int:
    """A task whose taker has just died, without a grace."""
    taker = connect()
    taker.execute("SELECT pgqueue.open_session(label => 'dead', grace => '0')")
    put(db, "q")
    (id,) = column(taker, "SELECT id FROM pgqueue.take('q')")
    die(taker, db)
    return int(id)


def comes_back(connect: Connect, db: psycopg.Connection) -> float:
    """Seconds until the task of a dead taker and a delayed task are ready."""
    late = put(db, "q", delay="0.001 s")
    id = dead_task(connect, db)
    watch = Stopwatch()
    moved = "SELECT state = 'R' FROM pgqueue.task WHERE id = %s"
    eventually(lambda: state(db, id) == "ready" and value(db, moved, late))
    took = watch()
    db.execute("SELECT pgqueue.truncate_queue('q')")
    return took


@contextmanager
def counted(db: psycopg.Connection, name: str) -> Iterator[Callable[[], int]]:
    """Count the calls of a function of pgqueue."""
    db.execute("CREATE SEQUENCE calls; GRANT ALL ON calls TO PUBLIC")
    whole, body = rows(db, "SELECT pg_get_functiondef(oid), prosrc FROM pg_proc WHERE proname = %s", name)[0]
    begin = body.index("BEGIN") + len("BEGIN")
    wrapped = body[:begin] + " PERFORM nextval('public.calls');" + body[begin:]
    db.execute(whole.replace(body, wrapped).encode())
    yield lambda: value(db, "SELECT last_value - (NOT is_called)::int FROM public.calls")
    db.execute(whole.encode())


def settle(db: psycopg.Connection, clients: int) -> None:
    """Wait until a sweep has counted so many clients."""
    eventually(lambda: value(db, "SELECT last_value FROM pgqueue.clients") == clients)


# --- the work is shared


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sweep", "promote_all"])
def test_many_clients_work_as_often_as_one(blocking: Blocking, db: psycopg.Connection, name: str) -> None:
    for _ in range(16):
        blocking().shell.core.listener()
    settle(db, 16)
    with counted(db, name) as calls:
        before, watch = calls(), Stopwatch()
        eventually(lambda: watch() >= 4 and calls() - before > 4)
        a_second = (calls() - before) / watch()
    assert a_second < 16  # one client: 4.4; 16 clients, each for itself: 71


@pytest.mark.slow
def test_a_client_that_is_alone_does_not_ask(blocking: Blocking, db: psycopg.Connection) -> None:
    blocking().shell.core.listener()
    eventually(lambda: value(db, "SELECT last_value > 1 FROM pgqueue.last_sweep"))  # until then it asks
    with counted(db, "tick_ages") as calls:
        time.sleep(1)
        assert calls() <= 1  # it may have been on its way
        blocking().shell.core.listener()
        eventually(lambda: calls() > 2)


@pytest.mark.parametrize("clients", [1, 4, 10, 100, 1000])
def test_the_random_part_grows_with_the_clients_and_has_a_limit(clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(part: float) -> float:
        monkeypatch.setattr(random, "uniform", lambda low, high: low + part * (high - low))
        tick = ticks.Tick(0.25)
        tick.done_before(0.0, clients, now := time.monotonic())
        return tick.at - now

    assert wait(0.0) == pytest.approx(0.25, abs=0.01)
    longest = {1: 0.3, 4: 0.35, 10: 0.5, 100: 4.75, 1000: 6.25}[clients]
    assert wait(1.0) == pytest.approx(longest, abs=0.01)


def by_hand(monkeypatch: pytest.MonkeyPatch) -> tuple[ticks.Tick, Callable[[float | None], None]]:
    """A tick of 100 clients, and a function that says how old the last stamp is, when it is due, and does it then."""
    clock, conn = 0.0, cast("psycopg.Connection", "conn")
    monkeypatch.setattr(ticks, "time", SimpleNamespace(monotonic=lambda: clock))
    tick = ticks.Tick(1.0, ticks.Work("the work", lambda: None))

    def go_on(age: float | None) -> None:
        nonlocal clock
        clock = max(clock, tick.at)
        tick.done_before(age, 100, clock)
        tick.run(conn, 100)

    return tick, go_on


def test_a_client_ticks_for_a_turn_a_little_before_the_others_would(monkeypatch: pytest.MonkeyPatch) -> None:
    tick, go_on = by_hand(monkeypatch)
    last, pauses = 0.0, []
    for _ in range(ticks.TURN):
        go_on(None)
        pauses.append(tick.at - last)
        last = tick.at
    assert all(0.8 <= pause <= 0.98 for pause in pauses[:-1])
    assert pauses[-1] > 0.98  # the turn is over


@pytest.mark.parametrize("age", [0.1, 0.5])
def test_a_client_gives_up_its_turn_if_another_has_ticked_since(monkeypatch: pytest.MonkeyPatch, age: float) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    tick, go_on = by_hand(monkeypatch)
    go_on(None)
    assert tick.at == pytest.approx(0.98)
    go_on(0.99)  # its own stamp
    assert tick.at == pytest.approx(2 * 0.98)
    go_on(age)
    assert tick.at == pytest.approx(2 * 0.98 + 1 - age + 18)


# --- no client stops the others


@pytest.mark.slow
def test_any_clients_may_stop_die_or_lose_their_connection(
    dsn: str, db: psycopg.Connection, connect: Connect, start: Callable[..., Program]
) -> None:
    """Whichever client is left does the work, and soon."""
    programs = [start("holder", dsn, f"other{n}", 0) for n in range(3)]
    for n, program in enumerate(programs):
        put(db, f"other{n}")
        program.ask("take 1")
    settle(db, 3)
    for left in programs:
        others = [program for program in programs if program is not left]
        for program in others:
            program.stop()
        in_time(lambda: comes_back(connect, db), within=0.5)
        for program in others:
            program.resume()
    programs.pop().kill()
    in_time(lambda: comes_back(connect, db), within=0.5)
    backends = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgqueue listener'"
    db.execute(f"SELECT pg_terminate_backend(pid) {backends}")
    in_time(lambda: comes_back(connect, db), within=0.5)


@pytest.mark.slow
def test_a_backend_that_hangs_stops_no_other_client(
    blocking: Blocking, db: psycopg.Connection, connect: Connect
) -> None:
    """Each listener's backend in turn is stopped between two statements."""
    for _ in range(2):
        blocking().shell.core.listener()
    settle(db, 2)
    quiet = """SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'
                  AND application_name = 'pgqueue listener' ORDER BY pid"""
    eventually(lambda: len(column(db, quiet)) == 2)
    for pid in column(db, quiet):
        busy = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND state <> 'idle'"
        os.kill(pid, signal.SIGSTOP)
        while value(db, busy, pid):  # in the midst of a tick, where it may hold a lock of PostgreSQL's own
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
            os.kill(pid, signal.SIGSTOP)
        try:
            in_time(lambda: comes_back(connect, db), within=0.5)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_sweep_that_is_rolled_back_again_and_again_keeps_nothing_from_others(
    blocking: Blocking, db: psycopg.Connection, connect: Connect
) -> None:
    """A stamp is not rolled back with its transaction, so a transaction that has written leaves none."""
    blocking().shell.core.listener()
    blocking().shell.core.listener()
    settle(db, 2)
    over = threading.Event()
    conn = connect(autocommit=False)

    def cheat() -> None:
        while not over.wait(0.02):
            conn.execute("SELECT pgqueue.sweep(), pgqueue.promote_all(), pgqueue.clean_up()")
            conn.rollback()

    cheater = threading.Thread(target=cheat)
    cheater.start()
    try:
        in_time(lambda: comes_back(connect, db), within=1.0)  # the cheater's locks are in the way as well
    finally:
        over.set()
        cheater.join()


def test_a_client_learns_that_its_session_is_gone_though_others_tick(
    blocking: Blocking, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "TICK", 0.05)
    works = [blocking().shell.core.listener() for _ in range(6)]
    settle(db, 6)
    before = [each.session for each in works]
    db.execute("DELETE FROM pgqueue.session")
    eventually(lambda: not {each.session for each in works} & {None, *before})


# --- stamps


def stamps(db: psycopg.Connection) -> dict[str, int]:
    return {name: value(db, f"SELECT last_value FROM pgqueue.{name}") for name in STAMPS}


def known(db: psycopg.Connection) -> tuple[bool, bool]:
    """Whether the last tick, and the last cleaning, is known, and was just now."""
    ages = rows(db, "SELECT tick, cleaning FROM pgqueue.tick_ages()")[0]
    return ages[0] is not None and 0 <= ages[0] < 60, ages[1] is not None and 0 <= ages[1] < 60


def tick(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.sweep()")
    db.execute("SELECT pgqueue.promote_all()")
    db.execute("SELECT pgqueue.clean_up()")


def test_work_that_found_nothing_to_do_stamps(db: psycopg.Connection) -> None:
    assert known(db) == (False, False)
    for _ in range(3):  # the first one folds, and takes a sample
        tick(db)
    assert known(db) == (True, True)


def test_work_that_wrote_something_does_not_stamp(db: psycopg.Connection, connect: Connect) -> None:
    for _ in range(3):
        tick(db)
    dead_task(connect, db)
    put(db, "q", delay="0.001 s")
    before = stamps(db)
    db.execute("SELECT pgqueue.sweep()")
    eventually(lambda: value(db, "SELECT pgqueue.promote_all()") == 1)
    after = stamps(db)
    assert after["last_sweep"] == before["last_sweep"]
    db.execute("SELECT pgqueue.sweep()")
    assert stamps(db)["last_sweep"] > before["last_sweep"]


def test_a_transaction_that_has_written_or_has_an_old_snapshot_does_not_stamp(
    db: psycopg.Connection, connect: Connect
) -> None:
    for _ in range(3):
        tick(db)
    before = stamps(db)
    conn = connect(autocommit=False)
    put(conn, "q")
    tick(conn)
    conn.rollback()
    conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    conn.execute("SELECT pgqueue.promote_all()")
    conn.rollback()
    assert stamps(db) == before


def test_work_that_is_left_out_does_not_stamp(db: psycopg.Connection, connect: Connect) -> None:
    for _ in range(3):
        tick(db)
    before = stamps(db)
    locker = connect(autocommit=False)
    locker.execute("LOCK TABLE pgqueue.session, pgqueue.sample IN ACCESS EXCLUSIVE MODE")
    tick(db)
    assert stamps(db) == before
    assert rows(db, "SELECT alive FROM pgqueue.tick_ages()") == [(True,)]


def test_a_sweep_that_is_soon_to_be_repeated_does_not_stamp(db: psycopg.Connection, connect: Connect) -> None:
    doomed = connect()
    doomed.execute("SELECT pgqueue.open_session(label => 'doomed', grace => '0.2 s')")
    die(doomed, db)
    db.execute("SELECT pgqueue.sweep()")  # it writes since when the session is missing
    before = stamps(db)["last_sweep"]
    assert 0 < (value(db, "SELECT again FROM pgqueue.sweep()") or 0.1) <= 0.2
    assert stamps(db)["last_sweep"] == before


def test_a_stamp_in_the_future_counts_as_none(db: psycopg.Connection) -> None:
    for _ in range(3):
        tick(db)
    for name in STAMPS:
        db.execute(f"SELECT setval('pgqueue.{name}', {time.time() + 3600:.0f}000000)")
    assert known(db) == (False, False)


@pytest.mark.slow
def test_queues_are_told_to_be_used_only_where_one_may_expire(
    blocking: Blocking, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[list[str]]()
    monkeypatch.setattr(uses, "NOTE", 0.02)
    monkeypatch.setattr(uses, "next_due", lambda names: told.append(names) or next_due(names))
    clients = [blocking(poll=None) for _ in range(2)]
    threads = [threading.Thread(target=client.queue("q").take, args=(60,)) for client in clients]
    for thread in threads:
        thread.start()
    listeners = [client.shell.core.listener() for client in clients]
    eventually(
        lambda: all(one.hub.awaited() == {"q"} and one._ticks.clients > 1 and not one._expiring for one in listeners)
    )
    told.clear()
    turns = [one.uses.at for one in listeners]
    eventually(lambda: all(one.uses.at > at + 1 for one, at in zip(listeners, turns, strict=True)))
    assert told == []
    db.execute("SELECT pgqueue.create_queue('brief', expires => '1 min')")
    eventually(lambda: len(told) > 2)
    assert told[0] == ["q"]
    db.execute("SELECT pgqueue.put('q', '1'), pgqueue.put('q', '2')")
    for thread in threads:
        thread.join()
