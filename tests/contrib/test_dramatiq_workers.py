"""Dramatiq's worker on pgqueue, as processes of their own that are stopped and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from dramatiq_tasks import application
from eventually import Stopwatch, eventually, in_time
from statements import column, value

pytestmark = [pytest.mark.slow, pytest.mark.once]  # a worker of Dramatiq takes a second to start
HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.fixture
def note(dsn: str, db: psycopg.Connection) -> Iterator[Any]:
    """The actor, whose broker is the test's database."""
    db.execute("CREATE TABLE noted (text text, pid int)")
    broker, note = application(dsn)
    with contextlib.closing(broker):
        yield note


@pytest.fixture
def work(dsn: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts workers, and kills their process groups at the end."""
    started: list[subprocess.Popen[bytes]] = []
    environment = os.environ | {"PGQUEUE_DSN": dsn, "PYTHONPATH": str(HELPERS)}

    def start(threads: int = 2) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "dramatiq",
            "dramatiq_tasks:broker",
            "--processes",
            "1",
            "--threads",
            str(threads),
        ]
        log = subprocess.DEVNULL
        started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def noted(db: psycopg.Connection) -> list[str]:
    return column(db, "SELECT text FROM noted ORDER BY text")


def test_a_worker_runs_what_is_sent_and_leaves_the_rest_in_the_database(
    note: Any, work: Any, db: psycopg.Connection
) -> None:
    worker = work()
    note.send("now")
    note.send_with_options(args=("soon",), delay=300)
    note.send_with_options(args=("in an hour",), delay=3_600_000)
    eventually(lambda: noted(db) == ["now", "soon"])
    eventually(lambda: column(db, "SELECT state || ' ' || (data->>'job') FROM pgqueue.tasks") == ["delayed shop.note"])
    worker.terminate()
    assert worker.wait(60) == 0


def test_a_stopped_worker_gives_back_what_it_has_not_begun(note: Any, work: Any, db: psycopg.Connection) -> None:
    worker = work(threads=1)
    for number in range(5):
        note.send(str(number), 0.5)
    eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.tasks WHERE state = 'taken'") == 2)
    worker.terminate()
    assert worker.wait(60) == 0
    done = len(noted(db))
    assert column(db, "SELECT state FROM pgqueue.tasks") == ["ready"] * (5 - done)
    assert 1 <= done <= 2


def test_a_killed_worker_loses_no_message(note: Any, work: Any, db: psycopg.Connection) -> None:
    first = work()
    texts = [f"{number:03}" for number in range(60)]
    for text in texts:
        note.send(text, 0.05)
    for _ in range(3):
        done = len(set(noted(db)))
        eventually(lambda done=done: len(set(noted(db))) >= done + 5)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        first = work()
    eventually(lambda: sorted(set(noted(db))) == texts)
    eventually(lambda: column(db, "SELECT state FROM pgqueue.tasks") == [])


def test_messages_of_a_killed_worker_are_ready_within_a_second(note: Any, work: Any, db: psycopg.Connection) -> None:
    keeper = note.broker.consume("other")  # a client that lives

    def killed() -> float:
        worker = work()
        note.send("held", 60)
        eventually(lambda: column(db, "SELECT state FROM pgqueue.tasks") == ["taken"])
        watch = Stopwatch()
        os.killpg(worker.pid, signal.SIGKILL)
        eventually(lambda: column(db, "SELECT state FROM pgqueue.tasks") == ["ready"])
        seconds = watch()
        worker.wait()
        db.execute("DELETE FROM pgqueue.task")
        return seconds

    in_time(killed, 1.0)
    keeper.close()
