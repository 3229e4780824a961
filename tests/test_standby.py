"""A standby: PostgreSQL refuses changes there, and has none of the UNLOGGED tables. A server of the test's own."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from eventually import eventually
from servers import Server, _system_binaries

import pgqueue
from pgqueue import ServerError, migrate
from pgqueue.embedded import EmbeddedServer, reaper
from pgqueue.errors import NotRunning

pytestmark = pytest.mark.slow


@pytest.fixture
def standby(pg_server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of a server that was stopped in order, with a task in it, and began anew as a standby of nobody."""
    bindir = None
    if pg_server.kind == "system":
        _, _, given = request.config.getoption("--pg").partition(":")
        bindir = Path(given) if given else _system_binaries()[0]
    elif pg_server.kind != "embedded":
        pytest.skip(f"a server of kind {pg_server.kind} is not ours to restart")
    root = Path(tempfile.mkdtemp(prefix="pgqueue-standby-"))
    root.chmod(0o711)  # for the account that the server runs as
    settings = {"wal_level": "replica"}
    server = EmbeddedServer(root, durable=False, ephemeral=True, settings=settings, bindir=bindir).start()
    try:
        migrate.up(server.dsn())
        with pgqueue.Client(server.dsn()) as client:
            client.queue("q").put(1)
        postmaster = reaper.find(root)
        assert postmaster is not None
        os.kill(postmaster.pid, signal.SIGINT)
        eventually(lambda: not reaper.is_postgres(postmaster.pid), within=20)
        (root / reaper.DATA / "standby.signal").touch()
        server.start()
        yield server.dsn()
    finally:
        server.stop()


def test_a_standby_says_so(standby: str) -> None:
    with pgqueue.Client(standby, connect_timeout=0.5) as client:
        queue = client.queue("q")
        assert client.state() == "read only"
        assert [info.name for info in client.queues()] == ["q"]
        for call in (
            lambda: queue.put(2),
            lambda: client.queue("new").put(2),
            lambda: queue.ack(1),
            lambda: queue.peek(1),
            lambda: queue.stats(),
            lambda: queue.kick(),
            lambda: queue.pause(1),
        ):
            with pytest.raises(NotRunning, match="standby"):
                call()
        with pytest.raises(ServerError, match="without a session"):
            queue.take(0)
    with psycopg.connect(standby) as conn:
        assert conn.execute("SELECT name, status FROM pgqueue.health").fetchall() == [("standby", "bad")]
