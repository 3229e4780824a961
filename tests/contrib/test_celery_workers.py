"""Celery's worker on the transport, as a process that is asked, stopped and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from brokers import celery_url
from celery_tasks import application
from eventually import eventually
from kombu import pools

import pgqueue

pytestmark = [pytest.mark.slow, pytest.mark.once]  # a worker of Celery takes two seconds to start
HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.fixture
def celery(dsn: str, db: psycopg.Connection) -> Iterator[Any]:
    """An application whose broker is the test's database."""
    db.execute("CREATE TABLE noted (text text, pid int)")
    app = application(celery_url(dsn))
    yield app
    pools.reset()
    app.close()


@pytest.fixture
def note(celery: Any) -> Any:
    """Its task."""
    return celery.tasks["shop.note"]


@pytest.fixture
def work(dsn: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts workers, and kills their process groups at the end."""
    started: list[subprocess.Popen[bytes]] = []
    environment = os.environ | {"CELERY_BROKER": celery_url(dsn), "PGQUEUE_DSN": dsn, "PYTHONPATH": str(HELPERS)}

    def start(*options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-l", "INFO", "-c", "2", *options]
        log = subprocess.DEVNULL
        started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def noted(db: psycopg.Connection) -> list[str]:
    return [text for (text,) in db.execute("SELECT text FROM noted ORDER BY text")]


def test_a_worker_runs_what_python_sql_and_pgqueue_put(note: Any, work: Any, db: psycopg.Connection) -> None:
    work()
    note.delay("by delay")
    note.apply_async(["by countdown"], countdown=0.5)
    db.execute("""SELECT pgqueue.put('celery', '{"job": "shop.note", "args": ["by SQL"]}')""")
    db.execute("""SELECT pgqueue.put('celery', '{"job": "shop.note", "args": {"text": "by name"}}')""")
    eventually(lambda: noted(db) == ["by SQL", "by countdown", "by delay", "by name"])
    jobs = dict(db.execute("SELECT data->>'job', count(*) FROM pgqueue.tasks GROUP BY 1").fetchall())
    assert jobs.keys() <= {"shop.note"}


def test_a_task_for_later_waits_in_the_database(note: Any, work: Any, db: psycopg.Connection) -> None:
    work()
    note.apply_async(["in an hour"], countdown=3600)
    note.delay("now")
    eventually(lambda: noted(db) == ["now"])
    left = "SELECT state, data->>'job' FROM pgqueue.tasks"
    eventually(lambda: db.execute(left).fetchall() == [("delayed", "shop.note")])  # the other is acked after its end


def test_workers_answer_and_are_stopped(celery: Any, work: Any, db: psycopg.Connection) -> None:
    worker = work("-n", "asked@here")
    eventually(lambda: celery.control.inspect(timeout=1).ping() == {"asked@here": {"ok": "pong"}})
    celery.control.broadcast("shutdown")
    assert worker.wait(60) == 0
    left = [name for (name,) in db.execute("SELECT name FROM pgqueue.queues") if "pidbox" in name]
    eventually(lambda: not [name for name in left if "asked@here" in name and name in _queues(db)])


def _queues(db: psycopg.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM pgqueue.queues")}


def test_a_worker_goes_on_after_its_session_has_ended(
    celery: Any, note: Any, work: Any, db: psycopg.Connection
) -> None:
    """As after a crash of the server. Its mailbox has ended, and it declares it anew."""
    worker = work("-n", "asked@here")
    eventually(lambda: celery.control.inspect(timeout=1).ping() == {"asked@here": {"ok": "pong"}})
    db.execute("DELETE FROM pgqueue.session WHERE label LIKE %s", [f"%:{worker.pid}:%"])
    note.delay("after")
    eventually(lambda: noted(db) == ["after"])
    eventually(lambda: celery.control.inspect(timeout=1).ping() == {"asked@here": {"ok": "pong"}})
    assert worker.poll() is None


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_other_pools(celery: Any, note: Any, work: Any, db: psycopg.Connection, pool: str) -> None:
    """Their tasks wait at the same time, and the worker answers meanwhile and stops in order."""
    if pool == "gevent":
        pytest.importorskip("gevent")
    worker = work("-n", "asked@here", "--pool", pool, "-c", "20")
    eventually(lambda: celery.control.inspect(timeout=1).ping() == {"asked@here": {"ok": "pong"}})
    for number in range(20):
        note.delay(f"{number:02}", 1.0)
    eventually(lambda: len(_active(celery)) > 2)
    eventually(lambda: noted(db) == [f"{number:02}" for number in range(20)])
    worker.terminate()
    assert worker.wait(60) == 0
    assert pgqueue_counts(db) == (0, 0)


def _active(celery: Any) -> list[Any]:
    return (celery.control.inspect(timeout=1).active() or {}).get("asked@here", [])


def test_a_killed_worker_loses_no_task(note: Any, work: Any, db: psycopg.Connection) -> None:
    first = work()
    texts = [f"{number:03}" for number in range(60)]
    for text in texts:
        note.delay(text, 0.05)
    for _ in range(3):
        done = len(set(noted(db)))
        eventually(lambda done=done: len(set(noted(db))) >= done + 5)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        first = work()
    eventually(lambda: sorted(set(noted(db))) == texts)
    eventually(lambda: pgqueue_counts(db) == (0, 0))


def pgqueue_counts(db: psycopg.Connection) -> tuple[int, int]:
    row = db.execute("SELECT ready, taken FROM pgqueue.stats WHERE queue = 'celery'").fetchone()
    assert row is not None
    return row[0], row[1]


def test_a_job_of_pgqueue_is_put_by_celerys_producer(
    celery: Any, db: psycopg.Connection, blocking: Callable[..., pgqueue.Client]
) -> None:
    client, got = blocking(), []

    @client.job("mail", name="mail.send")
    def send(to: str) -> None:
        got.append(to)

    celery.send_task("mail.send", kwargs={"to": "ada"}, queue="mail", headers={"pgqueue_job": True})
    worker = pgqueue.Worker(client, queues=["mail"])
    running = threading.Thread(target=worker.run)
    running.start()
    eventually(lambda: got == ["ada"])
    worker.stop()
    running.join()
