"""A worker on queues of Tarantool's types without delays: its pauses are no options of a put."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from eventually import eventually
from running import running
from statements import column, rows, value

import pgqueue
from pgqueue import RetryLater, Worker
from pgqueue.worker import newer

pytestmark = pytest.mark.once

Blocking = Callable[..., pgqueue.Client]

SOON: Any = {"max_attempts": 3, "retry_delay": 0.02}
ATTEMPTS = "SELECT split_part(error, ' (', 1) FROM pgqueue.attempts ORDER BY id"  # without the place in the code


@pytest.fixture(params=["fifo", "utube"])
def client(blocking: Blocking, request: pytest.FixtureRequest) -> pgqueue.Client:
    client = blocking()
    client.create_queue("q", type=request.param, keep_done=60)
    return client


@contextmanager
def working(client: pgqueue.Client, **options: Any) -> Iterator[None]:
    with running(Worker(client, concurrency=1, grace=1, schedules=False, **options)):
        yield


def test_a_handler_that_fails_once_is_tried_again(client: pgqueue.Client, db: psycopg.Connection) -> None:
    calls: list[Any] = []

    @client.handler("q")
    def handle(data: Any) -> None:
        calls.append(data)
        if len(calls) == 1:
            raise RuntimeError("boom")

    task = client.queue("q").put("x")
    with working(client, **SOON):
        eventually(lambda: task.peek().state == "done")
    assert (calls, task.peek().attempts) == (["x", "x"], 1)
    assert column(db, ATTEMPTS) == ["RuntimeError: boom"]


def test_the_default_policy_delays_the_next_attempt(client: pgqueue.Client, db: psycopg.Connection) -> None:
    @client.job("q")
    def fail() -> None:
        raise RuntimeError("boom")

    fail.put()
    with working(client):
        eventually(lambda: column(db, ATTEMPTS) != [])
    assert column(db, "SELECT state FROM pgqueue.tasks") != ["buried"]


def test_a_job_that_asks_for_a_later_attempt_gets_it(client: pgqueue.Client, db: psycopg.Connection) -> None:
    @client.job("q")
    def wait() -> None:
        raise RetryLater(3600, counts=False)

    task = wait.put()
    with working(client):
        eventually(lambda: task.peek().state == "delayed")
    assert task.peek().attempts == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_handler_fails_single_tasks_and_whole_batches(
    client: pgqueue.Client, db: psycopg.Connection, is_async: bool
) -> None:
    sizes, spoilt = list[int](), list[int]()

    def handle(tasks: list[Any]) -> dict[int, str]:
        sizes.append(len(tasks))
        if len(sizes) == 1:
            raise RuntimeError("boom")
        if spoilt:
            return {}
        spoilt.append(tasks[0].id)
        return {tasks[0].id: "bad"}

    async def handle_async(tasks: list[Any]) -> dict[int, str]:
        return handle(tasks)

    client.batch_handler("q", 5)(handle_async if is_async else handle)
    client.queue("q").put_many(range(5))
    with working(client, **SOON):
        eventually(lambda: column(db, "SELECT DISTINCT state FROM pgqueue.tasks") == ["done"])
    assert sorted(column(db, ATTEMPTS)) == ["RuntimeError: boom"] * sizes[0] + ["bad"]


def test_a_task_of_an_unknown_job_waits_for_a_worker_that_has_it(
    client: pgqueue.Client, blocking: Blocking, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newer, "FIRST", 0.02)
    monkeypatch.setattr(newer, "LONGEST", 0.02)
    client.job("q", name="known")(lambda: None)
    ahead = blocking()
    task = ahead.job("q", name="unknown", keep_result=60)(lambda: "done").put()
    with working(client):
        eventually(lambda: (value(db, "SELECT releases FROM pgqueue.task WHERE id = %s", task.id) or 0) > 1)
        with working(ahead):
            assert task.result(30) == "done"
    assert rows(db, "SELECT FROM pgqueue.attempts") == []
