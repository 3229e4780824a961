"""Cancelling tasks: on both shells, by the command line, and what their takers and workers are told."""

from __future__ import annotations

import asyncio
import pickle
import statistics
import threading
import time
from contextlib import AbstractContextManager
from typing import Any

import pytest
from eventually import eventually, soon_enough
from running import running
from statements import row, rows, value
from steady import Steady, steady

import pgqueue
from pgqueue import Worker
from pgqueue._engine import cancels
from pgqueue.errors import TaskCancelled, TaskNotTaken

pytestmark = pytest.mark.once

NOTICE = 0.05  # seconds from a cancel to its handler, in the median
OUTCOME = "SELECT state, error FROM pgqueue.outcome(%s)"


def working(client: pgqueue.Client, handler: Any, **options: Any) -> AbstractContextManager[Worker]:
    return running(Worker(client, {"q": handler}, **({"retry_delay": 0, "grace": 0} | options)))


# --- the calls


async def test_a_task_that_is_not_taken_is_cancelled_at_once(client, queue):
    task = await queue.put("x")
    assert await client.cancel(task, "withdrawn") == "cancelled"
    outcome = await task.outcome()
    assert (outcome.state, outcome.error, outcome.ended) == ("cancelled", "withdrawn", True)
    with pytest.raises(TaskCancelled, match=f"task {task.id} was cancelled: withdrawn") as caught:
        await client.results.get(task, 0)
    assert caught.value.reason == "withdrawn"
    assert await queue.take(0) is None


async def test_what_a_cancel_finds(client, queue):
    ready, taken, done, kept = [await queue.put(n, priority=n) for n in (4, 3, 1, 2)]
    await (await queue.take(0)).ack()
    await (await queue.take(0)).finish("result")
    await queue.take(0)
    assert await client.cancel_many([ready, taken, done, kept, 10**9]) == {
        ready.id: "cancelled", taken.id: "cancelling", done.id: "unknown", kept.id: "done", 10**9: "unknown",
    }  # fmt: skip
    assert [await task.cancel() for task in (ready, taken)] == ["cancelled", "cancelling"]
    assert (await queue.peek(taken)).state == "cancelling"


async def test_by_key(client, queue):
    task = await queue.put("x", key="k")
    assert await queue.cancel(key="other") == "unknown"
    assert await queue.cancel(key="k", reason="no") == "cancelled"
    assert await queue.cancel(task) == "cancelled"
    for wrong in ({}, {"task": 1, "key": "k"}):
        with pytest.raises(ValueError, match="needs a task or a key, and not both"):
            await queue.cancel(**wrong)
    with pytest.raises(pgqueue.errors.TaskIdRequired):
        await client.cancel("no id")
    with pytest.raises(pgqueue.NoQueue):
        await client.queue("nowhere").cancel(key="k")


async def test_in_the_callers_transaction(client, queue, transaction):
    task = await queue.put("x")
    assert await client.cancel(task, conn=transaction) == "cancelled"
    assert (await task.outcome()).state == "ready"
    await transaction.commit()
    assert (await task.outcome()).state == "cancelled"


async def test_its_taker_may_still_settle(client, queue):
    for end, state in (("ack", "done"), ("release", "cancelled"), ("bury", "cancelled"), ("fail", "cancelled")):
        await queue.put("x")
        task = await queue.take(0)
        assert await task.cancel() == "cancelling"
        assert (await getattr(task, end)()).state == state
    assert (await queue.stats())["total"] == 0


# --- task.cancelled


async def test_a_taker_sees_that_its_task_was_cancelled(shell, client, queue):
    await queue.put("x")
    await queue.put("y")
    task, other = await queue.take(0), await queue.take(0)
    cancelled = task.cancelled
    assert not cancelled.is_set()
    assert cancelled.reason is None
    assert await cancelled.wait(0) is False
    assert await shell.client().cancel(task, "stop") == "cancelling"
    assert await cancelled.wait(30) is True
    assert (cancelled.is_set(), task.cancelled.is_set(), cancelled.reason) == (True, True, "stop")
    assert not await other.cancelled.wait(0)
    with pytest.raises(ValueError, match="timeout"):
        await cancelled.wait(float("nan"))


async def test_one_that_was_cancelled_before_it_is_watched(shell, queue):
    await queue.put("x")
    task = await queue.take(0)
    await shell.client().cancel(task)
    assert await task.cancelled.wait(30)


async def test_only_a_taken_task_is_watched(queue):
    task = await queue.put("x")
    with pytest.raises(TaskNotTaken, match="only its taker hears"):
        _ = task.cancelled


def test_a_watched_task_can_be_pickled(blocking):
    queue = blocking().queue("q")
    queue.put("x")
    task = queue.take(0)
    assert not task.cancelled
    assert pickle.loads(pickle.dumps(task)) == task


