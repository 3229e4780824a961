"""What became of a task: status, result, failure and progress, on both shells, by hand and by workers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from eventually import PATIENCE, Stopwatch, eventually, soon
from processes import programs
from statements import rows, settled_by, value
from waiters import LISTENERS, listening

import pgqueue
from pgqueue import Worker
from pgqueue._calls import call as calls
from pgqueue._calls.call import Refused
from pgqueue._calls.take import Taken
from pgqueue._engine import looks, switchboard
from pgqueue._engine.outages import Outage
from pgqueue.worker import settler as settler_module
from pgqueue.worker.settler import COUNT, Settler

pytestmark = pytest.mark.once


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but an announcement can end a wait."""
    monkeypatch.setattr(looks, "POLL", float("inf"))


# --- status


async def test_the_states_of_a_task(client, queue):
    before = datetime.now(UTC) - timedelta(seconds=1)
    task = await queue.put("x")
    assert (await task.outcome()).state == "ready"
    taken = await queue.take(0)
    status = await client.results.outcome(task.id)
    assert (status.id, status.state, status.queue, status.attempts, status.error) == (task.id, "taken", "q", 0, None)
    assert status.holder == client.shell.core.label
    assert before < status.updated_at < datetime.now(UTC) + timedelta(seconds=1)
    assert not status.ended
    await taken.release(60, error="boom")
    status = await client.results.outcome(str(task.id))
    assert (status.state, status.attempts, status.error, status.holder) == ("delayed", 1, "boom", None)
    await task.delete()
    status = await task.outcome()
    assert status == pgqueue.types.Outcome(id=task.id, state="unknown")
    assert status.ended


async def test_of_a_plain_ack_nothing_is_known(client, queue):
    await queue.put("x")
    task = await (await queue.take(0)).ack()
    assert (await task.outcome()).state == "unknown"
    with pytest.raises(pgqueue.errors.ResultUnknown, match=f"task {task.id} is gone or never existed") as caught:
        await task.result()
    assert caught.value.task_id == task.id


# --- results by hand


@pytest.mark.parametrize("result", [None, 0, "done", {"pages": [1, 2.5, "ü"]}])
async def test_finish_keeps_the_result(client, queue, result):
    put = await queue.put("x")
    task = await queue.take(0)
    done = await task.finish(result)
    assert (done.state, done.token) == ("done", None)
    status = await client.results.outcome(put)
    assert (status.state, status.result, status.ended) == ("done", result, True)
    assert await put.result() == result
    assert await client.results.get(str(put.id), 0) == result


async def test_finish_and_fail_by_id(client, queue):
    done, failed = [await queue.put(n) for n in range(2)]
    await queue.take_many(2)
    await queue.finish(done.id, {"a": 1}, keep=60)
    assert await client.results.get(done.id) == {"a": 1}
    await queue.fail(failed, "why", keep=60)
    with pytest.raises(pgqueue.TaskFailed):
        await client.results.get(failed)


async def test_fail_is_told_to_who_asks(client, queue):
    put = await queue.put("x")
    task = await queue.take(0)
    assert (await task.fail("no such page")).state == "buried"
    with pytest.raises(pgqueue.TaskFailed, match=f"^task {put.id} failed: no such page$") as caught:
        await put.result()
    assert (caught.value.task_id, caught.value.error) == (put.id, "no such page")
    status = await put.outcome()
    assert (status.state, status.error, status.attempts, status.ended) == ("failed", "no such page", 1, True)


async def test_a_result_is_had_though_its_task_is_kept_too(client):
    queue = await client.create_queue("history", keep_done=3600)
    id = (await queue.put("x")).id
    await (await queue.take(0)).finish(7, keep=60)
    assert await client.results.get(id, 0) == 7


