"""`pgqueue workers` and `pgqueue jobs`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from commands import Commands

import pgqueue
from pgqueue._calls.tallies import BOUNDS, count_runs

pytestmark = pytest.mark.once


@pytest.fixture
def some(blocking: Callable[..., pgqueue.Client], db: psycopg.Connection) -> None:
    """A worker, and runs of two jobs."""
    client = blocking()
    client.queue("mail").put(1)
    waits, runs = [0] * (len(BOUNDS) + 1), [0] * (len(BOUNDS) + 1)
    waits[0] = runs[9] = 2
    numbers: Any = {"queue": "mail", "failed": 1, "timeouts": 1, "waits": waits, "runs": runs}
    client.shell.run(count_runs(1, 1, [numbers | {"job": "shop.send", "done": 7}, numbers | {"job": ""}]))
    db.execute("SELECT pgqueue.open_session(label => 'web1:4711:worker.py')")
    db.execute("SELECT pgqueue.register_worker(1, '{mail,bills}', '{shop.send}', 8)")


def test_jobs_are_shown(command: Commands, some: None) -> None:
    heading, *lines = command.lines("jobs")
    shown = "QUEUE JOB DONE FAILED RETRIED TIMEOUTS CANCELLED TAKEN WAIT_P50 WAIT_P95 RUN_P50 RUN_P95"
    assert " ".join(heading.split()) == shown
    assert [line.split()[:8] for line in lines] == [
        ["mail", "(handler)", "0", "1", "0", "1", "0", "0"],
        ["mail", "shop.send", "7", "1", "0", "1", "0", "0"],
    ]
    assert lines[1].split()[8:] == ["0.0005", "s", "0.00095", "s", "0.75", "s", "0.975", "s"]


def test_workers_are_shown(command: Commands, some: None) -> None:
    (_, line) = command.lines("workers")
    assert line.startswith("web1:4711:worker.py")
    assert line.endswith("mail, bills  shop.send")


def test_both_as_json(command: Commands, some: None) -> None:
    handler, send = command.json("jobs")
    assert (handler["job"], send["job"], send["done"], send["run_p50"]) == ("", "shop.send", 7, 0.75)
    (worker,) = command.json("workers")
    assert (worker["queues"], worker["jobs"], worker["concurrency"]) == (["mail", "bills"], ["shop.send"], 8)


def test_nothing_is_a_heading(command: Commands, db: psycopg.Connection) -> None:
    assert len(command.lines("jobs")) == len(command.lines("workers")) == 1


async def test_from_python_on_both_shells(client: pgqueue.AsyncClient, some: None) -> None:
    assert [job.job for job in await client.job_stats()] == ["", "shop.send"]
    assert [worker.name for worker in await client.workers()] == ["web1:4711:worker.py"]
