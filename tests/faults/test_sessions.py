"""Takers that die, start, are interrupted, or get data that they cannot read."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import Stopwatch, eventually, soon, soon_enough
from psycopg.conninfo import make_conninfo
from statements import rows, state, value
from unreadable import DIGITS, UNREADABLE

import pgqueue
from pgqueue import migrate
from pgqueue._engine import listener
from pgqueue._values import data
from pgqueue.embedded import EmbeddedServer, reaper

STATES = "SELECT state FROM pgqueue.tasks ORDER BY id"


async def swept_twice(client) -> None:
    """Two sweeps of this client's listener have begun and ended since."""
    ticks = client.shell.core.listener()
    await asyncio.sleep(2 * listener.TICK)
    assert ticks.session is not None


@pytest.mark.slow
async def test_tasks_of_a_killed_process_are_taken_again_within_a_second(dsn, client, queue, db, start):
    bystander = start("holder", dsn, "others", 0.5)
    await client.queue("others").put("not yours")
    assert await asyncio.to_thread(bystander.ask, "take 1")

    async def kill_to_taken() -> float:
        victim = start("holder", dsn, "q", 0.5)
        ids = await queue.put_many(range(3))
        assert (await asyncio.to_thread(victim.ask, "take 3"))["taken"] == ids
        assert await queue.take(0) is None
        taking = asyncio.ensure_future(queue.take_many(3, 10))
        watch = Stopwatch()
        victim.kill()
        taken = await taking
        seconds = watch()
        await queue.ack_many(taken)
        assert [(task.id, task.attempts) for task in taken] == [(id, 0) for id in ids]
        return seconds

    await soon_enough(kill_to_taken, within=1.0)
    assert rows(db, "SELECT state FROM pgqueue.tasks WHERE queue = 'others'") == [("taken",)]
    assert await asyncio.to_thread(bystander.ask, "ack") == {"acked": True}


@pytest.mark.slow
async def test_a_new_client_takes_nothing_from_the_living(shell, client, queue, db):
    await queue.put_many(range(3))
    tasks = await queue.take_many(3)
    newcomer = shell.client(session_grace=0)
    assert await newcomer.queue("q").take(0) is None
    await swept_twice(newcomer)
    assert rows(db, STATES) == [("taken",)] * 3
    for task in tasks:
        assert (await task.ack()).state == "done"


# --- a server of our own


@pytest.fixture
def root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="pgqueue-own-"))
    root.chmod(0o711)  # for the account that the server runs as
    return root


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def own(own_bindir: Path | None, root: Path, port: int) -> Iterator[EmbeddedServer]:
    """A durable server that may be crashed, and that asks for passwords over TCP."""
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # it tells of each broken connection
    server = EmbeddedServer(root, durable=True, ephemeral=True, bindir=own_bindir, port=port).start()
    try:
        migrate.up(server.dsn())
        yield server
    finally:
        server.stop()
        logging.getLogger("psycopg.pool").setLevel(logging.NOTSET)


@pytest.mark.slow
async def test_taken_tasks_return_after_a_crash_of_the_server(shell, own, root):
    queue = shell.client(own.dsn()).queue("q")
    ids = await queue.put_many(range(3))
    (task, *_) = await queue.take_many(2)
    postmaster = reaper.find(root)
    os.kill(postmaster.pid, signal.SIGQUIT)  # as pg_ctl -m immediate
    await soon(lambda: not reaper.is_postgres(postmaster.pid))
    await asyncio.to_thread(own.start)
    assert [task.id for task in await queue.take_many(3, 10)] == ids
    with pytest.raises(pgqueue.TakeLost):
        await task.ack()
    assert (await queue.stats())["taken"] == 3


@pytest.mark.slow
async def test_a_wrong_password_is_not_repeated(shell, own, port):
    dsn = make_conninfo(own.dsn(tcp=True), password="not-the-password")
    with pytest.raises(pgqueue.ServerError, match="password authentication failed") as raised:
        await shell.client(dsn).queue("q").put("x")
    assert "not-the-password" not in str(raised.value)
    assert f"port={port}" in str(raised.value)


# --- interrupts


def test_ctrl_c_in_a_blocked_take_and_the_next_take_is_served(dsn, db, blocking, start):
    program = start("interrupted", dsn, "q", "again")
    assert program.hear() == {"began": True}
    held = "SELECT count(*) FROM pg_locks WHERE classid = pgqueue._waiter_lock()"
    eventually(lambda: value(db, held))  # it sleeps: a WAITER lock is held
    os.kill(program.pid, signal.SIGINT)
    assert program.hear() == {"interrupted": True}
    blocking().queue("q").put("after")
    assert program.hear(within=5) == {"took": "after"}
    assert program.end() == 0


@pytest.mark.slow
def test_ctrl_c_at_any_moment_and_nothing_stays_taken(dsn, db, blocking, start):
    """The process ends in order, so that what it held and what it was about to hold is ready at once."""
    queue = blocking().queue("q")
    queue.put_many(range(1000))
    moments = random.Random(21)
    for _ in range(8):
        program = start("interrupted", dsn, "q", "ends")
        assert program.hear() == {"began": True}
        eventually(lambda: rows(db, "SELECT FROM pgqueue.take"))
        threading.Event().wait(moments.uniform(0, 0.03))  # a random moment is the point
        os.kill(program.pid, signal.SIGINT)
        assert program.end() == 0
        assert rows(db, "SELECT FROM pgqueue.take") == rows(db, "SELECT FROM pgqueue.session") == []
    assert rows(db, "SELECT DISTINCT state, attempts FROM pgqueue.tasks") == [("ready", 0)]


@pytest.mark.parametrize("cut", [KeyboardInterrupt, MemoryError])
def test_ctrl_c_while_the_data_is_read_gives_the_tasks_back(blocking, db, monkeypatch, cut):
    queue = blocking().queue("q")
    queue.put_many(range(3))

    def interrupted(text: str) -> None:
        raise cut

    monkeypatch.setattr(data, "decode", interrupted)
    with pytest.raises(cut):
        queue.take_many(3, 0)
    eventually(lambda: rows(db, STATES) == [("ready",)] * 3)
    assert rows(db, "SELECT DISTINCT attempts FROM pgqueue.tasks") == [(0,)]


@pytest.mark.parametrize("text", [*UNREADABLE, f"{DIGITS}.5", "[1e-400]"])
async def test_data_that_python_cannot_read_is_buried(queue, db, text, caplog):
    """SQL can put it. Its neighbours are not lost with it, and it does not come again."""
    bad = value(db, "SELECT id FROM pgqueue.put('q', %s::jsonb)", text)
    good = await queue.put("good")
    assert [task.id for task in await queue.take_many(2, 0)] == [good.id]
    await soon(lambda: state(db, bad) == "buried")
    assert f"task {bad} of q is buried, its data cannot be read" in caplog.text
    assert value(db, "SELECT error FROM pgqueue.tasks WHERE id = %s", bad)
    await queue.kick()
    with pytest.raises(ValueError, match=f"task {bad} of q is buried"):
        await queue.take(5)
    await soon(lambda: state(db, bad) == "buried")
    assert state(db, good.id) == "taken"