async def test_a_done_task_that_is_kept_without_a_result_has_none(shell, client):
    """It was acked, or its result has expired; a kept result may be None."""
    queue = await client.create_queue("history", keep_done=3600)
    acked, expired, none = [await queue.put(name) for name in ("acked", "expired", "none")]
    await (await queue.take(0)).ack()
    await (await queue.take(0)).finish(7, keep=0.05)
    await (await queue.take(0)).finish(None)

    async def is_over():
        return not (await expired.outcome()).has_result

    await soon(is_over)
    for task in (acked, expired):
        with pytest.raises(pgqueue.errors.ResultUnknown, match=f"^task {task.id} is done, and no result"):
            await task.result()
        (last,) = [one async for one in following(shell, client, task.id)]
        assert (last.state, last.result, last.has_result) == ("done", None, False)
    assert await none.result() is None
    assert (await none.outcome()).has_result


async def test_a_result_is_kept_for_its_time(client, queue):
    put = await queue.put("x")
    await (await queue.take(0)).finish(1, keep=0.05)

    async def expired():
        return (await put.outcome()).state == "unknown"

    await soon(expired)
    with pytest.raises(pgqueue.errors.ResultUnknown):
        await put.result()


async def test_a_holder_that_lost_its_take_keeps_nothing(shell, client, queue):
    put = await queue.put("x")
    task = await queue.take(0)
    await client.queue("q").release(task)
    again = await shell.client().queue("q").take(60)
    for late in (task.finish("late"), task.fail("late"), task.progress("late")):
        with pytest.raises(pgqueue.TakeLost):
            await late
    assert (await put.outcome()).state == "taken"
    await again.finish("right")
    assert await put.result() == "right"
    with pytest.raises(pgqueue.TaskNotFound):
        await task.finish("late")
    assert await put.result() == "right"


async def test_finish_on_the_callers_connection(shell, client, queue):
    put = await queue.put("x")
    task = await queue.take(0)
    conn = await shell.connection()
    await task.finish(1, conn=conn)
    assert (await put.outcome()).state == "taken"
    await conn.rollback()
    assert (await put.outcome()).state == "taken"
    await task.fail("boom", conn=conn)
    await conn.rollback()
    await task.finish(2, conn=conn)
    await conn.commit()
    assert await put.result() == 2


async def test_a_result_that_cannot_be_leaves_the_task(queue, db):
    await queue.put("x")
    task = await queue.take(0)
    for result in ({1}, float("nan"), {"\0": 1}, "x" * 2_000_000):
        with pytest.raises(pgqueue.BadData):
            await task.finish(result)
        with pytest.raises(pgqueue.BadData):
            await task.progress(result)
    for keep in (0, -1, None, "1", True, float("nan"), 1e10):
        with pytest.raises(ValueError, match="keep"):
            await task.finish(1, keep=keep)
        with pytest.raises(ValueError, match="keep"):
            await task.fail("x", keep=keep)
    assert rows(db, "SELECT state FROM pgqueue.tasks") == [("taken",)]
    assert rows(db, "SELECT FROM pgqueue.result") == []
    assert (await task.fail("a\0b\ud800")).state == "buried"


@pytest.mark.parametrize("id", [None, 0, -1, True, 1.5, "x", "", 2**63, b"1"])
async def test_an_id_that_cannot_be(client, queue, id):
    for call in (client.results.outcome, client.results.get, queue.finish, queue.fail):
        with pytest.raises(pgqueue.errors.TaskIdRequired):
            await call(id)
    with pytest.raises(pgqueue.errors.TaskIdRequired):
        client.results.follow(id)


@pytest.mark.parametrize("timeout", [float("nan"), "1", True])
async def test_a_timeout_that_cannot_be(client, queue, timeout):
    task = await queue.put("x")
    with pytest.raises(ValueError, match="timeout"):
        await task.result(timeout)
    with pytest.raises(ValueError, match="timeout"):
        client.results.follow(task.id, timeout)


# --- waiting for a result


@pytest.mark.usefixtures("no_poll")
@pytest.mark.parametrize("outcome", ["finish", "fail"])
async def test_who_waits_is_told_at_once(shell, client, queue, outcome):
    put = await queue.put("x")
    result = asyncio.ensure_future(put.result(2 * PATIENCE))
    await listening(client)
    task = await shell.client().queue("q").take(60)
    watch = Stopwatch()
    if outcome == "finish":
        await task.finish(7)
        assert await result == 7
    else:
        await task.fail("boom")
        with pytest.raises(pgqueue.TaskFailed, match="boom"):
            await result
    assert watch() < PATIENCE


