"""Programs of Celery on pgqueue as broker and result backend: beat, inspect, a revoke that terminates, and Flower."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from brokers import LOCAL, celery_url, close_clients
from celery.exceptions import TaskRevokedError
from celery_tasks import application
from eventually import PATIENCE, eventually
from kombu import pools
from statements import value

pytestmark = [pytest.mark.slow, pytest.mark.once]  # each program of Celery takes two seconds to start
HELPERS = Path(__file__).parents[1] / "helpers"
WORKER = "w@here"

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def celery(dsn: str, db: psycopg.Connection) -> Iterator[Any]:
    db.execute("CREATE TABLE noted (text text, pid int)")
    app = application(celery_url(dsn), celery_url(dsn))
    yield app
    pools.reset()
    app.close()
    close_clients()


@pytest.fixture
def note(celery: Any) -> Any:
    return celery.tasks["shop.note"]


@pytest.fixture
def surroundings(dsn: str) -> dict[str, str]:
    url = celery_url(dsn)
    own = {"CELERY_BROKER": url, "CELERY_BACKEND": url, "PGQUEUE_DSN": dsn, "PYTHONPATH": str(HELPERS)}
    return {**os.environ, **own, "FLOWER_UNAUTHENTICATED_API": "true"}


@pytest.fixture
def start(surroundings: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts programs of Celery, and kills their process groups at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{arguments[0]}.log").open("wb") as log:
            process = subprocess.Popen(
                command(*arguments), env=surroundings, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
            )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def worker(start: Start, celery: Any) -> None:
    start("worker", "-c", "2", "-n", WORKER, "-E")
    eventually(lambda: celery.control.inspect([WORKER], timeout=1).ping() == {WORKER: {"ok": "pong"}}, 2 * PATIENCE)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "celery_tasks", *arguments]


def runs(celery: Any, *ids: str) -> bool:
    """Whether the worker runs these tasks, and no other."""
    active = celery.control.inspect([WORKER], timeout=1).active() or {}
    return sorted(task["id"] for task in active.get(WORKER, [])) == sorted(ids)


def test_beat(worker: None, start: Start, db: psycopg.Connection) -> None:
    beat = start("beat", "--schedule", "schedule", "--pidfile", "")
    eventually(lambda: value(db, "SELECT count(*) >= 3 FROM noted WHERE text = 'by beat'"))
    beat.terminate()
    assert beat.wait(PATIENCE) == 0


def test_inspect(worker: None, celery: Any, note: Any, surroundings: dict[str, str]) -> None:
    held = [note.delay("long", 600).id for _ in range(3)]
    eventually(lambda: runs(celery, *held[:2]))

    def inspect(what: str) -> Any:
        asked = command(
            "inspect", what, "--json", "--destination", WORKER, "--timeout", "60"
        )  # it waits for one answer
        done = subprocess.run(asked, env=surroundings, capture_output=True, timeout=90)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)[WORKER]

    assert sorted(task["id"] for task in inspect("active")) == sorted(held[:2])
    assert [task["id"] for task in inspect("reserved")] == held[2:]
    assert [queue["name"] for queue in inspect("active_queues")] == ["celery"]
    assert inspect("stats")["broker"]["transport"] == "pgqueue"
    assert "shop.note" in inspect("registered")


def test_a_task_that_expired_before_a_worker_came_is_revoked(
    celery: Any, note: Any, start: Start, db: psycopg.Connection
) -> None:
    """Also one that waited in the database for longer than it was to live. Neither ends in silence."""
    expired = note.apply_async(["expired"], expires=0.1)
    later = note.apply_async(["later"], countdown=3, expires=1)
    kept = note.apply_async(["kept"], expires=600)
    assert value(db, "SELECT count(*) FROM pgqueue.tasks WHERE expires_at IS NOT NULL") == 0
    over = time.monotonic() + 0.2
    eventually(lambda: time.monotonic() > over)
    start("worker", "-n", WORKER, "-c", "1")
    for result in (expired, later):
        with pytest.raises(TaskRevokedError, match="expired"):
            result.get(timeout=PATIENCE)
        assert result.state == "REVOKED"
    kept.get(timeout=PATIENCE)
    assert value(db, "SELECT array_agg(text) FROM noted") == ["kept"]
    eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.tasks") == 0)


@pytest.mark.parametrize("by", ["method", "command"])
def test_a_revoke_that_terminates(
    worker: None, celery: Any, note: Any, db: psycopg.Connection, by: str, surroundings: dict[str, str]
) -> None:
    """The task ends at once and does not come back, and the worker goes on."""
    result = note.delay("long", 600)
    eventually(lambda: runs(celery, result.id))
    if by == "method":
        result.revoke(terminate=True)
    else:
        terminate = command("control", "--destination", WORKER, "terminate", "SIGTERM", result.id)
        subprocess.run(terminate, env=surroundings, capture_output=True, timeout=90)
    with pytest.raises(TaskRevokedError, match="terminated"):
        result.get(timeout=PATIENCE)
    assert result.state == "REVOKED"
    note.delay("after").get(timeout=PATIENCE)
    eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.tasks") == 0)
    assert value(db, "SELECT array_agg(text) FROM noted") == ["after"]


@pytest.mark.skipif(importlib.util.find_spec("flower") is None, reason="flower is not installed")
def test_flower(worker: None, celery: Any, start: Start, db: psycopg.Connection) -> None:
    with socket.create_server((LOCAL, 0)) as free:
        port = free.getsockname()[1]
    flower = start("flower", f"--address={LOCAL}", f"--port={port}")

    def ask(path: str, data: dict[str, Any] | None = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        with urllib.request.urlopen(f"http://{LOCAL}:{port}/api/{path}", body, timeout=60) as answer:
            return json.load(answer)

    def state(id: str) -> Any:
        return ask("tasks").get(id, {}).get("state")

    def sees() -> bool:
        try:
            return bool(ask("workers?refresh=true").get(WORKER, {}).get("registered"))
        except urllib.error.URLError:
            return False  # it has not started yet

    eventually(sees, 2 * PATIENCE)
    done = ask("task/async-apply/shop.note", {"args": ["by flower"]})["task-id"]
    eventually(lambda: state(done) == "SUCCESS")
    long = ask("task/async-apply/shop.note", {"args": ["long", 600]})["task-id"]
    eventually(lambda: state(long) == "STARTED")
    ask(f"task/revoke/{long}?terminate=true", {})
    eventually(lambda: state(long) == "REVOKED")
    flower.kill()  # its queue of events ends with it
    eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.queues WHERE name LIKE 'celeryev.%%'") == 0)
    assert value(db, "SELECT array_agg(text) FROM noted") == ["by flower"]
