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
from hurrying import hurry

import pgqueue
from pgqueue import migrate
from pgqueue.embedded import EmbeddedServer, reaper
from pgqueue.errors import NotRunning

pytestmark = pytest.mark.slow


@pytest.fixture
def standby(own_bindir: Path | None) -> Iterator[str]:
    """The DSN of a server that was stopped in order, with a task in it, and began anew as a standby of nobody."""
    root = Path(tempfile.mkdtemp(prefix="pgqueue-standby-"))
    root.chmod(0o711)  # for the account that the server runs as
    settings = {"wal_level": "replica"}
    server = EmbeddedServer(root, durable=False, ephemeral=True, settings=settings, bindir=own_bindir).start()
    try:
        migrate.up(server.dsn())
        with pgqueue.Client(server.dsn()) as client:
            client.queue("q").put(1)
        postmaster = reaper.find(root)
        assert postmaster is not None
        os.kill(postmaster.pid, signal.SIGINT)
        eventually(lambda: not reaper.is_postgres(postmaster.pid))
        (root / reaper.DATA / "standby.signal").touch()
        server.start()
        yield server.dsn()
    finally:
        server.stop()


def test_a_standby_says_so(standby: str) -> None:
    with pgqueue.Client(standby) as client:
        queue = client.queue("q")
        assert client.state() == "read only"
        assert [info.name for info in client.queues()] == ["q"]
        hurry(client, connect_timeout=0.5)
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
        with pytest.raises(NotRunning, match=r"without a session.*standby.*target_session_attrs"):
            queue.take(0)
        with pytest.raises(NotRunning, match="standby"):
            client.subscribe("c")
        with pytest.raises(NotRunning, match="standby"):
            client.try_lock("l")
    with psycopg.connect(standby) as conn:
        assert conn.execute("SELECT name, status FROM pgqueue.health").fetchall() == [("standby", "bad")]
