"""Locks and elections when processes die, stop, or lose their connection, and when the server crashes."""

from __future__ import annotations

import logging
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eventually import eventually
from locks import TICKETS
from processes import Program
from servers import system_binaries
from statements import row, rows, value

import pgqueue
from pgqueue import migrate
from pgqueue.embedded import EmbeddedServer, reaper

CONTENDERS = 4


def terminate(db: psycopg.Connection, pid: int) -> None:
    assert value(db, "SELECT pg_terminate_backend(%s::int, 5000)", pid)


def figures(what: str, seconds: list[float]) -> str:
    seconds = sorted(seconds)
    middle, last = seconds[len(seconds) // 2], seconds[-1]
    return f"{what}: p50 {middle * 1000:.1f} ms, max {last * 1000:.1f} ms of {len(seconds)}"


# --- kill -9


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["lock", "elect"])
def test_never_two_holders_at_once_under_kill_9(
    dsn: str,
    db: psycopg.Connection,
    size: dict[str, int],
    start: Callable[..., Program],
    record_property: Callable[[str, object], None],
    how: str,
) -> None:
    """Processes die at random moments, mostly in the critical section. Each stay in it ends before the next begins; the
    stay of one that was killed lasts, for this purpose, until the moment of its kill."""
    db.execute("CREATE TABLE guarded (highest bigint NOT NULL); INSERT INTO guarded VALUES (0)")
    db.execute("CREATE TABLE entry (fence bigint, pid int, entered_at timestamptz, left_at timestamptz)")
    refused: list[Any] = []
    ready = threading.Semaphore(0)

    def hear(line: dict[str, Any]) -> None:
        if "ready" in line:
            ready.release()
        else:
            refused.append(line)

    def contender() -> Program:
        program = start("lock_contender", dsn, "section", how, heard=hear)
        assert ready.acquire(timeout=30)
        return program

    def entries() -> int:
        return int(value(db, "SELECT count(*) FROM entry"))

    chance = random.Random(size["kills"])
    killed: dict[int, object] = {}
    contenders = [contender() for _ in range(CONTENDERS)]
    for _ in range(size["kills"]):
        before = entries()
        eventually(lambda before=before: entries() >= before + 2)  # nobody is stuck behind the dead
        threading.Event().wait(chance.uniform(0, 0.1))  # a random moment is the point
        inside = row(db, "SELECT pid FROM entry WHERE left_at IS NULL ORDER BY fence DESC LIMIT 1")
        victim = next((each for each in contenders if inside == (each.pid,)), chance.choice(contenders))
        killed[victim.pid] = value(db, "SELECT clock_timestamp()")
        victim.kill()
        contenders[contenders.index(victim)] = contender()
    before = entries()
    eventually(lambda: entries() >= before + 10)
    assert [process.end() for process in contenders] == [0] * CONTENDERS
    for pid, moment in killed.items():  # only now: what it had sent may have been committed after its death
        left = "UPDATE entry SET left_at = greatest(%s, entered_at) WHERE pid = %s AND left_at IS NULL"
        db.execute(left, [moment, pid])
    overlaps = (
        "SELECT * FROM (SELECT fence, pid, entered_at, left_at, lead(entered_at) OVER (ORDER BY fence) AS next"
        " FROM entry) e WHERE next < left_at OR left_at IS NULL"
    )
    assert rows(db, overlaps) == []
    assert refused == []
    text = f"{size['kills']} kills, {entries()} entries"
    record_property("kills", text)
    print(how, text)


@pytest.mark.slow
def test_how_soon_the_next_one_has_it(
    dsn: str,
    db: psycopg.Connection,
    blocking: Callable[..., pgqueue.Client],
    start: Callable[..., Program],
    record_property: Callable[[str, object], None],
) -> None:
    """After a release, and after kill -9: long before a sweep would find the dead."""
    client = blocking()

    def hand_over(holder: Program, end: Callable[[], object]) -> float:
        assert holder.ask("lock a")["fence"]
        at: list[float] = []

        def enter() -> None:
            with client.lock("a", 30):
                at.append(time.monotonic())

        thread = threading.Thread(target=enter)
        thread.start()
        eventually(lambda: value(db, TICKETS) == 1)
        threading.Event().wait(random.uniform(0, 0.05))  # anywhere between two looks
        began = time.monotonic()
        end()
        thread.join()
        return at[0] - began

    holder = start("lock_holder", dsn)
    released = [hand_over(holder, lambda: holder.ask("release")) for _ in range(30)]
    killed = []
    for _ in range(10):
        victim = start("lock_holder", dsn)
        killed.append(hand_over(victim, victim.kill))
    for what, seconds in (("release to next holder", released), ("kill -9 to next holder", killed)):
        record_property(what, figures(what, seconds))
        print(figures(what, seconds))
    assert sorted(killed)[5] < 0.5


@pytest.mark.slow
def test_waiters_that_die_hold_nobody_up(
    dsn: str, db: psycopg.Connection, blocking: Callable[..., pgqueue.Client], start: Callable[..., Program]
) -> None:
    """The first in line and the one behind it die before the release; their session's grace is still running."""
    client = blocking()
    with client.lock("a"):
        waiters = [start("lock_holder", dsn) for _ in range(3)]
        for n, waiter in enumerate(waiters, 1):
            waiter.tell("lock a")
            eventually(lambda n=n: value(db, TICKETS) == n)
        for waiter in waiters[:2]:
            waiter.kill()
    assert waiters[2].hear()["fence"] > 0


