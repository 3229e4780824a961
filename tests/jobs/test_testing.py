"""The helpers for applications' tests: in memory with a clock, and drained from a real database."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import unittest
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eventually import eventually

import pgqueue
from pgqueue import AsyncTask, Bury, Client, Retry, RetryLater, Task
from pgqueue.errors import NoSchedule
from pgqueue.testing import drain, without_database
from pgqueue.testing.unittest import JobsMixin

pytestmark = pytest.mark.once

NOWHERE = "postgresql://127.0.0.1:1/nowhere"


@pytest.fixture
def client() -> Client:
    return Client(NOWHERE, connect_timeout=0.2)


# --- in memory


def test_tasks_are_kept_and_run_on_demand(client: Client) -> None:
    done: list[str] = []

    @client.job("mail", name="send", keep_result=60)
    def send(to: str, at: datetime | None = None) -> int:
        done.append(to)
        return len(to)

    with without_database(client) as tasks:
        task = send.put("ada", at=datetime(2026, 1, 1, tzinfo=UTC))
        send.options(priority=-1).put("bob")
        assert (done, len(tasks), tasks[0].job, tasks[0].state) == ([], 2, "send", "ready")
        assert tasks[0].args == {"to": "ada", "at": "2026-01-01T00:00:00Z"}
        attempts = tasks.run()
        assert done == ["bob", "ada"]
        assert [(one.id, one.job, one.state) for one in attempts] == [(2, "send", "done"), (1, "send", "done")]
        assert (tasks.of(task).state, tasks.of(task).result) == ("done", 3)
        assert tasks.run() == []
    with pytest.raises(pgqueue.Error):
        send.put("cid")


def test_a_put_may_run_its_task_at_once(client: Client) -> None:
    done: list[str] = []

    @client.job()
    def first() -> None:
        done.append("first")
        second.put()

    @client.job()
    async def second() -> None:
        done.append("second")

    with without_database(client, inline=True) as tasks:
        first.put()
        assert done == ["first", "second"]
        second.options(delay=5).put()
        assert (done, tasks[2].state) == (["first", "second"], "delayed")
        tasks.advance(5)
        tasks.run()
        assert len(done) == 3


def test_retries_come_at_the_time_of_the_clock(client: Client) -> None:
    tried: list[datetime] = []

    @client.job(retry=Retry(attempts=3, delay=10, factor=3, jitter=False))
    def fail() -> None:
        tried.append(tasks.now)
        raise OSError("disk")

    with without_database(client, now=datetime(2026, 3, 1, tzinfo=UTC)) as tasks:
        task = fail.put()
        assert [one.state for one in tasks.run()] == ["delayed"]
        tasks.advance(timedelta(seconds=9))
        assert tasks.run() == []
        with pytest.raises(OSError, match="disk"):
            tasks.run_all()
        kept = tasks.of(task)
        assert (kept.state, kept.attempts, [one.delay for one in kept.history]) == ("buried", 3, [10, 30, None])
        assert kept.error is not None
        assert kept.error.startswith("OSError: disk (test_testing.py:")
        assert [moment.second for moment in tried] == [0, 10, 40]


def test_a_job_that_advances_the_clock_beyond_its_timeout_has_timed_out(client: Client) -> None:
    @client.job(timeout=30, retry=Retry(attempts=1))
    def slow(seconds: float) -> None:
        tasks.advance(seconds)

    with without_database(client) as tasks:
        slow.put(29)
        slow.put(31)
        with pytest.raises(pgqueue.TimeLimitExceeded, match="timeout of 30 s"):
            tasks.run()
        assert [task.state for task in tasks] == ["done", "buried"]


def test_a_handler_settles_its_task_by_its_verbs(client: Client) -> None:
    @client.job("mail")
    def settle(task: Task, how: str) -> None:
        if how == "release":
            task.release(60, error="later") if task.attempts == 0 else None
        elif how == "bury":
            task.bury(error="no")
        elif how == "ack":
            task.ack(put=[settle.prepare("done")])

    @client.job("mail")
    async def settle_async(task: AsyncTask) -> None:
        await task.release(5)

    with without_database(client, propagate=False) as tasks:
        for how in ("release", "bury", "ack"):
            settle.put(how)
        settle_async.put()
        tasks.run()
        assert [(one.state, one.error) for one in tasks] == [
            ("delayed", "later"),
            ("buried", "no"),
            ("done", None),
            ("delayed", None),
            ("done", None),
        ]
        with pytest.raises(RuntimeError, match="needs a database"):
            settle.put("done").peek()


def test_what_can_never_run_is_buried_with_the_difference(client: Client) -> None:
    @client.job(name="count")
    def count(n: int) -> None: ...

    with without_database(client) as tasks:
        with pytest.raises(pgqueue.BadArguments):
            count.put("x")  # type: ignore[arg-type]
        count.put(1)
        tasks[0].data["args"] = {"m": 1}
        with pytest.raises(Bury, match="lacks 'n' and has unknown 'm'"):
            tasks.run()


def test_keys_and_what_a_handler_raises_act_in_memory(client: Client) -> None:
    tried: list[int] = []

    @client.job(retry=Retry(attempts=2))
    def wait(n: int) -> None:
        tried.append(n)
        if len(tried) < 4:
            raise RetryLater(60, counts=False)

    with without_database(client) as tasks:
        first = wait.options(key="k").put(1)
        again = wait.options(key="k").put(2)
        assert (again.id, again.existed) == (first.id, True)
        tasks.run_all()
        assert (tried, tasks.of(first).state, tasks.of(first).attempts) == ([1] * 4, "done", 0)
        assert wait.options(key="k").put(3).id != first.id


def test_a_task_that_puts_itself_for_ever_is_an_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgqueue.testing.memory.MOST", 20)

    @client.job()
    def again() -> None:
        again.put()

    with without_database(client) as tasks:
        again.put()
        with pytest.raises(RuntimeError, match="20 runs"):
            tasks.run()


async def test_async_code_puts_into_memory_too() -> None:
    client = pgqueue.AsyncClient(NOWHERE)

    @client.job(keep_result=1)
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    with without_database(client) as tasks:
        task = await double.aput(4)
        assert await double.aput_many([(1,), {"n": 2}]) == [2, 3]
        tasks.run()
        assert [one.result for one in tasks] == [8, 2, 4]
        assert tasks.of(task).state == "done"


def test_a_clock_without_a_time_zone_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="time zone"), without_database(client, now=datetime(2026, 1, 1)):
        pass


# --- a real database


def test_drain_runs_everything_in_the_queues(blocking: Callable[..., Client]) -> None:
    client, done = blocking(), list[Any]()

    @client.job("mail", keep_result=60, retry=Retry(attempts=2, delay=3600))
    def send(to: str) -> str:
        done.append(to)
        if to == "bad":
            raise OSError(to)
        return to

    @client.job("mail")
    async def send_async(to: str) -> None:
        send.put(to)

    @client.job("loop", keep_result=60)
    async def count(n: int) -> int:
        return n + 1

    client.handler("raw")(done.append)
    client.batch_handler("rows", 5)(lambda tasks: done.extend(task.data for task in tasks))
    bad = send.put("bad")
    send_async.put("ada")
    counted = count.put(1)
    client.queue("raw").put("raw")
    client.queue("rows").put("row")
    attempts = drain(client)
    assert sorted(done) == ["ada", "bad", "raw", "row"]
    assert sorted(one.state for one in attempts) == ["delayed", *["done"] * 5]
    assert counted.result(0) == 2
    assert bad.peek().state == "delayed"
    with pytest.raises(OSError, match="bad"):
        drain(client, delayed=True)
    assert bad.peek().state == "buried"
    assert drain(client, delayed=True) == []


def test_drain_leaves_a_retry_that_is_due_before_the_end(
    blocking: Callable[..., Client], db: psycopg.Connection
) -> None:
    client, runs = blocking(), list[str]()

    def is_due() -> bool:
        db.execute("SELECT pgqueue.promote_all()")
        return retry.peek().state != "delayed"  # drain may hold it by now

    @client.job("jobs", retry=Retry(delay=0.001, jitter=False))
    def fails() -> None:
        runs.append("fails")
        raise OSError("no")

    @client.job("jobs")
    def waits() -> None:
        runs.append("waits")
        eventually(is_due)

    retry = fails.put()
    waits.put()
    assert [one.state for one in drain(client)] == ["delayed", "done"]
    assert runs == ["fails", "waits"]
    left = retry.peek()
    assert (left.state, left.attempts) == ("ready", 1)
    assert [one.state for one in drain(client)] == ["delayed"]


@pytest.mark.slow
async def test_drain_runs_the_jobs_of_an_async_client(awaiting: Callable[..., pgqueue.AsyncClient]) -> None:
    client = awaiting()
    done: list[int] = []

    @client.job("mail")
    async def send(task: AsyncTask, n: int) -> None:
        done.append(n)
        await task.ack()

    await send.aput(1)
    attempts = await asyncio.to_thread(drain, client)
    assert (done, [one.state for one in attempts]) == ([1], ["done"])


def test_drain_gives_the_tasks_of_a_batch_the_errors_that_a_worker_keeps(blocking: Callable[..., Client]) -> None:
    """What a handler returns for a task has no place in the code."""
    client = blocking()
    wrong = dict(zip(client.queue("rows").put_many([1, 2, 3]), (ValueError("a"), "b", None), strict=True))
    client.batch_handler("rows")(lambda tasks: {task.id: wrong[task.id] for task in tasks if wrong[task.id]})
    attempts = drain(client, retry=Retry(attempts=1), propagate=False)
    assert [one.error for one in attempts] == ["ValueError: a", "b", None]


# --- hooks


def hooked(client: Client | pgqueue.AsyncClient, seen: list[str]) -> None:
    """Two hooks, and two jobs of the queue `mail` that ask for them."""

    @client.on_start
    def engine() -> Iterator[str]:
        seen.append("engine begins")
        yield "engine"
        seen.append("engine ends")

    @client.on_start
    async def session() -> AsyncIterator[str]:
        await asyncio.sleep(0)
        seen.append("session begins")
        yield "session"
        seen.append("session ends")

    @client.job("mail", name="first")
    def first() -> None:
        seen.append(f"first has the {engine()}")

    @client.job("mail", name="second")
    async def second() -> None:
        seen.append(f"second has the {engine()} and the {session()}")


HOOKED = [
    *("engine begins", "session begins"),
    *("first has the engine", "second has the engine and the session"),
    *("session ends", "engine ends"),
]


@pytest.mark.parametrize("inline", [False, True])
def test_hooks_begin_before_the_first_run_and_end_with_the_block(client: Client, inline: bool) -> None:
    seen: list[str] = []
    hooked(client, seen)
    with without_database(client):
        pass
    assert seen == []
    for _ in range(2):
        with without_database(client, inline=inline) as tasks:
            for name in ("first", "second"):
                client.jobs.find(name).put()  # type: ignore[union-attr]
            tasks.run()
        assert seen == HOOKED
        seen.clear()


async def test_hooks_begin_and_end_with_a_drain(
    blocking: Callable[..., Client], awaiting: Callable[..., pgqueue.AsyncClient]
) -> None:
    for client in (blocking(), awaiting()):
        seen: list[str] = []
        hooked(client, seen)
        for name in ("first", "second"):
            await asyncio.to_thread(client.jobs.find(name).put)  # type: ignore[union-attr]
        assert [one.state for one in await asyncio.to_thread(drain, client)] == ["done", "done"]
        assert seen == HOOKED


@pytest.mark.parametrize("when", ["begins", "ends"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_hook_that_fails_fails_the_test(client: Client, is_async: bool, when: str) -> None:
    def fail(now: str) -> None:
        if now == when:
            raise OSError("no disk")

    def hook() -> Iterator[None]:
        fail("begins")
        yield
        fail("ends")

    async def async_hook() -> AsyncIterator[None]:
        fail("begins")
        yield
        fail("ends")

    if is_async:
        client.on_start(async_hook)
    else:
        client.on_start(hook)

    @client.job("mail")
    def send() -> None: ...

    def run() -> None:
        with without_database(client) as tasks:
            send.put()
            kept.extend(tasks)
            tasks.run()

    kept: list[Any] = []
    with pytest.raises(pgqueue.Error, match=r"hook .* failed.*: OSError: no disk"):
        run()
    assert kept[0].state == ("ready" if when == "begins" else "done")


# --- schedules


@pytest.mark.slow
def test_the_clock_puts_the_tasks_of_schedules(client: Client) -> None:
    ran: list[tuple[str, datetime]] = []

    @client.cron("0 9 * * mon-fri", tz="Europe/Berlin", name="digest", args={"to": "all"})
    @client.job("mail")
    def digest(to: str) -> None:
        ran.append((to, tasks.now))

    @client.cron(every=timedelta(minutes=90), name="clean")
    @client.job("jobs")
    def clean() -> None: ...

    @client.cron(every=60, name="plain")
    @client.handler("plain")
    def plain(data: Any) -> None: ...

    friday = datetime(2026, 3, 27, tzinfo=UTC)  # on Sunday the clocks of Berlin go forward
    with without_database(client, inline=True, now=friday) as tasks:
        tasks.advance(timedelta(days=1))
        assert len(tasks) == 0
        tasks.start_schedules("digest")
        tasks.advance(timedelta(days=4))
        monday, tuesday = datetime(2026, 3, 30, 7, tzinfo=UTC), datetime(2026, 3, 31, 7, tzinfo=UTC)
        assert ran == [("all", monday), ("all", tuesday)]
        assert tasks.now == friday + timedelta(days=5)
        assert tasks[0].data["headers"] == {
            "schedule": "digest",
            "scheduled_at": "2026-03-30T07:00:00.000000Z",
            "schedule_cron": "0 9 * * mon-fri",
            "schedule_tz": "Europe/Berlin",
        }
    with without_database(client, now=friday) as tasks:
        tasks.start_schedules()
        tasks.advance(timedelta(hours=3))
        assert [(task.job, task.state, task.run_at - friday) for task in tasks] == [
            (clean.name, "ready", timedelta(hours=1.5)),
            (clean.name, "ready", timedelta(hours=3)),
        ]
        assert tasks[0].data["headers"]["schedule_every"] == "5400"
        with pytest.raises(RuntimeError, match="10000 tasks of schedules in one step"):
            tasks.advance(timedelta(days=999))
        for unknown in ("plain", "no"):
            with pytest.raises(NoSchedule, match=r"declares no schedule .* of a job"):
                tasks.start_schedules(unknown)


def test_a_schedules_key_keeps_its_tasks_apart(client: Client) -> None:
    @client.cron(every=60, name="clean", key="clean")
    @client.job("jobs")
    def clean() -> None: ...

    with without_database(client) as tasks:
        tasks.start_schedules()
        tasks.advance(180)
        assert len(tasks) == 1
        tasks.run()
        tasks.advance(60)
        assert [task.state for task in tasks] == ["done", "ready"]


# --- frameworks

APPLICATION = Client(NOWHERE, connect_timeout=0.2)


@APPLICATION.on_start
def post() -> Iterator[list[str]]:
    yield SENT


@APPLICATION.cron(every=3600, name="hourly", args={"to": "hourly"})
@APPLICATION.job(name="app.send")
def app_send(to: str) -> None:
    post().append(to)


SENT: list[str] = []


class AppTest(JobsMixin, unittest.TestCase):
    __test__ = False  # run by the test below
    client = APPLICATION

    def test_it(self) -> None:
        app_send.put("ada")
        assert len(self.tasks) == 1
        self.tasks.run()
        self.tasks.start_schedules()
        self.tasks.advance(3600)
        self.tasks.run()


def test_the_mixin_for_unittest() -> None:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(AppTest).run(result)
    assert (result.testsRun, result.errors, result.failures, SENT) == (1, [], [], ["ada", "hourly"])
    with pytest.raises(pgqueue.Error):
        app_send.put("bob")


FIXTURES = """
import pytest, pgqueue
pytest_plugins = ["pgqueue.testing.fixtures"]
client = pgqueue.Client("postgresql://127.0.0.1:1/nowhere")
done = []

@client.on_start
def post():
    yield done

@client.cron(every=3600, name="hourly", args={"to": "hourly"})
@client.job()
def send(to: str) -> None:
    post().append(to)

@pytest.fixture
def pgqueue_client():
    return client
"""

TESTS = """
from conftest import done, send

def test_later(pgqueue_tasks):
    send.put("ada")
    assert done == []
    pgqueue_tasks.run()
    assert done == ["ada"]

def test_at_once(pgqueue_inline):
    send.put("bob")
    assert done == ["ada", "bob"]
    pgqueue_inline.start_schedules()
    pgqueue_inline.advance(3600)
    assert done == ["ada", "bob", "hourly"]
"""


@pytest.mark.slow
def test_the_fixtures_for_pytest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(FIXTURES)
    (tmp_path / "test_app.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path, "-c", os.devnull],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
