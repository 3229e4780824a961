"""An old primary that came back beside its promoted standby gets nothing, though libpq would take it.

The servers are embedded ones of the test's own: a primary and its standby, which is promoted while the primary is down.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from eventually import eventually
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from statements import value

import pgqueue
from pgqueue import migrate
from pgqueue._engine import primaries
from pgqueue._engine.cluster import standing
from pgqueue.embedded import EmbeddedServer, reaper
from pgqueue.errors import ServerError

pytestmark = pytest.mark.slow


class Pair(NamedTuple):
    """The DSNs of the old primary, of the promoted server, and of both with the old one first."""

    old: str
    promoted: str
    both: str


@pytest.fixture(scope="module")
def pair(own_bindir: Path | None) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(EmbeddedServer(ephemeral=True, bindir=own_bindir))
        migrate.up(old.dsn(), server=1)
        standby = stack.enter_context(EmbeddedServer(ephemeral=True, bindir=own_bindir, standby_of=old.dsn()))
        killed = old.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: not reaper.is_postgres(killed))
        with psycopg.connect(standby.dsn(), autocommit=True) as conn:
            assert value(conn, "SELECT pg_promote(true, 60)")
        old.start()
        parts = [conninfo_to_dict(server.dsn()) for server in (old, standby)]
        lists = {name: ",".join(str(part[name]) for part in parts) for name in ("host", "port")}
        both = make_conninfo("", **parts[0] | lists | {"hostaddr": ",", "target_session_attrs": "read-write"})
        yield Pair(old.dsn(), standby.dsn(), both)


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has met no server yet."""
    monkeypatch.setattr(primaries, "_newest", {})
    monkeypatch.setattr(primaries, "_chosen", {})


def tasks(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as conn:
        count: int = value(conn, "SELECT count(*) FROM pgqueue.task")
        return count


def test_libpq_takes_the_old_primary(pair: Pair) -> None:
    with psycopg.connect(pair.both) as conn:
        assert conn.info.host == conninfo_to_dict(pair.old)["host"]


def test_a_client_puts_to_the_promoted_server_and_listens_there(pair: Pair) -> None:
    before = tasks(pair.old), tasks(pair.promoted)
    with pgqueue.Client(pair.both) as client:
        queue = client.queue("q")
        queue.put("blocking")
        task = queue.take(20)
        assert task is not None
        assert task.data == "blocking"
        task.release()

    async def put() -> None:
        async with pgqueue.AsyncClient(pair.both) as other:
            await other.queue("q").put("awaiting")

    asyncio.run(put())
    assert (tasks(pair.old), tasks(pair.promoted)) == (before[0], before[1] + 2)


def test_a_connection_that_leads_to_the_old_primary_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers of the hosts hold for two seconds, in which the old primary may come back."""
    assert primaries.chosen(pair.both) != pair.both  # meets both
    with psycopg.connect(pair.old) as conn, pytest.raises(primaries.OldPrimary, match="on timeline 1"):
        primaries.check(conn, pair.both)
    assert conn.closed

    async def refused() -> None:
        other = await psycopg.AsyncConnection.connect(pair.old)
        with pytest.raises(primaries.OldPrimary, match="on timeline 1"):
            await primaries.check_async(other, pair.both)
        assert other.closed

    asyncio.run(refused())
    monkeypatch.setattr(primaries, "chosen", lambda conninfo: conninfo)
    with pytest.raises(ServerError, match=r"this is an old primary, on timeline 1: a server on timeline 2"):
        standing.look(pair.both)


def test_a_server_of_a_cluster_is_looked_for_behind_all_hosts(pair: Pair) -> None:
    assert standing.look(pair.both) == standing.look(pair.promoted)
    assert standing.is_older(standing.look(pair.old), standing.look(pair.both))


def test_a_dsn_with_one_host_costs_no_look(pair: Pair) -> None:
    assert primaries.chosen(pair.old) == pair.old
    assert primaries._newest == {}
