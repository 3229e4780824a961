"""What each kind of process does while the server is away, and what it costs: one policy of pauses and warnings."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import psycopg
import psycopg_pool
import pytest
from commands import started
from eventually import eventually
from processes import FORKS_WITH_THREADS, PROGRAMS, Program
from proxies import Proxy, proxy
from statements import rows

import pgqueue
from pgqueue import embedded, migrate
from pgqueue._calls import session
from pgqueue._engine import door
from pgqueue._engine import dsn as resolving
from pgqueue._engine.bounded import BoundedConnection
from pgqueue._engine.dsn import schema_fault

pytestmark = pytest.mark.once

KINDS = ["worker", "taker", "subscriber", "scheduler", "caller"]
SECONDS = 20.0
APP = """
import pgqueue

client = pgqueue.Client()

@client.handler("q")
def f(data): pass
"""


class Endurer:
    """A process, and the way through which it alone reaches the server."""

    def __init__(self, kind: str, start: Any, network: Proxy) -> None:
        self.kind, self.network = kind, network
        self.program: Program = start("endurer", network.dsn, kind)

    def counted(self) -> tuple[int, int, float]:
        """Attempts to connect, warnings, and seconds of CPU."""
        told = self.program.ask("")
        return self.network.attempts, len(told["warnings"]), told["cpu"]


@pytest.mark.slow
def test_twenty_seconds_without_a_server(dsn, start):
    with contextlib.ExitStack() as stack:
        endurers = [Endurer(kind, start, stack.enter_context(proxy(dsn))) for kind in KINDS]
        for one in endurers:
            eventually(lambda one=one: one.network.attempts >= 2)
        before = [one.counted() for one in endurers]
        with contextlib.ExitStack() as outage:
            for one in endurers:
                outage.enter_context(one.network.away())
            time.sleep(SECONDS)
            after = [one.counted() for one in endurers]
    for one, old, new in zip(endurers, before, after, strict=True):
        attempts, warnings, cpu = (b - a for a, b in zip(old, new, strict=True))
        print(f"{one.kind}: {attempts} attempts, {warnings} warnings, {cpu:.2f} s of CPU")
        assert attempts <= 3 * 5 * SECONDS, one.kind  # of a listener and two pools, which try for half a second twice
        assert warnings <= 1, one.kind
        assert cpu < SECONDS / 20, one.kind


@pytest.mark.slow
def test_pokes_do_not_shorten_the_pauses_and_a_kept_call_does_not_pile_up(dsn):
    with proxy(dsn) as network, pgqueue.Client(network.dsn) as client:
        listener = client.shell.core.listener()
        eventually(lambda: listener.session)
        kept = listener.keep(session.tick_ages())
        listener.on_lost.append(listener.poke)  # what answers to each loss by a poke
        with network.away():
            eventually(lambda: listener.session is None)
            before, until = network.attempts, time.monotonic() + 2
            while time.monotonic() < until:
                listener.poke()
                time.sleep(0.001)
            assert network.attempts - before <= 15
        eventually(lambda: kept.done)
        assert listener._jobs._kept == [kept]
        kept.drop()


def test_a_connection_lost_in_the_first_check_is_no_fault_of_the_schema(dsn, monkeypatch):
    """The first two checks lose their connection; the third succeeds."""
    lost = iter([True, True, False, False])

    def cut(conn):
        if next(lost):
            os.dup2(os.open(os.devnull, os.O_RDWR), conn.fileno())
        return whole(conn)

    whole = door.schema_fault
    monkeypatch.setattr(door, "schema_fault", cut)
    with pgqueue.Client(dsn) as client:
        assert client.queue("q").put(1).state == "ready"
    assert next(lost) is False


def test_a_connection_lost_while_it_looks_at_the_embedded_server_is_no_reason_to_migrate(dsn, monkeypatch):
    def cut(conn):
        os.dup2(os.open(os.devnull, os.O_RDWR), conn.fileno())
        return whole(conn)

    migrated: list[str] = []
    whole = resolving.schema_fault
    monkeypatch.setattr(resolving, "schema_fault", cut)
    monkeypatch.setattr(embedded, "default_server", lambda: SimpleNamespace(dsn=lambda: dsn))
    monkeypatch.setattr(migrate, "up", migrated.append)
    for name in ("PGQUEUE_DSN", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(pgqueue.ConnectionLost):
        resolving.resolve(None)
    assert migrated == []


def test_a_lost_connection_is_told_as_such(dsn):
    conn = psycopg.connect(dsn, autocommit=True)
    os.dup2(os.open(os.devnull, os.O_RDWR), conn.fileno())
    assert isinstance(schema_fault(conn), pgqueue.ConnectionLost)
    conn.close()


@pytest.mark.slow
def test_interrupts_while_calls_wait_for_a_connection_cost_none(dsn, db, monkeypatch):
    waits: list[float] = []

    def interrupted(self, timeout, wait=psycopg_pool.pool.WaitingClient.wait):
        waits.append(timeout)
        signal.raise_signal(signal.SIGINT)  # the main thread handles it, which waits for this call
        return wait(self, timeout)

    with pgqueue.Client(dsn, pool_size=2, share_commits=False) as client, ThreadPoolExecutor() as threads:
        queue = client.queue("q")
        queue.put(0)
        with db.transaction():
            db.execute("LOCK TABLE pgqueue.task")
            puts = [threads.submit(queue.put, n) for n in (1, 2)]  # which have both connections
            eventually(lambda: len(rows(db, "SELECT FROM pg_locks WHERE NOT granted")) == 2)
            with monkeypatch.context() as patch:
                patch.setattr(psycopg_pool.pool.WaitingClient, "wait", interrupted)
                for _ in range(3):
                    with pytest.raises(KeyboardInterrupt):
                        queue.put(3)
        assert len(waits) == 3
        assert [put.result(30).state for put in puts] == ["ready"] * 2
        puts = [threads.submit(queue.put, n) for n in range(8)]
        assert [put.result(30).state for put in puts] == ["ready"] * 8


@pytest.mark.slow
def test_attempts_that_time_out_leave_no_socket():
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        before = len(os.listdir("/proc/self/fd"))
        gc.disable()
        try:
            for _ in range(2):
                with pytest.raises(psycopg.OperationalError):
                    BoundedConnection.connect(f"host=127.0.0.1 port={silent.getsockname()[1]} connect_timeout=1")
            assert len(os.listdir("/proc/self/fd")) == before
        finally:
            gc.enable()


@pytest.mark.parametrize("forks", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_a_forked_child_keeps_no_connection_that_a_thread_was_using_or_opening(dsn, forks):
    program = [sys.executable, "-W", FORKS_WITH_THREADS, PROGRAMS / "forking_busily.py", dsn, str(forks)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [0] * forks


@pytest.mark.slow
def test_a_worker_ends_within_its_grace_while_the_server_is_away(dsn, tmp_path):
    with proxy(dsn) as network:
        (tmp_path / "app.py").write_text(APP)
        settings = {"PGQUEUE_DSN": network.dsn}
        with started("worker", "app:client", "--grace", "2", settings=settings, cwd=tmp_path) as process:
            eventually(lambda: network.attempts >= 3)
            with network.away():
                met = network.attempts
                eventually(lambda: network.attempts > met + 2)
                process.terminate()
                began = time.monotonic()
                process.wait(30)
            assert time.monotonic() - began < 5