@pytest.mark.slow
@pytest.mark.usefixtures("no_poll")
async def test_no_result_is_missed_in_200_races(queue):
    for n in range(200):
        put = await queue.put(n)
        task = await queue.take(60)
        result = asyncio.ensure_future(put.result(2 * PATIENCE))
        await task.finish(n)
        watch = Stopwatch()
        assert await result == n
        assert watch() < PATIENCE, n


async def test_the_time_for_a_result_is_over(client, queue, db):
    put = await queue.put("x")
    with pytest.raises(TimeoutError, match=f"the result of task {put.id} did not come within 0 s"):
        await put.result(0)
    assert value(db, LISTENERS) == 0
    watch = Stopwatch()
    with pytest.raises(TimeoutError):
        await put.result(0.3)
    assert watch() >= 0.3


@pytest.mark.slow
@pytest.mark.parametrize("end", ["ack", "delete"])
async def test_an_end_without_a_result_is_noticed(client, queue, end):
    """Nothing announces it: within POLL."""
    put = await queue.put("x")
    task = await queue.take(0)
    result = asyncio.ensure_future(put.result(60))
    await listening(client)
    await getattr(task, end)()
    watch = Stopwatch()
    with pytest.raises(pgqueue.errors.ResultUnknown):
        await result
    assert watch() < looks.POLL + PATIENCE


@pytest.mark.usefixtures("no_poll")
async def test_a_wait_for_a_result_outlives_its_listener(shell, client, queue, db):
    put = await queue.put("x")
    task = await shell.client().queue("q").take(60)
    result = asyncio.ensure_future(put.result(2 * PATIENCE))
    await listening(client)
    pids = rows(db, LISTENERS.replace("count(*)", "pid"))
    assert len(pids) == 2
    for (pid,) in pids:
        db.execute("SELECT pg_terminate_backend(%s::int)", [pid])
    await task.finish("there")
    assert await result == "there"


@pytest.mark.usefixtures("no_poll")
async def test_a_wait_may_begin_while_its_result_is_not_committed(client, queue, db, connect):
    """The settler saw no waiter and announces nothing: the waiter looks again until it has ended."""
    put = await queue.put("x")
    task = await queue.take(0)
    settler = connect()
    with settler.transaction():
        settler.execute("SELECT pgqueue.finish(%s, %s, result => '1')", [task.id, task.token])
        result = asyncio.ensure_future(put.result(2 * PATIENCE))
        await listening(client)
        awaited = (
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = pgqueue._awaiting_lock()::oid"
        )
        await soon(lambda: value(db, awaited) == 1)
        assert not result.done()
    assert await result == 1


@pytest.mark.usefixtures("no_poll")
async def test_a_client_that_waited_once_waits_again_after_its_unlisten(shell, db):
    client = shell.client(idle_timeout=0.05)
    queue = client.queue("q")
    listening = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = pgqueue._awaiting_lock()::oid"
    for turn in range(2):
        put = await queue.put(turn)
        task = await queue.take(60)
        result = asyncio.ensure_future(put.result(2 * PATIENCE))
        await soon(lambda: value(db, listening) == 1)
        await task.finish(turn)
        assert await result == turn
        await soon(lambda: value(db, listening) == 0)


@pytest.mark.slow
@pytest.mark.usefixtures("no_poll")
async def test_no_result_is_missed_where_many_were_awaited_before(client, queue):
    """With each LISTEN beyond these goes an UNLISTEN, which also gives up the lock of another task, of the same bucket
    perhaps."""
    for number in range(switchboard.KEPT + 20):
        put = await queue.put(number)
        task = await queue.take(0)
        waiting = asyncio.ensure_future(put.result(PATIENCE))
        await listening(client)
        await task.finish(number, keep=60)
        assert await waiting == number
    assert len(client.shell.core.listener().switchboard._lines) <= switchboard.KEPT + 1


async def test_a_close_ends_a_wait_for_a_result(client, queue):
    put = await queue.put("x")
    result = asyncio.ensure_future(put.result())
    await listening(client)
    await client.close()
    with pytest.raises(pgqueue.ClosedError):
        await result


