"""Two-phase commit: what a transaction that was prepared before a crash of the server put is counted after its end.

A server of the test's own, since prepared transactions are off by default, and since it is crashed.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from eventually import eventually
from statements import put, value

from pgqueue import migrate
from pgqueue.embedded import EmbeddedServer, reaper

pytestmark = pytest.mark.slow


@pytest.fixture
def root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="pgqueue-prepared-"))
    root.chmod(0o711)  # for the account that the server runs as
    return root


@pytest.fixture
def own(own_bindir: Path | None, root: Path) -> Iterator[EmbeddedServer]:
    settings = {"max_prepared_transactions": "10"}
    server = EmbeddedServer(root, durable=True, ephemeral=True, settings=settings, bindir=own_bindir).start()
    try:
        migrate.up(server.dsn())
        yield server
    finally:
        server.stop()


def test_a_put_that_was_prepared_before_a_crash_is_counted(own: EmbeddedServer, root: Path) -> None:
    stats = "SELECT total FROM pgqueue.stats WHERE queue = 'q'"
    with psycopg.connect(own.dsn(), autocommit=True) as conn:
        conn.execute("SELECT pgqueue.create_queue('q', capacity => 3)")
        put(conn, "q")
        conn.execute("BEGIN")
        put(conn, "q")
        conn.execute("PREPARE TRANSACTION 'one'")
    postmaster = reaper.find(root)
    assert postmaster is not None
    os.kill(postmaster.pid, signal.SIGQUIT)
    eventually(lambda: not reaper.is_postgres(postmaster.pid))
    own.start()
    with psycopg.connect(own.dsn(), autocommit=True) as conn:
        conn.execute("SELECT pgqueue.promote_all()")
        assert value(conn, "SELECT pgqueue._is_counted()")  # the tick counts once, not for as long as it is prepared
        assert value(conn, stats) == 1
        conn.execute("COMMIT PREPARED 'one'")
        assert value(conn, stats) == 2
        conn.execute("SELECT pgqueue.promote_all()")
        assert value(conn, "SELECT pgqueue._is_counted()")
        assert value(conn, stats) == 2
        put(conn, "q")
        assert value(conn, "SELECT state FROM pgqueue.put('q', '1')") == "full"
