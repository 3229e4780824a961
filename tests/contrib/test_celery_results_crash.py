"""Which results of Celery's tasks survive a crash of the database server.

The server of these tests flushes its log for a commit that waits for it, and otherwise not: its process that flushes in
the background is stopped. SIGQUIT ends the server without another flush.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from brokers import close_clients
from celery import Celery
from celery.app.task import Context
from eventually import eventually
from psycopg.conninfo import conninfo_to_dict
from statements import value

from pgqueue import Client, TakeLost, migrate
from pgqueue.embedded import EmbeddedServer, reaper

pytestmark = [pytest.mark.slow, pytest.mark.once]

Make = Callable[..., Celery]


@pytest.fixture(scope="module")
def server(own_bindir: Path | None) -> Iterator[EmbeddedServer]:
    root = Path(tempfile.mkdtemp(prefix="pgqueue-celery-"))
    root.chmod(0o711)  # for the account that the server runs as
    server = EmbeddedServer(root, durable=True, ephemeral=True, bindir=own_bindir).start()
    try:
        migrate.up(server.dsn())
        yield server
    finally:
        server.stop()


@pytest.fixture
def make(server: EmbeddedServer) -> Iterator[Make]:
    """Makes applications with a task that is acked early and one that is acked late."""
    known = conninfo_to_dict(server.dsn())
    url = f"pgqueue://{known['user']}@/{known['dbname']}?host={known['host']}&port={known['port']}"

    def app(broker: str = url, **settings: Any) -> Celery:
        made = Celery("shop", broker=broker, backend=url, set_as_current=False)
        made.conf.update(settings)
        made.task(name="shop.early", shared=False)(work)
        made.task(name="shop.late", shared=False, acks_late=True)(work)
        return made

    yield app
    close_clients()


def work() -> None:
    """Only its options have a meaning here."""


@contextmanager
def crash(server: EmbeddedServer) -> Iterator[None]:
    """At the end of the block, in which no commit is flushed that does not wait for it."""
    with psycopg.connect(server.dsn()) as conn:
        writer = value(conn, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    os.kill(writer, signal.SIGSTOP)
    try:
        yield
        postmaster = reaper.find(server.root)
        os.kill(postmaster.pid, signal.SIGQUIT)
    finally:
        os.kill(writer, signal.SIGKILL)
    eventually(lambda: not reaper.is_postgres(postmaster.pid))
    server.start()


def request(name: str, **fields: Any) -> Context:
    """As a worker has it, with a new id."""
    return Context({"id": os.urandom(8).hex(), "task": f"shop.{name}", **fields})


def stored(app: Celery, asked: Context) -> str:
    """Store a result. Returns the id of its task."""
    app.backend.mark_as_done(asked.id, 7, request=asked)
    return str(asked.id)


@pytest.mark.parametrize("setting", [None, True, False])
def test_a_result_survives_a_crash_unless_it_need_not(server: EmbeddedServer, make: Make, setting: bool | None) -> None:
    app = make(result_persistent=setting)
    with crash(server):
        id = stored(app, request("early"))
        assert app.AsyncResult(id).state == "SUCCESS"
    assert app.AsyncResult(id).state == ("PENDING" if setting is False else "SUCCESS")


def test_the_part_of_a_chords_member_that_does_not_run_again_survives(server: EmbeddedServer, make: Make) -> None:
    app = make(result_persistent=False)
    with crash(server):
        stored(app, request("early", group="g", group_index=0, chord={"task": "shop.body"}))
    with psycopg.connect(server.dsn()) as conn:
        parts = "SELECT count(*) FROM pgqueue.statuses WHERE starts_with(key, 'celery-taskset-meta-g.part:')"
        assert value(conn, parts) == 1


def test_a_result_that_a_crash_loses_is_that_of_a_task_that_runs_again(server: EmbeddedServer, make: Make) -> None:
    app = make()
    with Client(server.dsn()) as client:
        box = client.queue("late-results")
        box.put("a task")
        task = box.take()
        assert task is not None
        with crash(server):
            id = stored(app, request("late"))
        assert app.AsyncResult(id).state == "PENDING"  # it was lost
        with pytest.raises(TakeLost):
            task.ack()
        again = box.take(timeout=30)
        assert again is not None
        assert again.id == task.id


def test_an_ack_keeps_the_result_before_it(server: EmbeddedServer, make: Make) -> None:
    app = make()
    with Client(server.dsn()) as client:
        box = client.queue("late-results-acked")
        box.put("a task")
        task = box.take()
        assert task is not None
        with crash(server):
            id = stored(app, request("late"))
            task.ack()
        assert app.AsyncResult(id).state == "SUCCESS"
        assert box.take(timeout=0) is None


OTHERS = {
    "a task that was acked before": ({}, "early", {}, "SUCCESS"),
    "a failure, which may be stored after the ack": ({}, "late", {}, "FAILURE"),
    "a task that was applied eagerly": ({}, "late", {"is_eager": True}, "SUCCESS"),
    "a task of another broker": ({"broker": "memory://"}, "late", {}, "SUCCESS"),
}


def test_every_other_result_survives(server: EmbeddedServer, make: Make) -> None:
    wanted, found = dict[str, str](), dict[str, Any]()
    for of, (broker, name, fields, state) in OTHERS.items():
        app, asked = make(**broker), request(name, **fields)
        with crash(server):  # each alone: a commit that waits takes those before it along
            result = ValueError(of) if state == "FAILURE" else 7
            app.backend.store_result(asked.id, result, state, request=asked)
        wanted[of], found[of] = state, app.AsyncResult(asked.id).state
    assert found == wanted