@pytest.mark.slow
@pytest.mark.usefixtures("no_poll")
async def test_a_hundred_wait_over_one_connection(blocking, db):
    """Half of them threads, half of them coroutines, of one client."""
    client, other = blocking(), blocking().queue("q")
    ids = other.put_many(range(100))
    with ThreadPoolExecutor(50) as threads:
        loop = asyncio.get_running_loop()
        results = [loop.run_in_executor(threads, client.results.get, id, 60) for id in ids[:50]]
        results += [asyncio.ensure_future(client.aio.results.get(id, 60)) for id in ids[50:]]
        await listening(client, 100)
        assert value(db, f"{LISTENERS} AND pid IN (SELECT backend_pid FROM pgqueue.sessions)") == 1
        for task in await loop.run_in_executor(None, other.take_many, 100):
            await loop.run_in_executor(None, task.finish, task.data)
        assert await asyncio.gather(*results) == list(range(100))
    await client.aio.close()


# --- progress and follow


async def following(shell, client, id, timeout=None) -> AsyncIterator[pgqueue.types.Outcome]:
    """follow() of either shell, in coroutines."""
    if shell.name == "async":
        async for status in client.results.follow(id, timeout):
            yield status
        return
    statuses, over = client.results.follow(id, timeout), object()
    while (status := await asyncio.to_thread(next, statuses, over)) is not over:
        yield status


async def test_follow_yields_each_change_until_the_end(shell, client, queue):
    put = await queue.put("x")
    steps = following(shell, client, put.id, 60)
    assert (await anext(steps)).state == "ready"
    task = await queue.take(0)
    assert (await anext(steps)).state == "taken"
    for percent in (40, {"percent": 80}):
        await task.progress(percent)
        assert (await client.results.outcome(put)).progress == percent
        status = await anext(steps)
        assert (status.state, status.progress) == ("taken", percent)
    await task.finish("result")
    status = await anext(steps)
    assert (status.state, status.progress, status.result) == ("done", None, "result")
    assert [step async for step in steps] == []


@pytest.mark.usefixtures("no_poll")
async def test_progress_and_the_end_are_told(shell, client, queue):
    put = await queue.put("x")
    task = await queue.take(0)
    steps = following(shell, client, put.id, 60)
    assert (await anext(steps)).state == "taken"
    for report in (lambda: task.progress(1), lambda: task.progress(2), lambda: task.fail("boom")):
        step = asyncio.ensure_future(anext(steps))
        await listening(client)
        await report()
        watch = Stopwatch()
        status = await step
        assert watch() < PATIENCE
    assert (status.state, status.error) == ("failed", "boom")


async def test_follow_of_what_is_over(shell, client, queue):
    put = await queue.put("x")
    await (await queue.take(0)).finish(1)
    assert [status.result async for status in following(shell, client, put.id)] == [1]
    assert [status.state async for status in following(shell, client, 12345)] == ["unknown"]


async def test_the_time_to_follow_is_over(shell, client, queue):
    put = await queue.put("x")
    steps = following(shell, client, put.id, 0.2)
    assert (await anext(steps)).state == "ready"
    with pytest.raises(TimeoutError, match=f"the end of task {put.id} did not come"):
        await anext(steps)


async def test_who_stops_following_leaves_nothing_behind(shell, client, queue):
    put = await queue.put("x")
    task = await queue.take(0)
    steps = following(shell, client, put.id)
    await anext(steps)
    await task.progress(1)
    await anext(steps)
    assert all(not line.ears for line in client.shell.core.listener().switchboard._lines.values())
    if shell.name == "async":
        await steps.aclose()  # type: ignore[attr-defined]


async def test_progress_goes_with_the_take(client, queue):
    put = await queue.put("x")
    task = await queue.take(0)
    await task.progress(1)
    await task.release()
    assert (await put.outcome()).progress is None
    again = await queue.take(60)
    assert (await put.outcome()).progress is None
    await again.progress(2)
    assert (await put.outcome()).progress == 2
    with pytest.raises(pgqueue.TakeLost):
        await task.progress(3)
    await again.ack()
    with pytest.raises(pgqueue.TaskNotFound):
        await again.progress(4)