def test_a_cancellation_while_the_listener_is_away_is_seen(db, blocking):
    client, other = blocking(session_grace=60), blocking()
    queue = client.queue("q")
    queue.put("x")
    task = queue.take(0)
    cancelled = task.cancelled
    pid = value(db, "SELECT backend_pid FROM pgqueue.sessions")
    with db.transaction():  # its session cannot be opened again before the commit
        db.execute("SELECT FROM pgqueue.session FOR UPDATE")
        db.execute("SELECT pg_terminate_backend(%s::int)", [pid])
        assert other.cancel(task) == "cancelling"
        assert not cancelled
    assert cancelled.wait(30)


def test_forged_notifications_tell_nothing(db, blocking):
    client = blocking()
    queue = client.queue("q")
    queue.put("x")
    task = queue.take(0)
    cancelled = task.cancelled
    session = value(db, "SELECT id FROM pgqueue.sessions")
    for payload in (str(task.id), "no id", "", "1,", "٣", "9" * 30, ",".join(map(str, range(1500)))):
        db.execute("SELECT pg_notify(%s, %s)", [f"pgqueue:session:{session}", payload])
    assert not cancelled.wait(0.3)
    assert len(client.shell.core.listener().cancels.unknown) <= cancels.MOST
    assert client.cancel(task) == "cancelling"
    assert cancelled.wait(30)


def test_a_question_that_fails_is_asked_again(db, blocking):
    client = blocking()
    queue = client.queue("q")
    queue.put("x")
    task = queue.take(0)
    cancelled = task.cancelled
    db.execute("ALTER FUNCTION pgqueue.cancelled_takes RENAME TO elsewhere")
    client.cancel(task)
    assert not cancelled.wait(0.5)
    db.execute("ALTER FUNCTION pgqueue.elsewhere RENAME TO cancelled_takes")
    assert cancelled.wait(30)


# --- workers


