"""Workers on a real database: what handlers may do, what becomes of their tasks, and how a worker ends.

Most run a worker in a thread. Signals and kills are tried on real processes that run `pgqueue worker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, eventually, in_time
from hurrying import hurry
from psycopg import sql
from steady import steady

import pgqueue
from pgqueue import Worker
from pgqueue._engine.outages import Absent
from pgqueue.worker import sending, settler

pytestmark = pytest.mark.once

TERMINATE = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class Gate:
    """Handlers that say that they began, and wait until they may go on."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def sync(self, data: Any) -> None:
        with self._inside(data):
            assert self._open.wait(30)

    async def aio(self, data: Any) -> None:
        with self._inside(data):
            while not self._open.is_set():
                await asyncio.sleep(0.005)

    @contextlib.contextmanager
    def _inside(self, data: Any) -> Iterator[None]:
        with self._lock:
            self.begun.append(data)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        yield
        with self._lock:
            self.at_once -= 1
            self.ended.append(data)


@pytest.fixture
def client(blocking: Callable[..., pgqueue.Client]) -> pgqueue.Client:
    return blocking()


@pytest.fixture
def queue(client: pgqueue.Client) -> pgqueue.Queue:
    return client.queue("q")


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


class Running:
    """A worker in a thread."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._worker.run()
        except BaseException as error:
            self.errors.append(error)

    def stop(self) -> None:
        self._worker.stop()

    def ended(self, within: float = 30.0) -> bool:
        self._thread.join(within)
        return not self._thread.is_alive()


@pytest.fixture
def work(client: pgqueue.Client, gate: Gate) -> Iterator[Callable[..., Running]]:
    """Starts a worker; it is stopped before its client is closed."""
    with contextlib.ExitStack() as stack:

        def start(
            handlers: dict[str, Any] | None = None, over: Any = None, retry_delay: float = 0, **options: Any
        ) -> Running:
            running = Running(Worker(over or client, handlers, retry_delay=retry_delay, **options))

            def end() -> None:
                gate.open()
                running.stop()
                assert running.ended()
                assert running.errors == []

            stack.callback(end)
            return running

        yield start


def counts(queue: pgqueue.Queue, *states: str) -> tuple[int, ...]:
    stats: dict[str, Any] = {**queue.stats()}
    return tuple(stats[state] for state in states)


def gone(queue: pgqueue.Queue) -> bool:
    return queue.stats()["total"] == 0


# --- handlers


def test_sync_and_async_handlers_in_one_worker(client, work):
    seen: list[Any] = []

    @client.handler("plain")
    def plain(data: Any) -> None:
        seen.append(("plain", data, threading.current_thread().name))

    @client.handler("awaited")
    async def awaited(data: Any) -> None:
        await asyncio.sleep(0)
        seen.append(("awaited", data, threading.current_thread().name))

    work()
    client.queue("plain").put_many([1, {"two": [2]}])
    client.queue("awaited").put_many([3, None])
    eventually(lambda: gone(client.queue("plain")) and gone(client.queue("awaited")))
    assert sorted((kind, str(data)) for kind, data, _ in seen) == [
        ("awaited", "3"),
        ("awaited", "None"),
        ("plain", "1"),
        ("plain", "{'two': [2]}"),
    ]
    assert {name for kind, _, name in seen if kind == "awaited"} == {"pgqueue-loop"}
    assert all(name.startswith("pgqueue-runner-") for kind, _, name in seen if kind == "plain")


def test_a_registered_handler_is_still_a_function(client):
    @client.handler("double")
    def double(data: int) -> int:
        return 2 * data

    assert double(4) == 8


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True])
def test_a_failed_task_is_tried_again_before_those_behind_it_in_its_lane(client, work, kept):
    """The second of five tasks fails twice; four runners are free to take the others."""
    began: list[int] = []

    @client.handler("q", keep_result=60 if kept else None)
    def handle(n: int) -> None:
        began.append(n)
        if n == 2 and began.count(2) < 3:
            raise RuntimeError("not yet")

    queue = client.queue("q")
    queue.put_many([1, 2, 3, 4, 5], lane="a")
    work(concurrency=4, retry_delay=0.3)
    eventually(lambda: gone(queue))
    assert began == [1, 2, 2, 2, 3, 4, 5]


def test_a_handler_that_names_task_gets_it(client, work):
    seen: list[Any] = []

    def plain(data: Any, task: pgqueue.Task) -> None:
        seen.append((data, task))

    async def awaited(data: Any, *, task: pgqueue.AsyncTask) -> None:
        seen.append((data, task))

    work({"plain": plain, "awaited": awaited})
    for name, kind in (("plain", pgqueue.Task), ("awaited", pgqueue.AsyncTask)):
        put = client.queue(name).put({"n": 1}, priority=-3, ttr=60)
        data, task = eventually(lambda: seen and seen.pop())
        assert type(task) is kind
        assert data is task.data
        assert (data, task.id, task.queue, task.state) == ({"n": 1}, put.id, name, "taken")
        assert (task.priority, task.attempts) == (-3, 0)
        assert task.deadline is not None


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_handlers_run_at_once_up_to_the_concurrency(queue, work, gate, kind):
    work({"q": getattr(gate, kind)}, concurrency=3)
    queue.put_many(range(10))
    eventually(lambda: gate.at_once == 3)
    gate.open()
    eventually(lambda: gone(queue))
    assert gate.most_at_once == 3
    assert sorted(gate.ended) == list(range(10))


def test_each_kind_has_its_own_concurrency(client, work, gate):
    work({"plain": gate.sync, "awaited": gate.aio}, concurrency=2)
    for name in ("plain", "awaited"):
        client.queue(name).put_many(range(5))
    eventually(lambda: gate.at_once == 4)


@pytest.mark.slow
def test_thousands_of_tasks_are_handled_once_each(client, work):
    seen: list[int] = []

    def plain(data: int) -> None:
        seen.append(data)

    async def awaited(data: int) -> None:
        seen.append(data)

    client.queue("plain").put_many(range(5000))
    client.queue("awaited").put_many(range(5000, 10_000))
    work({"plain": plain, "awaited": awaited})
    eventually(lambda: gone(client.queue("plain")) and gone(client.queue("awaited")))
    assert sorted(seen) == list(range(10_000))


def test_two_workers_share_a_queue(queue, blocking, work):
    seen: list[int] = []
    for client in (blocking(), blocking()):
        work({"q": seen.append}, over=client)
    for first in range(0, 2000, 100):
        queue.put_many(range(first, first + 100))
    eventually(lambda: gone(queue))
    assert sorted(seen) == list(range(2000))


async def test_a_worker_over_an_awaiting_client(queue, awaiting, work):
    seen: list[Any] = []
    client = awaiting()

    @client.handler("q")
    async def handle(data: Any, task: pgqueue.AsyncTask) -> None:
        seen.append((data, (await task.peek()).state))

    running = await asyncio.to_thread(work, over=client)
    task = await client.queue("q").put(1)
    await asyncio.to_thread(eventually, lambda: gone(queue))
    assert seen == [(1, "taken")]
    running.stop()
    assert await asyncio.to_thread(running.ended)
    assert (await client.queue("q").put(2)).id > task.id  # the client is as it was


@pytest.mark.parametrize("handlers", [None, {}])
def test_a_worker_without_a_handler_is_refused(client, handlers):
    with pytest.raises(
        ValueError,
        match=r"a worker needs a handler or a job: register one with @client\.job\(\) or @client\.handler\(\)",
    ):
        Worker(client, handlers)


@pytest.mark.parametrize(
    "wrong", [{"concurrency": 0}, {"max_attempts": 0}, {"retry_delay": -1}, {"handlers": {"": print}}]
)
def test_options_that_cannot_be_are_refused(client, wrong):
    with pytest.raises(ValueError, match=r"concurrency|max_attempts|retry_delay|name"):
        Worker(client, **({"handlers": {"q": print}} | wrong))


def test_run_raises_what_a_first_call_would(blocking, empty_dsn):
    with pytest.raises(pgqueue.SchemaError, match="pgqueue migrate up"):
        Worker(pgqueue.Client(empty_dsn), {"q": print}).run()


# --- acks


def test_the_ack_comes_soon_after_the_handler_when_there_is_little_to_do(queue, work):
    done = threading.Event()
    work({"q": lambda data: done.set()})

    def handled_to_gone() -> float:
        done.clear()
        queue.put(None)
        assert done.wait(30)
        since = Stopwatch()
        eventually(lambda: gone(queue))
        return since()

    for _ in range(5):
        in_time(handled_to_gone, within=settler.AGE + 0.25)  # and not when COUNT tasks have come together


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("verb", ["ack", "release", "bury"])
def test_a_handler_may_settle_its_own_task(queue, work, caplog, kind, verb):
    times = Counter[int]()
    settle: dict[str, Callable[[Any], Any]] = {
        "ack": lambda task: task.ack(),
        "release": lambda task: task.release(1000),
        "bury": lambda task: task.bury(error="not today"),
    }

    def plain(data: Any, task: pgqueue.Task) -> None:
        settle[verb](task)
        times[task.id] += 1

    async def awaited(data: Any, task: pgqueue.AsyncTask) -> None:
        await settle[verb](task)
        times[task.id] += 1

    caplog.set_level(logging.WARNING, "pgqueue")
    work({"q": plain if kind == "sync" else awaited, "after": lambda data: None})
    put = queue.put(1)
    eventually(lambda: times[put.id] == 1)
    after = pgqueue.Queue(queue._shell, "after")
    after.put(None)
    eventually(lambda: gone(after))  # an ack that the worker sends for the first would be through by now
    state = {"ack": None, "release": "delayed", "bury": "buried"}[verb]
    if state is None:
        assert gone(queue)
    else:
        assert queue.peek(put.id).state == state
    assert caplog.messages == []


def test_a_handler_may_ack_in_a_transaction_of_its_own(dsn, db, queue, work, caplog):
    db.execute("CREATE TABLE done (data int)")

    def handle(data: int, task: pgqueue.Task) -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute("INSERT INTO done VALUES (%s)", [data])
            task.ack(conn=connection)
            if task.attempts == 0:
                raise ValueError("rolled back")

    caplog.set_level(logging.WARNING, "pgqueue")
    work({"q": handle})
    queue.put(5)
    eventually(lambda: gone(queue))
    assert db.execute("SELECT data FROM done").fetchall() == [(5,)]
    (failed,) = caplog.messages
    assert "rolled back" in failed


def test_a_transaction_that_the_handler_rolled_back_leaves_the_ack_to_the_worker(dsn, queue, work):
    def handle(data: Any, task: pgqueue.Task) -> None:
        with psycopg.connect(dsn) as connection:
            task.ack(conn=connection)
            connection.rollback()

    work({"q": handle})
    queue.put(None)
    eventually(lambda: gone(queue))


@pytest.mark.slow
def test_a_task_that_outlives_its_time_to_run_is_handled_again(queue, blocking, work, caplog):
    """By another process: here, by another worker."""
    again = threading.Event()
    seen: list[int] = []

    def slow(data: Any, task: pgqueue.Task) -> None:
        seen.append(task.attempts)
        assert again.wait(30)

    def quick(data: Any, task: pgqueue.Task) -> None:
        seen.append(task.attempts)
        task.touch(60)
        again.set()
        eventually(lambda: refused(caplog))  # the first one's ack: the task is ours

    caplog.set_level(logging.WARNING, "pgqueue")
    work({"q": slow}, concurrency=2)
    put = queue.put(None, ttr=2)
    eventually(lambda: seen)
    work({"q": quick}, over=blocking())
    eventually(lambda: gone(queue))
    assert seen == [0, 1]
    (message,) = refused(caplog)
    assert message.startswith(f"a handled task could not be acked: task {put.id} is taken by ")


def refused(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "could not be acked" in message]


@pytest.mark.slow
def test_a_handler_may_touch_its_task(queue, work):
    seen: list[int] = []

    def handle(data: Any, task: pgqueue.Task) -> None:
        seen.append(task.attempts)
        since = Stopwatch()
        while since() < 2.5:  # longer than the ttr, and still ours
            task.touch()
            time.sleep(0.02)

    work({"q": handle}, concurrency=2)
    queue.put(None, ttr=2)
    eventually(lambda: gone(queue))
    assert seen == [0]


# --- failures


class Ends(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [ValueError("boom"), SystemExit(3), KeyboardInterrupt(), Ends(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_whatever_a_handler_raises_is_a_failed_attempt(queue, work, error, kind):
    seen: list[Any] = []

    def plain(data: Any, task: Any) -> None:
        seen.append((data, task.attempts))
        if data == "bad" and task.attempts < 3:
            raise error

    async def awaited(data: Any, task: pgqueue.AsyncTask) -> None:
        plain(data, task)

    # As many failures as there are runners: had one of them ended, the last task would wait for ever.
    work({"q": plain if kind == "sync" else awaited}, concurrency=1)
    queue.put_many(["bad", "good"])
    eventually(lambda: gone(queue))
    assert sorted(seen) == [("bad", 0), ("bad", 1), ("bad", 2), ("bad", 3), ("good", 0)]


def test_a_kicked_task_runs_again_after_its_last_attempt(queue, work):
    mended, runs = threading.Event(), []

    def handler(data: Any) -> None:
        runs.append(data)
        if not mended.is_set():
            raise ValueError("broken")

    work({"q": handler}, max_attempts=2)
    task = queue.put("data")
    eventually(lambda: task.peek().state == "buried")
    assert len(runs) == 2
    mended.set()
    assert queue.kick() == 1
    eventually(lambda: gone(queue))
    assert len(runs) == 3


def test_a_failed_task_waits_and_keeps_its_error(queue, work, caplog):
    def handle(data: Any) -> None:
        raise LookupError("no such\0user \ud800")

    work({"q": handle}, retry_delay=1000)
    put = queue.put(None)
    found = eventually(lambda: (task := queue.peek(put)).attempts and task)
    assert (found.state, found.attempts) == ("delayed", 1)
    assert found.error.startswith("LookupError: no such\\0user \\ud800 (test_worker.py:")
    assert found.error.endswith(", in handle)")
    (message,) = caplog.messages
    assert message.startswith(f"task {put.id} of q failed, again in ")
    assert "LookupError" in message


def test_back_off_is_within_full_jitter(db, queue, work):
    def handle(data: Any) -> None:
        raise ValueError("boom")

    unit = 1e6  # seconds: no delay is over before all are looked at
    work({"q": handle}, retry_delay=unit, max_retry_delay=10 * unit)
    queue.put_many([None] * 40)
    eventually(lambda: counts(queue, "delayed") == (40,))
    until = "SELECT extract(epoch FROM min(run_at) - now())::float, extract(epoch FROM max(run_at) - now())::float"
    low, high = db.execute(until + " FROM pgqueue.tasks").fetchone()
    assert low < unit / 2 < high <= unit  # all on one side of the middle: once in 2^39 runs

    db.execute("UPDATE pgqueue.task SET attempts = 10, state = 'R', run_at = NULL")
    db.execute("SELECT pgqueue._signal(id) FROM pgqueue.queue")
    eventually(lambda: counts(queue, "delayed") == (40,))
    low, high = db.execute(until + " FROM pgqueue.tasks").fetchone()
    assert low < 5 * unit < high <= 10 * unit


def test_the_last_failed_attempt_buries(queue, work, caplog):
    times = Counter[str]()

    def handle(data: str) -> None:
        times[data] += 1
        raise ValueError(f"no {times[data]}")

    work({"q": handle}, max_attempts=3)
    put = queue.put("x")
    eventually(lambda: counts(queue, "buried") == (1,))
    found = queue.peek(put)
    assert times["x"] == found.attempts == 3
    assert found.error.startswith("ValueError: no 3 (test_worker.py:")
    (said,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert said.getMessage() == f"task {put.id} of q is buried after 3 attempts: {found.error}"


@pytest.mark.slow
def test_a_task_whose_takers_died_too_often_is_buried_unrun(dsn, queue, blocking, work):
    watch = blocking()
    watch.queue("elsewhere").take(0)  # has a listener, which sweeps
    put = queue.put("poison")
    for died in range(2):
        with psycopg.connect(dsn, autocommit=True) as taker:
            taker.execute("SELECT pgqueue.open_session(grace => '0')")
            assert taker.execute("SELECT id FROM pgqueue.take('q')").fetchone() == (put.id,)
        eventually(lambda died=died: queue.peek(put).attempts == died + 1)
    seen: list[Any] = []
    work({"q": seen.append}, max_attempts=2)
    eventually(lambda: counts(queue, "buried") == (1,))
    assert seen == []
    assert queue.peek(put).error.startswith("not tried again: it came back too often")


def test_a_sync_handler_that_returns_an_awaitable_fails(queue, work):
    async def later(data: Any) -> None: ...

    work({"q": lambda data: later(data)}, max_attempts=1)
    put = queue.put(None)
    eventually(lambda: counts(queue, "buried") == (1,))
    assert "define it with `async def`" in queue.peek(put).error


# --- what is held


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_slow_handlers_leave_the_other_tasks_to_others(queue, blocking, work, gate, kind):
    work({"q": getattr(gate, kind)}, concurrency=2)
    queue.put_many(range(20))
    eventually(lambda: len(gate.begun) == 2)
    since = Stopwatch()
    while since() < 0.3:  # long enough for a worker that takes ahead to do so
        assert counts(queue, "taken", "ready") == (2, 18)
    others = blocking().queue("q").take_many(20, timeout=0)
    assert sorted([task.data for task in others] + gate.begun) == list(range(20))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_what_was_taken_ahead_goes_back_when_the_handlers_block(queue, blocking, work, gate, kind):
    quick = Counter[str]()

    def plain(data: Any) -> None:
        if data == "quick":
            quick[data] += 1
        else:
            gate.sync(data)

    async def awaited(data: Any) -> None:
        if data == "quick":
            quick[data] += 1
        else:
            await gate.aio(data)

    work({"q": plain if kind == "sync" else awaited}, concurrency=2)
    queue.put_many(["quick"] * 500)
    eventually(lambda: gone(queue))
    queue.put_many(range(40))
    eventually(lambda: len(gate.begun) == 2)
    eventually(lambda: counts(queue, "taken", "ready") == (2, 38))
    assert len(blocking().queue("q").take_many(40, timeout=0)) == 38


# --- trouble


@pytest.mark.slow
def test_lost_connections_stop_nothing_and_lose_nothing(db, queue, work, caplog):
    seen = Counter[int]()

    def handle(data: int) -> None:
        seen[data] += 1
        time.sleep(0.002)

    queue.put_many(range(1500))
    work({"q": handle}, concurrency=4)
    for part in (200, 600, 1000):
        eventually(lambda part=part: len(seen) > part)
        db.execute(TERMINATE)
    eventually(lambda: gone(queue))
    assert sorted(seen) == list(range(1500))
    assert not [record for record in caplog.records if record.exc_info]  # known troubles, in a line each
    queue.put(5000)
    eventually(lambda: seen[5000] == 1)


@pytest.mark.slow
def test_a_worker_whose_server_is_away_can_be_stopped(pg_server, dsn, monkeypatch, gate):
    monkeypatch.setattr(sending, "LAST", 0.5)
    with pgqueue.Client(dsn, poll=None) as client:
        client.queue("q").put(1)
        running = Running(Worker(client, {"q": gate.sync, "idle": print, "aio": gate.aio}))
        eventually(lambda: gate.begun == [1])
        hurry(client, connect_timeout=0.5)
        with away(pg_server, client):
            eventually(lambda: client.shell.core.listener().session is None)
            running.stop()
            gate.open()
            assert running.ended(30)
    assert running.errors == []


@contextlib.contextmanager
def away(pg_server: Any, client: pgqueue.Client) -> Iterator[None]:
    """As if there were no server: nobody gets into the database, and who was in it is out."""
    name = str(psycopg.conninfo.conninfo_to_dict(client.shell.core.conninfo())["dbname"])
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    with pg_server.connect() as admin:
        admin.execute(allow.format(sql.Identifier(name), sql.SQL("false")))
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            admin.execute(allow.format(sql.Identifier(name), sql.SQL("true")))


def test_a_worker_of_a_process_with_many_descriptors_waits_for_the_server(worker_without_server, monkeypatch):
    """select() raises for descriptors above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 1200)), hard))
    pipe = os.pipe

    def high_pipe() -> tuple[int, int]:
        """Open descriptors up to 1023 would do as well, but for one that something else closes at that moment."""
        low = pipe()
        try:
            return fcntl.fcntl(low[0], fcntl.F_DUPFD_CLOEXEC, 1024), fcntl.fcntl(low[1], fcntl.F_DUPFD_CLOEXEC, 1024)
        finally:
            for end in low:
                os.close(end)

    try:
        monkeypatch.setattr(os, "pipe", high_pipe)
        worker, waits = worker_without_server()
        monkeypatch.setattr(os, "pipe", pipe)
        assert min(worker._pipe) > 1023
        running = Running(worker)
        assert waits.wait(30)
        worker.stop()
        assert running.ended(30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert running.errors == []


@pytest.fixture
def worker_without_server(blocking, monkeypatch) -> Any:
    def made() -> tuple[Worker, threading.Event]:
        client, waits = blocking(), threading.Event()

        def listener(patience: float | None = None) -> Any:
            waits.set()
            raise Absent("there is no server")

        monkeypatch.setattr(client.shell.core, "listener", listener)
        return Worker(client, {"q": print}), waits

    return made


def test_closing_the_client_ends_its_worker(blocking, gate):
    client = blocking()
    running = Running(Worker(client, {"plain": gate.sync, "awaited": gate.aio}))
    client.queue("plain").put(1)
    eventually(lambda: gate.begun == [1])
    client.close()
    gate.open()
    assert running.ended(30)
    assert running.errors == []


# --- stopping


def test_a_stop_finishes_what_is_under_way_and_takes_nothing_more(client, work, gate):
    handled: list[Any] = []
    others = set(threading.enumerate())

    async def awaited(data: Any) -> None:
        handled.append(data)

    running = work({"plain": gate.sync, "awaited": awaited}, concurrency=2)
    plain, other = client.queue("plain"), client.queue("awaited")
    plain.put_many(range(5))
    eventually(lambda: len(gate.begun) == 2)
    other.put("before")
    eventually(lambda: gone(other))
    running.stop()
    eventually(lambda: not any(one.name == "pgqueue-loop" for one in set(threading.enumerate()) - others))
    other.put("after")
    assert counts(plain, "taken", "ready") == (2, 3)
    gate.open()
    assert running.ended()
    assert counts(plain, "total", "ready") == (3, 3)
    assert counts(other, "total", "ready") == (1, 1)
    assert (sorted(gate.ended), handled) == ([0, 1], ["before"])


@pytest.mark.slow
def test_stop_before_run_and_twice(client, queue):
    queue.put(1)
    worker = Worker(client, {"q": print})
    worker.stop()
    worker.stop()
    running = Running(worker)
    assert running.ended(30)
    assert counts(queue, "taken") == (0,)


def test_workers_can_follow_each_other_on_a_client(queue, work):
    seen: list[int] = []
    others = threading.enumerate()
    for n in range(5):
        running = work({"q": seen.append, "other": asyncio.sleep})
        queue.put(n)
        eventually(lambda: gone(queue))
        running.stop()
        assert running.ended()
    assert seen == list(range(5))
    own = {"pgqueue-listener": 1, "pgqueue-scheduler": 1, "pgqueue-worker-0": 1}  # the client's
    eventually(lambda: ours(others) == own)  # the thread that ends late handlers leaves a moment after the worker


def ours(others: Sequence[threading.Thread]) -> Counter[str]:
    """The threads by their names, without `others`: handlers of other tests may not end."""
    now = [thread.name for thread in threading.enumerate() if thread not in others]
    return Counter(name for name in now if name.startswith("pgqueue"))


# --- processes

APP = """
    import pathlib, signal, threading, time
    import pgqueue

    here = pathlib.Path.cwd()
    client = pgqueue.Client()

    @client.handler("q")
    def handle(data):
        if data != "quick":
            (here / f"begun-{data}").touch()
            while not (here / "go").exists():
                time.sleep(0.005)
        (here / "ended").open("a").write(f"{data}\\n")

    @client.handler("awaited")
    async def awaited(data):
        pass

    @client.handler("signals")
    def signals(data):
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
"""


class Process:
    """`pgqueue worker` on the application above."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        (folder / "app.py").write_text(textwrap.dedent(APP))
        self.log = folder / "log"
        with self.log.open("w") as log:
            command = [sys.executable, "-m", "pgqueue", "-v", "worker", "app:client", "--concurrency", "2"]
            self.process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, "PGQUEUE_DSN": dsn}, stdout=log, stderr=log
            )

    def begun(self) -> set[str]:
        return {path.name.removeprefix("begun-") for path in self.folder.glob("begun-*")}

    def ended(self) -> list[str]:
        path = self.folder / "ended"
        return path.read_text().split() if path.exists() else []

    def go(self) -> None:
        (self.folder / "go").touch()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start_process(tmp_path: Path, dsn: str) -> Iterator[Callable[[], Process]]:
    """Starts worker processes."""
    with contextlib.ExitStack() as stack:

        def one_more() -> Process:
            process = Process(Path(tempfile.mkdtemp(dir=tmp_path)), dsn)
            stack.callback(process.end)
            return process

        yield one_more


@pytest.fixture
def process(start_process: Callable[[], Process]) -> Process:
    return start_process()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_a_worker_process_in_order(queue, dsn, process, number):
    queue.put_many(["quick"] * 200)  # so that it takes ahead
    eventually(lambda: gone(queue))
    queue.put_many(range(50))
    eventually(lambda: len(process.begun()) == 2)
    process.process.send_signal(number)
    eventually(lambda: "stopping" in process.log.read_text())
    with steady(dsn) as watch:
        eventually(lambda: counts(queue, "taken", "ready") == (2, 48))
        assert watch() < 0.5  # sooner than tasks that it does not start
    assert process.process.poll() is None
    process.go()
    assert process.process.wait(30) == 0
    assert sorted(process.ended()[200:]) == sorted(process.begun())
    assert counts(queue, "total", "ready") == (48, 48)
    log = process.log.read_text()
    assert "Traceback" not in log
    assert "Warning" not in log


@pytest.mark.slow
def test_a_signal_that_does_not_reach_the_main_thread_ends_it_too(client, process):
    """As one that comes just before the main thread goes to sleep: it interrupts no system call there."""
    client.queue("signals").put(1)
    assert process.process.wait(30) == 0
    assert client.queue("signals").stats()["total"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_second_signal_ends_a_worker_process_at_once(queue, process, number, code):
    queue.put(1)
    eventually(process.begun)
    process.process.send_signal(number)
    eventually(lambda: "stopping" in process.log.read_text())
    process.process.send_signal(number)
    assert process.process.wait(20) == code  # the grace is longer
    assert process.ended() == []
    assert "Traceback" not in process.log.read_text()


@pytest.mark.slow
def test_the_tasks_of_a_killed_worker_are_back_within_a_second(queue, start_process):
    def kill_to_back() -> float:
        process = start_process()
        queue.put_many(range(5))
        eventually(lambda: len(process.begun()) == 2)
        others = queue.take_many(3, timeout=0)  # this client has a listener from now on
        process.process.kill()
        since = Stopwatch()
        back = queue.take_many(2, timeout=5)
        seconds = since()
        assert sorted(task.data for task in others + back) == list(range(5))
        assert {str(task.data) for task in back} == process.begun()
        queue.ack_many(others + back)
        return seconds

    in_time(kill_to_back, within=1.0)