# --- workers


@pytest.fixture
def client_of_work(blocking: Callable[..., pgqueue.Client]) -> pgqueue.Client:
    return blocking()


@pytest.fixture
def work(client_of_work: pgqueue.Client) -> Iterator[Callable[..., None]]:
    """Runs a worker on the handlers of `client_of_work`, in a thread."""
    with contextlib.ExitStack() as stack:

        def start(*handlers: Any, **options: Any) -> None:
            worker = Worker(client_of_work, *handlers, **({"retry_delay": 0} | options))
            thread = threading.Thread(target=worker.run)
            thread.start()
            stack.callback(thread.join, 30)
            stack.callback(worker.stop)

        yield start


def sync_handler(data):
    return {"got": data}


async def async_handler(data):
    await asyncio.sleep(0)
    return {"got": data}


def with_task(data, task):
    task.progress("half")
    assert task.outcome().progress == "half"
    return {"got": data}


async def async_with_task(data, task):
    await task.progress("half")
    assert (await task.outcome()).progress == "half"
    return {"got": data}


@pytest.mark.parametrize("handler", [sync_handler, async_handler, with_task, async_with_task])
def test_a_worker_keeps_what_the_handler_returns(client_of_work, work, handler):
    client = client_of_work
    client.handler("q", keep_result=60)(handler)
    work()
    tasks = [client.queue("q").put(n) for n in range(20)]
    assert [task.result(30) for task in tasks] == [{"got": n} for n in range(20)]
    assert tasks[0].outcome().attempts == 0


def test_without_keep_result_nothing_is_kept(client_of_work, work, db):
    client = client_of_work
    client.handler("q", keep_result=60)(print)
    client.handler("q")(sync_handler)  # the last one counts
    work()
    put = client.queue("q").put(1)
    eventually(lambda: put.outcome().state == "unknown")
    assert rows(db, "SELECT FROM pgqueue.result") == []


def test_handlers_that_are_given_to_the_worker_keep_nothing(client_of_work, work, db):
    client_of_work.handler("q", keep_result=60)(sync_handler)
    work({"q": sync_handler})
    put = client_of_work.queue("q").put(1)
    eventually(lambda: put.outcome().state == "unknown")
    assert rows(db, "SELECT FROM pgqueue.result") == []


def test_each_queue_keeps_for_its_own_time(client_of_work, work, db):
    client = client_of_work
    client.handler("hour", keep_result=3600)(sync_handler)
    client.handler("day", keep_result=86400)(async_handler)
    client.handler("never")(sync_handler)
    work()
    puts = [client.queue(name).put(n) for n in range(30) for name in ("hour", "day", "never")]
    eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.task") == 0)
    found = rows(
        db,
        "SELECT queue, extract(epoch FROM expires_at - finished_at)::int, count(*) FROM pgqueue.results"
        " GROUP BY 1, 2 ORDER BY 1",
    )
    assert found == [("day", 86400, 30), ("hour", 3600, 30)]
    assert puts[0].result() == {"got": 0}


def test_a_handler_that_fails_for_good(client_of_work, work):
    client = client_of_work
    tries = []

    @client.handler("q", keep_result=60)
    def fail(data):
        tries.append(data)
        raise ValueError("no such page")

    work(max_attempts=3)
    put = client.queue("q").put("x")
    with pytest.raises(pgqueue.TaskFailed, match=r"ValueError: no such page \(test_results\.py:\d+, in fail\)"):
        put.result(30)
    assert len(tries) == 3
    assert put.outcome().attempts == 3


def test_a_handler_that_fails_and_then_succeeds(client_of_work, work):
    client = client_of_work

    @client.handler("q", keep_result=60)
    def fail_once(data, task):
        if not task.attempts:
            raise ValueError
        return task.attempts

    work()
    assert client.queue("q").put("x").result(30) == 1


def test_a_task_that_came_back_too_often_has_failed(client_of_work, work, db):
    client = client_of_work
    client.handler("q", keep_result=60)(sync_handler)
    put = client.queue("q").put("x")
    db.execute("UPDATE pgqueue.task SET attempts = 5")
    work(max_attempts=5)
    with pytest.raises(pgqueue.TaskFailed, match="came back too often"):
        put.result(30)