def test_an_async_handler_is_cancelled(db, blocking):
    client, begun, ended = blocking(), threading.Event(), threading.Event()

    async def handle(data: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    task = client.queue("q").put("x")
    with working(client, handle):
        assert begun.wait(30)
        assert client.cancel(task, "enough") == "cancelling"
        assert ended.wait(30)
        eventually(lambda: row(db, OUTCOME, task.id) == ("cancelled", "enough"))
    (attempt,) = client.results.attempts(task)
    assert (attempt.state, attempt.error) == ("cancelled", "it was cancelled: enough")
    assert attempt.began_at < attempt.ended_at


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_handler_that_finishes_anyway_is_done(db, blocking, kind):
    client, begun = blocking(), threading.Event()

    async def handle_async(data: Any, task: pgqueue.AsyncTask) -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "done all the same"
        return "not told"

    def handle(data: Any, task: pgqueue.Task) -> str:
        begun.set()
        return "done all the same" if task.cancelled.wait(60) else "not told"

    client.handler("q", keep_result=60)(handle_async if kind == "async" else handle)
    task = client.queue("q").put("x")
    worker = Worker(client, grace=0)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert begun.wait(30)
    client.cancel(task)
    assert client.results.get(task, 30) == "done all the same"
    worker.stop()
    thread.join(30)


def test_the_runner_of_a_cancelled_handler_goes_on(blocking):
    client, seen = blocking(), list[Any]()

    async def handle(data: Any) -> None:
        if data == "hang":
            seen.append(data)
            await asyncio.sleep(60)
        async with asyncio.timeout(30):  # fails in a task that still counts a cancellation
            await asyncio.sleep(0.01)
        seen.append(data)

    queue = client.queue("q")
    task = queue.put("hang")
    with working(client, handle, concurrency=1):
        eventually(lambda: seen == ["hang"])
        queue.put("next")
        client.cancel(task)
        eventually(lambda: seen == ["hang", "next"])
        eventually(lambda: queue.stats()["total"] == 0)


def test_a_task_that_waits_in_the_buffer_is_not_begun(db, blocking):
    client, gate, seen = blocking(), threading.Event(), list[Any]()

    def handle(data: Any) -> None:
        seen.append(data)
        if data == "hang":
            gate.wait(60)

    queue = client.queue("q")
    queue.put_many(range(200))  # quick ones: the worker takes ahead
    with working(client, handle, concurrency=1):
        eventually(lambda: len(seen) == 200 and queue.stats()["total"] == 0)
        queue.put_many(["hang", *range(200, 210)])
        eventually(lambda: row(db, "SELECT count(*) FROM pgqueue.takes")[0] > 1 and "hang" in seen)
        ids = [id for (id,) in rows(db, "SELECT id FROM pgqueue.tasks WHERE data <> '\"hang\"'")]
        states = client.cancel_many(ids)
        assert set(states.values()) <= {"cancelling", "cancelled"}
        eventually(lambda: row(db, "SELECT count(*) FROM pgqueue.tasks") == (1,))
        gate.set()
    assert seen == [*range(200), "hang"]


def test_a_cancel_that_comes_before_the_claims_answer_is_seen(blocking):
    """The notification names a task that the fetcher does not know yet."""
    client = blocking()
    queue = client.queue("q")
    queue.put("x")
    task = queue.take(0)
    told = threading.Event()

    class Source:
        known = False

        def takes(self, ids: Any) -> list[tuple[int, int]]:
            return [(task.id, task.token)] if self.known else []

        def cancelled(self, id: int, token: int, reason: str | None) -> None:
            assert (id, token, reason) == (task.id, task.token, "why")
            told.set()

    heard, source = client.shell.core.listener().cancels, Source()
    heard.add(source)
    eventually(lambda: heard._ear is not None and heard._ear.ready.is_set())
    client.cancel(task, "why")
    eventually(lambda: task.id in heard.unknown)
    assert not told.is_set()
    source.known = True
    heard.seen([(task.id, task.token)])
    assert told.wait(30)
    heard.remove(source)


@pytest.mark.parametrize("kind", ["async", "thread", "deaf"])
def test_a_cancelled_task_of_a_killed_worker_never_runs_again(db, dsn, blocking, start, kind):
    client = blocking()
    task = client.queue("q").put("x")
    worker = start("cancellable", dsn, kind)
    assert worker.hear() == {"begun": task.id}
    worker.stop()  # it cannot hear that
    assert client.cancel(task) == "cancelling"
    worker.kill()
    eventually(lambda: db.execute("SELECT FROM pgqueue.sweep()") and row(db, OUTCOME, task.id)[0] == "cancelled")
    assert client.queue("q").take(0) is None


def test_a_cancelled_task_of_a_worker_that_stops_ends_as_cancelled(db, dsn, blocking, start):
    client = blocking()
    task = client.queue("q").put("x")
    worker = start("cancellable", dsn, "deaf")
    assert worker.hear() == {"begun": task.id}
    assert client.cancel(task) == "cancelling"
    assert row(db, OUTCOME, task.id)[0] == "cancelling"
    worker.end()
    eventually(lambda: row(db, OUTCOME, task.id)[0] == "cancelled")


@pytest.mark.slow
@pytest.mark.timeout(900)  # with the wait for `undisturbed`
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handler_is_told_within_the_bound(dsn, blocking, start, undisturbed, kind):
    client = blocking()
    worker = start("cancellable", dsn, kind)

    def told(watch: Steady) -> float:
        task = client.queue("q").put("x")
        assert worker.hear() == {"begun": task.id}
        began = time.time()
        client.cancel(task)
        heard = worker.hear()
        assert heard["told"] == task.id
        return float(heard["at"]) - began - watch.lost(began, heard["at"])

    async def median() -> float:
        with steady(dsn) as watch:
            return statistics.median([await asyncio.to_thread(told, watch) for _ in range(7)])

    await soon_enough(median, within=NOTICE)


@pytest.mark.slow
def test_everything_at_once(db, dsn, blocking, start):
    """Workers are killed and tasks cancelled: each task ends once, as done or cancelled, and none is left."""
    client = blocking()
    seen, lock = dict[int, int](), threading.Lock()

    def handle(data: Any, task: pgqueue.Task) -> None:
        with lock:
            seen[task.id] = seen.get(task.id, 0) + 1
        if task.cancelled.wait(0.01):
            raise InterruptedError

    queue = client.queue("q")
    with working(client, handle, concurrency=4):
        ids = queue.put_many(range(200))
        states = [client.cancel(id) for id in ids[::2]]
        eventually(lambda: queue.stats()["total"] == 0)
    assert rows(db, "SELECT FROM pgqueue.cancellation") == []
    for id, state in zip(ids[::2], states, strict=True):
        ended = row(db, OUTCOME, id)[0]
        assert ended == "cancelled" or (state, ended) in (("cancelling", "unknown"), ("unknown", "unknown"))
        if state == "cancelled":
            assert id not in seen
    assert all(seen[id] == 1 for id in ids[1::2])


# --- attempts


async def test_the_attempts_of_a_task(client, queue):
    task = await queue.put("x")
    for text in ("first", "second"):
        await (await queue.take(0)).release(error=text)
    attempts = await client.results.attempts(task)
    assert [(one.number, one.state, one.error, one.traceback) for one in attempts] == [
        (1, "failed", "first", None), (2, "failed", "second", None),
    ]  # fmt: skip
    assert {one.worker for one in attempts} == {client.shell.core.label}
    assert all(one.began_at < one.ended_at for one in attempts)
    assert await client.results.attempts(10**9) == []


# --- the command line


def test_the_command(command, blocking, db):
    client = blocking()
    queue = client.queue("q")
    ready, taken = queue.put("x"), queue.put("y", priority=-1)
    queue.take(0)
    done = command("cancel", ready.id, taken.id, 999, "--reason", "no more")
    assert done.stdout.splitlines() == [f"{ready.id} cancelled", f"{taken.id} cancelling"]
    assert "task 999 was not found" in done.stderr
    assert done.returncode != 0
    assert row(db, OUTCOME, ready.id) == ("cancelled", "no more")
