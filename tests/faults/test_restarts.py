"""Restarts of the server under load: producers and takers go on by themselves, and nothing that was put is lost.

A server of the test's own, durable, since the point is what survives: fast (SIGINT, as `pg_ctl -m fast`: the UNLOGGED
takes survive) and immediate (SIGQUIT, as `pg_ctl -m immediate`: a crash, which empties them).
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from eventually import eventually
from processes import Program
from statements import column, value

import pgqueue
from pgqueue import migrate
from pgqueue.embedded import EmbeddedServer, reaper

MODES = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
PRODUCERS, TAKERS, ROUNDS = 2, 2, 2
GOES_ON = 10.0  # seconds after a restart within which everybody is at work again

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("mode", list(MODES))]


class Restartable:
    """A durable server with our schema, and with a table for the takers' log."""

    def __init__(self, root: Path, bindir: Path | None) -> None:
        self._root = root
        self._server = EmbeddedServer(root, durable=True, ephemeral=True, bindir=bindir).start()
        self.dsn = self._server.dsn()
        migrate.up(self.dsn)
        with self.connect() as conn:
            conn.execute("CREATE TABLE acked (task_id bigint NOT NULL, pid int NOT NULL)")

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.dsn, autocommit=True)

    def restart(self, mode: str) -> None:
        postmaster = reaper.find(self._root)
        assert postmaster is not None
        os.kill(postmaster.pid, MODES[mode])
        eventually(lambda: not reaper.is_postgres(postmaster.pid))
        self._server.start()

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture
def server(own_bindir: Path | None) -> Iterator[Restartable]:
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # it tells of each broken connection
    root = Path(tempfile.mkdtemp(prefix="pgqueue-restart-"))
    root.chmod(0o711)  # for the account that the server runs as
    server = Restartable(root, own_bindir)
    try:
        yield server
    finally:
        server.stop()
        logging.getLogger("psycopg.pool").setLevel(logging.NOTSET)


class Producer:
    """Puts one task after the other; keeps what was acknowledged, and what it saw of the restarts."""

    def __init__(self, client: pgqueue.Client) -> None:
        self._queue = client.queue("q")
        self.ids: list[int] = []
        self.seen: list[type[BaseException]] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.001):
            try:
                self.ids.append(self._queue.put("x").id)
            except Exception as error:  # every kind: the test says which is right
                self.seen.append(type(error))


def test_everybody_goes_on_and_nothing_is_lost(server: Restartable, start: Callable[..., Program], mode: str) -> None:
    told: list[dict[str, object]] = []
    takers = [start("taker", server.dsn, "q", 5, heard=told.append) for _ in range(TAKERS)]
    eventually(lambda: len(told) == TAKERS)  # they are at work
    with pgqueue.Client(server.dsn, connect_timeout=60) as client, ThreadPoolExecutor(PRODUCERS) as threads:
        producers = [Producer(client) for _ in range(PRODUCERS)]
        try:
            running = [threads.submit(producer.run) for producer in producers]
            eventually(lambda: acked(server) > 100)
            for _ in range(ROUNDS):
                server.restart(mode)
                handled, put = acked(server), [len(producer.ids) for producer in producers]
                eventually(lambda put=put: all(len(p.ids) > n for p, n in zip(producers, put, strict=True)), GOES_ON)
                eventually(lambda handled=handled: acked(server) > handled, GOES_ON)
        finally:
            for producer in producers:
                producer.stopping.set()
        assert [future.result() for future in running] == [None] * PRODUCERS
        while left := client.queue("q").stats()["total"]:  # the producers may be far ahead
            eventually(lambda left=left: client.queue("q").stats()["total"] < left, 6 * GOES_ON)
    assert [taker.end() for taker in takers] == [0] * TAKERS
    assert {kind for producer in producers for kind in producer.seen} <= {pgqueue.ConnectionLost}
    with server.connect() as conn:
        log = column(conn, "SELECT task_id FROM acked")
    assert len(log) == len(set(log))
    assert {id for producer in producers for id in producer.ids} <= set(log)
    assert mode == "immediate" or not any("refused" in line for line in told)


def acked(server: Restartable) -> int:
    with server.connect() as conn:
        return int(value(conn, "SELECT count(*) FROM acked"))


def test_what_becomes_of_takes(server: Restartable, mode: str) -> None:
    """A clean restart keeps them and they can be acked; after a crash the tasks are ready, and the fence decides."""
    with pgqueue.Client(server.dsn, poll=None) as client:
        queue = client.queue("q")
        queue.put_many(range(3))
        tasks = queue.take_many(3)
        server.restart(mode)
        with server.connect() as conn:
            eventually(
                lambda: value(conn, "SELECT count(*) FROM pgqueue.sessions WHERE missing_since IS NULL") == 1, 10
            )
            eventually(lambda: value(conn, "SELECT epoch = pg_postmaster_start_time() FROM pgqueue.session"))
        if mode == "fast":
            assert queue.stats()["taken"] == 3
            queue.ack_many(tasks)
            assert queue.stats()["total"] == 0
        else:
            assert queue.stats()["ready"] == 3
            with pytest.raises(pgqueue.TaskNotTaken):
                tasks[0].ack()
            assert [task.id for task in queue.take_many(3)] == [task.id for task in tasks]


def test_a_waiting_take_outlives_the_restart(server: Restartable, mode: str) -> None:
    with pgqueue.Client(server.dsn, poll=None) as client, ThreadPoolExecutor(1) as thread:
        listener = client.shell.core.listener()
        taken = thread.submit(client.queue("q").take, 30)
        eventually(lambda: listener.session)
        server.restart(mode)
        with pgqueue.Client(server.dsn) as other:
            other.queue("q").put("after")
        task = taken.result()
        assert task is not None
        assert task.data == "after"


def test_statistics_are_exact_after_it(server: Restartable, mode: str) -> None:
    """A crash empties the counters: tasks are counted anew, and what the verbs were called for begins at zero."""
    with server.connect() as conn:
        conn.execute("SELECT pgqueue.put_many('q', '[1, 2, 3]'), pgqueue.put('q', '1', delay => '1 h')")
        conn.execute("SELECT pgqueue._fold_deltas(at_once => true)")
        conn.execute("SELECT pgqueue.put('q', '1')")
        conn.execute("CHECKPOINT")
    server.restart(mode)
    stats = "SELECT total, ready, delayed, calls -> 'put' FROM pgqueue.stats"
    with server.connect() as conn:
        assert value(conn, "SELECT pgqueue._is_counted()") is (mode == "fast")
        calls = 5 if mode == "fast" else 0
        assert conn.execute(stats).fetchall() == [(5, 4, 1, calls)]
        with pgqueue.Client(server.dsn, poll=None) as client:
            assert client.queue("q").take(0) is not None
            eventually(lambda: value(conn, "SELECT pgqueue._is_counted()"))
        assert conn.execute(stats).fetchall() == [(5, 4, 1, calls)]