def test_what_the_queue_declares_dead_has_failed(client_of_work, work, db):
    """max_takes of the queue, which is below the worker's max_attempts."""
    client = client_of_work
    client.queue("q").stats()
    db.execute("SELECT pgqueue.create_queue('q')")
    db.execute("UPDATE pgqueue.queue SET max_takes = 2")

    @client.handler("q", keep_result=60)
    def fail(data):
        raise ValueError("no such page")

    work()
    with pytest.raises(pgqueue.TaskFailed, match="no such page"):
        client.queue("q").put("x").result(30)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (datetime.now(UTC), r"the handler has run, and its result cannot be kept: \$: JSON cannot hold a datetime"),
        ({"a": [1, {2}]}, r"its result cannot be kept: \$\.a\[1\]: JSON cannot hold a set"),
        (float("inf"), "JSON has no inf"),
        ({"a\0": 1}, "jsonb cannot hold"),
        ("x" * 2_000_000, "the limit is"),
    ],
)
def test_a_result_that_json_cannot_hold_buries_the_task(client_of_work, work, result, reason):
    client = client_of_work

    @client.handler("q", keep_result=60)
    async def bad(data):
        return result

    @client.handler("r", keep_result=60)
    def bad_too(data):
        return result

    work()
    for name in "qr":
        with pytest.raises(pgqueue.TaskFailed, match=reason):
            client.queue(name).put("x").result(30)


def test_a_result_that_is_yet_to_be_awaited_is_a_failure(client_of_work, work):
    client_of_work.handler("q", keep_result=60)(lambda data: async_handler(data))
    work(max_attempts=1)
    with pytest.raises(pgqueue.TaskFailed, match="define it with `async def`"):
        client_of_work.queue("q").put("x").result(30)


@pytest.mark.parametrize("verb", ["finish", "ack", "fail", "release"])
def test_a_handler_that_settles_its_task_decides(client_of_work, work, verb):
    client = client_of_work

    @client.handler("q", keep_result=60)
    def settle(data, task):
        if task.attempts or verb != "release":
            if verb == "finish":
                task.finish("its own")
            elif verb == "ack":
                task.ack()
            elif verb == "fail":
                task.fail("its own")
        else:
            task.release(error="once more")
        return "returned"

    work()
    put = client.queue("q").put("x")
    if verb == "finish":
        assert put.result(30) == "its own"
    elif verb == "release":
        assert put.result(30) == "returned"
    else:
        with pytest.raises(pgqueue.TaskFailed if verb == "fail" else pgqueue.errors.ResultUnknown):
            put.result(30)


@pytest.mark.parametrize("keep", [0, -1, "1", True, float("nan"), 1e10])
def test_a_keep_result_that_cannot_be(client_of_work, keep):
    with pytest.raises(ValueError, match="keep_result"):
        client_of_work.handler("q", keep_result=keep)
    assert client_of_work.handlers == {}


def test_an_async_client_registers_too(dsn, client_of_work, work):
    client = pgqueue.AsyncClient(dsn)
    client.handler("q", keep_result=60)(async_handler)
    worker = Worker(client)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert client_of_work.queue("q").put(1).result(30) == {"got": 1}
    finally:
        worker.stop()
        thread.join()
        asyncio.run(client.close())


@pytest.mark.slow
def test_a_killed_worker_leaves_the_result_to_the_next(client_of_work, dsn, db):
    """kill -9 in the middle of a handler: there is one result, the second worker's."""
    put = client_of_work.queue("q").put("x")
    with programs() as start:
        first = start("keeper", dsn, "q", "hold")
        assert "ready" in first.hear()
        assert first.hear() == {"begun": "x"}
        assert put.outcome().progress == {"by": first.pid}
        with ThreadPoolExecutor(1) as thread:
            result = thread.submit(put.result, 60)
            second = start("keeper", dsn, "q")
            assert "ready" in second.hear()
            first.kill()
            assert second.hear() == {"begun": "x"}
            assert result.result(60) == {"of": "x", "by": second.pid}
        assert rows(db, "SELECT id, state, attempts FROM pgqueue.results") == [(put.id, "done", 1)]
        assert second.end() == 0


