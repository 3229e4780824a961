"""The first connection of a process, while no server is there: calls wait for it as later ones do, and workers begin
when it comes. What a server refuses is told at once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from eventually import Stopwatch, eventually, soon
from refusing import Absent, refusing
from running import running

import pgqueue
from pgqueue import ServerError, Worker
from pgqueue._engine import door

CALLS = {"put": lambda queue: queue.put(1), "take": lambda queue: queue.take(0)}
STARTING = ("57P03", "le système de base de données se lance")  # in the server's own language
FINAL = {"28P01": "the password", "28000": "the role", "3D000": "the database"}


@pytest.fixture
def absent(dsn: str) -> Iterator[Absent]:
    server = Absent(dsn)
    yield server
    server.close()


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """An element for each attempt to connect for the first time."""
    made: list[Any] = []
    attempt = door._attempt
    monkeypatch.setattr(door, "_attempt", lambda conninfo: made.append(conninfo) or attempt(conninfo))
    return made


@pytest.mark.parametrize("call", CALLS)
async def test_the_first_call_waits_for_an_absent_server(shell, absent, attempts, call):
    client = shell.client(absent.dsn, connect_timeout=30)
    first = asyncio.ensure_future(CALLS[call](client.queue("q")))
    await soon(lambda: len(attempts) >= 2)
    assert not first.done()
    absent.come()
    task = await asyncio.wait_for(first, 30)
    assert task is None or task.state == "ready"


@pytest.mark.once
def test_the_first_look_for_a_server_at_listen_dsn_waits_too(dsn, absent, attempts):
    with pgqueue.Client(dsn, listen_dsn=absent.dsn, connect_timeout=30) as client, ThreadPoolExecutor(1) as threads:
        client.queue("q").put(1)
        take = threads.submit(client.queue("q").take, 0)
        eventually(lambda: attempts.count(attempts[-1]) >= 2)
        absent.come()
        assert take.result(30).data == 1


def test_a_call_waits_as_long_as_connect_timeout_and_names_the_reason(absent):
    with pgqueue.Client(absent.dsn, connect_timeout=0.3) as client:
        for _ in range(2):
            took = Stopwatch()
            with pytest.raises(ServerError, match=r"cannot connect to PostgreSQL.*: Connection refused"):
                client.queue("q").put(1)
            assert 0.1 < took() < 5


@pytest.mark.slow
def test_a_server_that_is_starting_is_absent(attempts, caplog):
    with refusing(*STARTING) as starting, pgqueue.Client(starting, connect_timeout=30) as client:
        with ThreadPoolExecutor(1) as threads:
            put = threads.submit(client.queue("q").put, 1)
            eventually(lambda: len(attempts) >= 3)
            assert not put.done()
            client.close()
        assert isinstance(put.exception(), pgqueue.ClosedError)
        assert STARTING[1] in caplog.text


@pytest.mark.parametrize("sqlstate", FINAL, ids=FINAL.get)
def test_what_a_server_refuses_is_told_at_once(sqlstate):
    took = Stopwatch()
    with refusing(sqlstate, "refusé") as here, pgqueue.Client(here, connect_timeout=60, call_timeout=60) as client:
        with pytest.raises(ServerError, match="refusé"):
            client.queue("q").put(1)
        with pytest.raises(ServerError, match="refusé"):
            Worker(client, {"q": print}).run()
    assert took() < 30


@pytest.mark.slow
def test_many_threads_wait_for_a_server_with_the_attempts_of_one(absent, attempts):
    with pgqueue.Client(absent.dsn, connect_timeout=30) as client, ThreadPoolExecutor(30) as threads:
        took = Stopwatch()
        puts = [threads.submit(client.queue("q").put, n) for n in range(30)]
        eventually(lambda: len(attempts) >= 6)
        assert took() > 0.01 + 0.02 + 0.04 + 0.08  # the shortest pauses
        absent.come()
        assert {put.result(30).state for put in puts} == {"ready"}


def test_close_does_not_wait_for_a_call_that_waits_for_a_server(absent, attempts):
    with ThreadPoolExecutor(1) as threads:
        client = pgqueue.Client(absent.dsn, connect_timeout=60, call_timeout=60)
        put = threads.submit(client.queue("q").put, 1)
        eventually(lambda: len(attempts) >= 2)
        client.close()
        with pytest.raises(pgqueue.ClosedError):
            put.result(30)


# --- workers


def test_a_worker_that_starts_while_the_server_is_away_begins_when_it_is_back(absent, attempts, dsn, caplog):
    caplog.set_level(logging.INFO, logger="pgqueue")
    done = threading.Event()
    with pgqueue.Client(dsn) as other:
        other.queue("q").put(1)
    with (
        pgqueue.Client(absent.dsn, connect_timeout=0.1) as client,
        running(Worker(client, {"q": lambda data: done.set()})) as worker,
    ):
        eventually(lambda: len(attempts) >= 5)
        assert worker.report().why == "it is starting"
        assert caplog.text.count("cannot reach its server") == 1
        absent.come()
        assert done.wait(30)
    assert "reached its server again" in caplog.text


@pytest.mark.parametrize("before", [lambda worker: None, Worker.reload], ids=["stop", "reload and stop"])
def test_a_worker_that_waits_for_its_server_can_be_stopped(absent, attempts, before: Callable[[Worker], None]):
    with pgqueue.Client(absent.dsn) as client:
        worker = Worker(client, {"q": print})
        with running(worker):
            eventually(lambda: len(attempts) >= 2)
            before(worker)
            worker.stop()
            assert worker.stopping.wait(30)
