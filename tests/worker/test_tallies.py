"""What workers write about themselves: the statistics of their runs, and their registration."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, eventually
from running import running
from statements import column, row, rows, value

import pgqueue
from pgqueue import Worker
from pgqueue._calls.call import Call
from pgqueue._calls.take import Taken
from pgqueue.errors import ConnectionLost, NotAllowed
from pgqueue.jobs.retry import Retry
from pgqueue.worker.failures import failure
from pgqueue.worker.tallies import OTHERS, Tallies

pytestmark = pytest.mark.once

Blocking = Callable[..., pgqueue.Client]


def working(client: Any, **options: Any) -> AbstractContextManager[Worker]:
    return running(Worker(client, **options))


# --- statistics


def test_a_worker_counts_its_runs(blocking: Blocking, db: psycopg.Connection) -> None:
    """All of them when it stops, also those of the last second."""
    client = blocking()

    @client.handler("sync")
    def handle(data: int) -> None:
        if data == 7:
            raise ValueError

    @client.handler("async")
    async def await_it(data: int) -> None:
        pass

    client.queue("sync").put_many(range(10))
    client.queue("async").put_many(range(20))
    with working(client, max_attempts=2, retry_delay=0):
        eventually(lambda: client.queue("sync").stats()["buried"] == 1)
        eventually(lambda: client.queue("async").stats()["total"] == 0)
    columns = "queue, job, done, failed, retried, timeouts, cancelled"
    assert rows(db, f"SELECT {columns} FROM pgqueue.job_stats ORDER BY 1") == [
        ("async", "", 20, 0, 0, 0, 0),
        ("sync", "", 9, 1, 1, 0, 0),
    ]
    assert value(db, "SELECT (SELECT sum(n) FROM unnest(runs) n) FROM pgqueue.job_runs() WHERE queue = 'sync'") == 11


@pytest.mark.slow
def test_runs_that_are_cut_or_cancelled_are_counted_once(blocking: Blocking, db: psycopg.Connection) -> None:
    """One that was written off is counted then, and not again when its handler returns."""
    client, other, hold, begun = blocking(), blocking(), threading.Event(), threading.Event()

    @other.handler("hangs")
    def hang(data: int) -> None:
        hold.wait(30)

    @client.handler("sleeps")
    async def sleep(data: int) -> None:
        begun.set()
        await asyncio.sleep(60)

    client.queue("hangs").put(1)
    cancelled = client.queue("sleeps").put(1)
    with working(client, max_attempts=1), working(other, max_attempts=1, time_limit=0.5):
        assert begun.wait(30)
        client.cancel(cancelled)
        eventually(lambda: client.queue("sleeps").stats()["total"] == 0)
        eventually(lambda: client.queue("hangs").stats()["buried"] == 1)
        hold.set()
    columns = "queue, done, failed, retried, timeouts, cancelled"
    assert rows(db, f"SELECT {columns} FROM pgqueue.job_stats ORDER BY 1") == [
        ("hangs", 0, 1, 0, 1, 0),
        ("sleeps", 0, 0, 0, 0, 1),
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_each_task_of_a_batch_is_a_run(blocking: Blocking, db: psycopg.Connection, is_async: bool) -> None:
    client = blocking()

    def handle(tasks: list[Any]) -> dict[int, str]:
        return {task.id: "bad" for task in tasks if task.data == 3}

    async def handle_async(tasks: list[Any]) -> dict[int, str]:
        return handle(tasks)

    client.batch_handler("rows", 5)(handle_async if is_async else handle)
    client.queue("rows").put_many(range(10))
    with working(client, max_attempts=1):
        eventually(lambda: (s := client.queue("rows").stats())["total"] == s["buried"] == 1)
    assert rows(db, "SELECT queue, job, done, failed FROM pgqueue.job_stats") == [("rows", "", 9, 1)]


@pytest.mark.slow
def test_time_to_start_and_run_time_are_measured(blocking: Blocking, db: psycopg.Connection) -> None:
    client, watch = blocking(), Stopwatch()
    client.handler("q")(lambda data: threading.Event().wait(0.6))
    client.queue("q").put(1)
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '100 s'")
    with working(client):
        eventually(lambda: client.queue("q").stats()["total"] == 0)
    found = row(
        db, "SELECT waited, ran, wait_p50, run_p50 FROM pgqueue.job_runs() JOIN pgqueue.job_stats USING (queue)"
    )
    assert found is not None
    waited, ran, wait, run = found
    took = watch()
    assert 100 <= waited < 100 + took
    assert 0.55 < ran < took
    assert 60 <= wait <= 120
    assert 0.5 <= run <= 10


@pytest.mark.slow
def test_counts_are_written_while_the_worker_is_idle(blocking: Blocking, db: psycopg.Connection) -> None:
    client = blocking()
    client.handler("q")(lambda data: None)
    with working(client):
        for n in range(1, 3):
            client.queue("q").put(n)
            eventually(lambda n=n: value(db, "SELECT sum(done) FROM pgqueue.job_stats") == n)


@pytest.mark.slow
def test_a_locked_table_holds_up_no_ack(blocking: Blocking, db: psycopg.Connection, connect: Any) -> None:
    client = blocking()
    client.handler("q")(lambda data: None)
    other = connect()
    with working(client):
        with other.transaction():
            other.execute("LOCK TABLE pgqueue.tally_part")
            for n in range(30):
                client.queue("q").put(n)
            eventually(lambda: client.queue("q").stats()["done"] == 30)
            eventually(lambda: client.queue("q").stats()["total"] == 0)
        eventually(lambda: value(db, "SELECT sum(done) FROM pgqueue.job_stats") == 30)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Server:
    """Answers calls, or raises what is set."""

    def __init__(self) -> None:
        self.calls: list[Call[int]] = []
        self.error: Exception | None = None
        self.answer: int | None = 1

    def __call__(self, call: Call[int]) -> int | None:
        self.calls.append(call)
        if self.error is not None:
            raise self.error
        return self.answer


def test_a_lost_call_is_sent_again_as_it_was() -> None:
    clock, server = Clock(), Server()
    tallies = Tallies(clock)
    tallies.ran.append(("q", "j", 0.1, 0.2))
    server.error = ConnectionLost("lost")
    tallies.send(server)
    tallies.ran.append(("q", "j", 0.1, 0.2))
    tallies.send(server)
    assert len(server.calls) == 1, "not within the same second"
    clock.now += 1
    server.error = None
    tallies.send(server)
    clock.now += 1
    tallies.send(server)
    first, again, later = (call.args for call in server.calls)
    assert first == again
    assert later[:2] == (first[0], first[1] + 1)
    assert tallies.due_in() is None


def test_a_call_that_finds_the_table_locked_is_sent_again() -> None:
    clock, server = Clock(), Server()
    tallies = Tallies(clock)
    tallies.failed(failure(Taken(1, 2, 0, 0, None, "1", "q"), "too slow", Retry(), 0.0, state="timeout", job="j"))
    server.answer = None
    tallies.send(server)
    assert tallies.due_in() == 1
    server.answer = 1
    tallies.send(server, now=True)
    assert server.calls[0] == server.calls[1]
    assert '"retried": 1, "timeouts": 1' in server.calls[0].args[2]


def test_a_refused_call_is_given_up_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, server = Clock(), Server()
    tallies = Tallies(clock)
    server.error = NotAllowed("role x may not take from q")
    for _ in range(3):
        tallies.ran.append(("q", "j", 0.1, 0.2))
        tallies.send(server, now=True)
    assert len({call.args[1] for call in server.calls}) == 3
    assert len(caplog.messages) == 1
    assert tallies.due_in() is None


def test_times_beyond_all_bounds_can_be_sent(db: psycopg.Connection) -> None:
    client_calls: list[Call[int]] = []
    tallies = Tallies()
    db.execute("SELECT pgqueue.queue_id('q')")
    for seconds in (-1.0, 0.0, 0.001, 0.0011, 14400.0, 14401.0, 1e300, float("inf")):
        tallies.ran.append(("q", "j", seconds, seconds))

    def run(call: Call[int]) -> int:
        client_calls.append(call)
        return int(value(db, call.sql, *call.args))

    tallies.send(run)
    found = value(db, "SELECT waits FROM pgqueue.job_runs()")
    assert (found[0], found[1], found[20], found[21]) == (3, 1, 1, 3)


def test_more_jobs_than_a_call_may_have_become_one(db: psycopg.Connection) -> None:
    tallies, server = Tallies(), Server()
    db.execute("SELECT pgqueue.queue_id('q')")
    for n in range(1100):
        tallies.ran.append(("q", f"job {n}", 0.1, 0.1))
    tallies.send(server)
    (call,) = server.calls
    assert value(db, call.sql, *call.args) == 1000
    assert value(db, "SELECT done FROM pgqueue.job_runs() WHERE job = %s", OTHERS) == 101


# --- registration

WORKERS = "SELECT queues, concurrency, limits ->> 'grace', state FROM pgqueue.workers"


def test_a_worker_registers_and_leaves(blocking: Blocking, db: psycopg.Connection) -> None:
    client = blocking()
    client.handler("b")(lambda data: None)
    client.handler("a")(lambda data: None)
    with working(client, concurrency=3, grace=5):
        eventually(lambda: rows(db, WORKERS) == [(["a", "b"], 3, "5.0", "connected")])
        assert value(db, "SELECT version FROM pgqueue.workers") == pgqueue.__version__
    eventually(lambda: rows(db, WORKERS) == [])


def test_a_reload_registers_what_is_served_now(blocking: Blocking, db: psycopg.Connection) -> None:
    client = blocking()
    client.handler("old")(lambda data: None)
    with working(client) as worker:
        eventually(lambda: column(db, "SELECT queues FROM pgqueue.workers") == [["old"]])
        client.handler("new")(lambda data: None)
        worker.reload()
        eventually(lambda: column(db, "SELECT queues FROM pgqueue.workers") == [["new", "old"]])


@pytest.mark.slow
def test_two_workers_of_a_client_are_two(blocking: Blocking, db: psycopg.Connection) -> None:
    client = blocking()
    with working(client, handlers={"a": print}), working(client, handlers={"b": print}):
        eventually(lambda: column(db, "SELECT queues FROM pgqueue.workers ORDER BY queues") == [["a"], ["b"]])
    eventually(lambda: rows(db, WORKERS) == [])


@pytest.mark.slow
def test_a_worker_whose_session_was_given_up_registers_again(blocking: Blocking, db: psycopg.Connection) -> None:
    client = blocking(session_grace=0)
    client.handler("q")(lambda data: None)
    with working(client):
        before = eventually(lambda: row(db, "SELECT session FROM pgqueue.workers"))
        db.execute("SELECT pg_terminate_backend(backend_pid) FROM pgqueue.session")

        def swept() -> bool:
            db.execute("SELECT pgqueue.sweep()")
            after = row(db, "SELECT session FROM pgqueue.workers WHERE state = 'connected'")
            return after is not None and row(db, "SELECT id FROM pgqueue.session") == after

        eventually(swept)
    assert before


@pytest.mark.slow
def test_a_killed_workers_registration_ends(db: psycopg.Connection, dsn: str, start: Any) -> None:
    worker = start("keeper", dsn, "q")
    worker.hear()
    eventually(lambda: rows(db, WORKERS))
    worker.kill()

    def swept() -> bool:
        db.execute("SELECT pgqueue.sweep()")
        return rows(db, WORKERS) == []

    eventually(swept)