@pytest.mark.slow
def test_killed_workers_give_one_result_for_each_task(client_of_work, dsn, db):
    ids = client_of_work.queue("q").put_many(range(3000))
    with programs() as start:
        workers = [start("keeper", dsn, "q", heard=lambda line: None) for _ in range(2)]
        for _ in range(4):
            done = value(db, "SELECT count(*) FROM pgqueue.result")
            eventually(lambda done=done: value(db, "SELECT count(*) FROM pgqueue.result") >= min(done + 200, 3000))
            workers.pop(0).kill()
            workers.append(start("keeper", dsn, "q", heard=lambda line: None))
        eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.task") == 0, within=60)
    assert rows(db, "SELECT array_agg(id ORDER BY id), count(*) FROM pgqueue.results") == [(ids, 3000)]
    assert (
        rows(db, "SELECT FROM pgqueue.results WHERE state <> 'done' OR (result ->> 'of')::int <> id - %s", ids[0]) == []
    )


# --- the settler, without a database


class Office:
    """Stands for the shell of a client: notes the batches that are sent, and refuses results with `poison` in them."""

    def __init__(self) -> None:
        self.core = SimpleNamespace(label="me", outage=Outage("me"))
        self.sent: list[tuple[str, Any]] = []

    def fence(self, token: int | None = None) -> calls.Fence:
        return calls.Fence(token, 1, "me")

    def run(self, call: calls.Call[Any], relaxed: bool = False) -> list[Refused]:
        verb = call.sql.partition("pgqueue.")[2].partition("(")[0]
        if verb == "finish_many" and "poison" in call.args[3]:
            raise psycopg.errors.StatementTooComplex("stack depth limit exceeded")
        self.sent.append((verb, settled_by(call)))
        return []


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
def settler(office: Office, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settler]:
    monkeypatch.setattr(settler_module, "AGE", 60.0)
    settler = Settler(office)  # type: ignore[arg-type]
    yield settler
    settler.close()


KEPT = {"q": 60.0, "r": 5.0}  # seconds


def done(settler: Settler, id: int, result: str = "1", queue: str = "q") -> None:
    settler.finish(Taken(id, 7, 0, 0, None, "null", queue), result, KEPT[queue])
    settler.tell()


def test_results_go_in_batches_by_how_long_they_are_kept(settler, office):
    for id in range(COUNT):
        done(settler, id, queue="qr"[id % 2])
    eventually(lambda: len(office.sent) == 2)
    assert office.sent == [("finish_many", list(range(0, COUNT, 2))), ("finish_many", list(range(1, COUNT, 2)))]


def test_large_results_go_in_smaller_batches(settler, office, monkeypatch):
    monkeypatch.setattr(settler_module, "SIZE", 100)
    done(settler, 1, "x" * 60)
    done(settler, 2, "x" * 60)
    eventually(lambda: office.sent == [("finish_many", [1, 2])])
    with settler._lock:  # while the settler waits to look
        settler._finished.extend((Taken(id, 7, 0, 0, None, "null", "q"), "x" * 60, 60.0) for id in range(3, 8))
        settler._size += 300
    settler.close()
    assert office.sent[1:] == [("finish_many", [3, 4]), ("finish_many", [5, 6]), ("finish_many", [7])]


def test_behind_when_large_results_pile_up(settler, monkeypatch):
    monkeypatch.setattr(settler_module, "SIZE", 100)
    settler._size = 399
    assert settler.open_queues(["q"]) == ["q"]
    settler._size = 400
    assert not settler.open_queues(["q"])


def test_a_result_that_the_server_cannot_take_fails_its_own_task(settler, office):
    for id, result in enumerate(["1", "poison", "3"], 1):
        done(settler, id, result)
    settler.close()
    settled = [sent for sent in office.sent if sent[0] != "count_runs"]
    assert sorted(settled) == [("fail", [2]), ("finish_many", [1]), ("finish_many", [3])]