def test_ctrl_c_leaves_the_line(
    dsn: str, db: psycopg.Connection, blocking: Callable[..., pgqueue.Client], start: Callable[..., Program]
) -> None:
    """While its process and its session go on."""
    waiter = start("lock_holder", dsn)
    with blocking().lock("a"):
        for _ in range(5):
            waiter.tell("lock a")
            eventually(lambda: value(db, TICKETS) == 1)
            os.kill(waiter.pid, signal.SIGINT)
            assert waiter.hear() == {"interrupted": True}
            eventually(lambda: value(db, TICKETS) == 0)
    assert waiter.ask("lock a")["fence"]


# --- stopped, terminated


def test_a_stopped_holder_hears_that_it_lost(
    dsn: str, db: psycopg.Connection, blocking: Callable[..., pgqueue.Client], start: Callable[..., Program]
) -> None:
    """As long as its connection stands it keeps the lock; what ends that frees it, though nobody told the holder."""
    holder = start("lock_holder", dsn)
    fence = holder.ask("lock a")["fence"]
    backend = holder.ask("backend")["backend"]
    client = blocking()
    holder.stop()
    assert client.try_lock("a") is None
    terminate(db, backend)
    with client.lock("a", 10) as lock:
        assert lock.fence > fence
        holder.resume()
        answers = [holder.ask("check"), holder.hear()]
        assert {"on_lost": "a"} in answers
        assert any("the connection that held it broke" in answer.get("lost", "") for answer in answers)
        assert "lost" in holder.ask("release")
        lock.check()
    assert holder.ask("try a")["fence"] > fence


def test_a_stopped_leader_hears_that_it_lost(
    dsn: str, db: psycopg.Connection, blocking: Callable[..., pgqueue.Client], start: Callable[..., Program]
) -> None:
    leader = start("lock_holder", dsn)
    leader.tell("elect boss")
    first = next(line["gained"] for line in iter(leader.hear, None) if "gained" in line)
    backend = value(db, "SELECT backend_pid FROM pgqueue.locks")
    with blocking().elect("boss") as heir:
        eventually(lambda: value(db, TICKETS) == 1)
        leader.stop()
        terminate(db, backend)
        heir.wait(30)
        assert heir.fence > first
        leader.resume()
        assert next(line for line in iter(leader.hear, None) if "lost" in line) == {"lost": "leadership"}
        assert leader.ask("leader") == {"leader": False}
        fence = heir.fence
    assert next(line["gained"] for line in iter(leader.hear, None) if "gained" in line) > fence


def test_the_leader_is_killed(
    dsn: str, db: psycopg.Connection, blocking: Callable[..., pgqueue.Client], start: Callable[..., Program]
) -> None:
    with blocking().elect("boss") as heir:
        heir.wait(30)
        leader = start("lock_holder", dsn)
        leader.ask("elect boss")
        eventually(lambda: value(db, TICKETS) == 1)
        fence = heir.fence
        heir.resign()
        assert leader.hear()["gained"] > fence
        leader.kill()
        heir.wait(30)


# --- the server crashes


@pytest.fixture
def crashing(request: pytest.FixtureRequest) -> Iterator[tuple[str, Callable[[], None]]]:
    """A durable server of its own, and what crashes and restarts it."""
    kind, _, bindir = request.config.getoption("--pg").partition(":")
    binaries = Path(bindir) if bindir else system_binaries()[0] if kind == "system" else None
    logging.disable()
    with tempfile.TemporaryDirectory(prefix="pgqueue-test-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        root.chmod(0o711)
        server = EmbeddedServer(root, durable=True, ephemeral=True, bindir=binaries).start()

        def crash() -> None:
            postmaster = reaper.find(root)
            assert postmaster is not None
            os.kill(postmaster.pid, signal.SIGQUIT)
            eventually(lambda: not reaper.is_postgres(postmaster.pid))
            server.start()

        try:
            migrate.up(server.dsn())
            yield server.dsn(), crash
        finally:
            server.stop()
            logging.disable(logging.NOTSET)


@pytest.mark.slow
def test_fences_rise_over_crashes_of_the_server(crashing: tuple[str, Callable[[], None]]) -> None:
    """Locks are lost, waiters and campaigns go on, and no fence is given twice or comes out of order."""
    dsn, crash = crashing
    last = 0
    with pgqueue.Client(dsn) as client, client.elect("boss") as election:
        for _ in range(3):
            election.wait(30)
            lock = client.lock("a", 60).__enter__()
            waited: list[pgqueue.Lock] = []
            waiter = threading.Thread(target=lambda waited=waited: waited.append(client.lock("a", 60).__enter__()))
            waiter.start()
            for _ in range(40):  # more than the sequence logs ahead
                with client.lock("b", 30) as other:
                    assert other.fence > last
                    last = other.fence
            crash()
            eventually(lambda lock=lock: not lock.held)
            waiter.join(60)
            assert waited[0].held
            waited[0].release()
            election.wait(30)
            assert last < waited[0].fence != election.fence > last
            last = max(waited[0].fence, election.fence)
