"""The clock steps: dead workers' tasks come back all the same. A server of the test's own, under libfaketime."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from eventually import Stopwatch, eventually
from statements import state, value

import pgqueue
from pgqueue import migrate
from pgqueue.embedded import EmbeddedServer

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed"),
]


class Clock:
    """The clock of a server: an offset in a file that libfaketime reads at each look."""

    def __init__(self, file: Path, server: EmbeddedServer) -> None:
        self._file = file
        self.server = server

    def step(self, offset: str) -> None:
        """Set the clock to so much from the true time."""
        new = self._file.with_suffix(".new")
        new.write_text(offset)
        new.chmod(0o644)
        new.rename(self._file)


@pytest.fixture
def clock(own_bindir: Path | None) -> Iterator[Clock]:
    root = Path(tempfile.mkdtemp(prefix="pgqueue-clock-"))
    root.chmod(0o755)  # for the account that the server runs as
    environment = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(root / "offset"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    server = EmbeddedServer(root / "server", durable=False, ephemeral=True, bindir=own_bindir, environment=environment)
    clock = Clock(root / "offset", server)
    clock.step("+0")
    server.start()
    try:
        migrate.up(server.dsn())
        yield clock
    finally:
        clock.step("+0")
        server.stop()


def offset(conn: psycopg.Connection) -> float:
    """Hours by which the server's clock is ahead."""
    return round((float(value(conn, "SELECT extract(epoch FROM clock_timestamp())")) - time.time()) / 3600, 1)


@pytest.mark.parametrize("after", ["the start", "it was found missing"])
def test_a_dead_workers_task_comes_back_though_the_clock_stepped_back(clock: Clock, after: str) -> None:
    dsn = clock.server.dsn()
    with psycopg.connect(dsn, autocommit=True) as conn, pgqueue.Client(dsn) as client:
        id = client.queue("q").put("x").id
        grace = "1 s" if after == "the start" else "3 s"
        with psycopg.connect(dsn, autocommit=True) as worker:
            worker.execute("SELECT pgqueue.open_session(label => 'doomed', grace => %s::interval)", [grace])
            worker.execute("SELECT FROM pgqueue.take('q')")
            client.queue("other").take(0)  # its listener sweeps
            if after == "the start":
                clock.step("-1h")
        missing = "SELECT missing_since IS NOT NULL FROM pgqueue.session WHERE label = 'doomed'"
        if after != "the start":
            eventually(lambda: value(conn, missing))
            clock.step("-1h")
        assert offset(conn) == -1.0
        watch = Stopwatch()
        eventually(lambda: state(conn, id) == "ready", within=10)
        assert watch() < 8


def test_a_step_forward_takes_nothing_from_the_living(clock: Clock) -> None:
    dsn = clock.server.dsn()
    with psycopg.connect(dsn, autocommit=True) as conn, pgqueue.Client(dsn) as client:
        queue = client.queue("q")
        queue.put("x")
        task = queue.take(0)
        assert task is not None
        clock.step("+1h")
        assert offset(conn) == 1.0
        for _ in range(3):
            assert value(conn, "SELECT freed FROM pgqueue.sweep()") == 0
        assert task.ack().state == "done"
