"""Steps of a task: recorded once, fenced by the take, never run again after their record was committed."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from eventually import eventually
from processes import Program
from statements import put, row, rows, value

import pgqueue


@pytest.fixture
async def task(queue):
    await queue.put("order 1")
    return await queue.take()


async def test_a_recorded_step_is_not_run_again(queue, task):
    assert await task.step("charge", lambda: {"receipt": 7}) == {"receipt": 7}
    await task.release(error="the next step failed")
    again = await queue.take()
    assert await again.step("charge", lambda: pytest.fail("it ran again")) == {"receipt": 7}
    assert await again.step("ship", lambda: None) is None


async def test_a_step_without_a_value_is_recorded_too(task):
    assert await task.step("ship", lambda: None) is None
    assert await task.step("ship", lambda: pytest.fail("it ran again")) is None


async def test_the_first_run_gets_what_later_ones_get(task):
    """As JSON gives it back, so that a handler cannot work only at its first attempt."""
    assert await task.step("pair", lambda: (1, "ü")) == [1, "ü"]
    assert await task.step("pair", lambda: 2) == [1, "ü"]


async def test_a_step_that_raises_records_nothing(task):
    with pytest.raises(ZeroDivisionError):
        await task.step("charge", lambda: 1 // 0)
    assert await task.step("charge", lambda: 1) == 1


async def test_a_late_holder_neither_runs_nor_records_a_step(queue, task, db):
    db.execute("UPDATE pgqueue.take SET deadline = clock_timestamp()")
    with pytest.raises(pgqueue.TakeLost):
        await task.step("charge", lambda: pytest.fail("it ran"))
    other = await queue.take()

    def overtaken() -> int:
        db.execute("UPDATE pgqueue.take SET deadline = clock_timestamp()")
        return 1

    with pytest.raises(pgqueue.TakeLost):
        await other.step("charge", overtaken)
    assert rows(db, "SELECT * FROM pgqueue.step") == []


async def test_bad_steps(task):
    for name in ("", "x" * 256, None, 7):
        with pytest.raises(ValueError, match="step"):
            await task.step(name, lambda: pytest.fail("it ran"))
    for bad in (object(), float("nan"), {"\0": 1}):
        with pytest.raises(pgqueue.BadData):
            await task.step("bad", lambda bad=bad: bad)
    assert await task.step("bad", lambda: "good") == "good"


async def test_a_step_of_the_callers_transaction_goes_with_it(shell, task, db):
    db.execute("CREATE TABLE charge (amount int)")
    conn = await shell.connection()

    async def awaited() -> str:
        await conn.execute("INSERT INTO charge VALUES (5)")
        return "charged"

    def blocking() -> str:
        conn._thing.execute("INSERT INTO charge VALUES (5)")
        return "charged"

    charge = awaited if shell.name == "async" else blocking
    for _ in range(2):
        assert await task.step("charge", charge, conn=conn) == "charged"
        await conn.rollback()
    assert rows(db, "SELECT * FROM charge") == rows(db, "SELECT * FROM pgqueue.step") == []


async def test_a_step_of_a_requeued_task_goes_with_its_new_id(queue, task):
    await task.step("charge", lambda: 1)
    await task.requeue()
    again = await queue.take()
    assert again.id != task.id
    assert await again.step("charge", lambda: pytest.fail("it ran again")) == 1


def test_a_coroutine_function_needs_the_awaiting_task(dsn: str) -> None:
    async def charge() -> int:
        return 1

    with pgqueue.Client(dsn) as client:
        client.queue("q").put(1)
        task = client.queue("q").take()
        assert task is not None
        with pytest.raises(TypeError, match="coroutine function"):
            task.step("charge", charge)
        assert task.step("charge", lambda: 2) == 2


async def test_asyncio_awaits_a_coroutine_function(dsn: str) -> None:
    async def charge() -> int:
        await asyncio.sleep(0)
        return 1

    async with pgqueue.AsyncClient(dsn) as client:
        await client.queue("q").put(1)
        task = await client.queue("q").take()
        assert task is not None
        assert await task.step("charge", charge) == 1


# --- races


def test_of_two_threads_with_one_step_both_get_the_first_value(dsn: str, db: psycopg.Connection) -> None:
    """T1 has inserted its record and not committed when T2 records: T2 waits for T1, and gets T1's value."""
    with pgqueue.Client(dsn) as client, psycopg.connect(dsn) as conn:
        client.queue("q").put(1)
        task = client.queue("q").take()
        assert task is not None
        assert task.step("charge", lambda: "first", conn=conn) == "first"
        got: list[Any] = []
        second = threading.Thread(target=lambda: got.append(task.step("charge", lambda: "second")))
        second.start()
        eventually(lambda: value(db, "SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)
        conn.commit()
        second.join(30)
    assert got == ["first"]


def test_touches_go_on_while_a_step_is_open_and_sweeps_leave_the_take(dsn: str, db: psycopg.Connection) -> None:
    """T1 holds the take until it commits: promotion passes over it although its deadline is over."""
    with pgqueue.Client(dsn, call_timeout=5) as client, psycopg.connect(dsn) as conn:
        queue = client.queue("q")
        queue.put(1, ttr=60)
        task = queue.take()
        assert task is not None
        task.step("charge", lambda: 1, conn=conn)
        task.touch(30)  # would raise CallTimeout
        db.execute("UPDATE pgqueue.take SET deadline = clock_timestamp()")
        assert queue.take(timeout=0) is None
        conn.commit()
        again = queue.take(timeout=5)
        assert again is not None
        assert again.step("charge", lambda: 2) == 1


def test_the_steps_of_tasks_that_are_gone_are_cleaned_up(db: psycopg.Connection) -> None:
    kept, gone = put(db, "q"), put(db, "q")
    for id, token in rows(db, "SELECT id, token FROM pgqueue.take_many('{q}', 2)"):
        db.execute("SELECT pgqueue.record_step(%s, %s, name => 'a', value => '1')", [id, token])
        if id == gone:
            db.execute("SELECT pgqueue.ack(%s, %s)", [id, token])
    assert rows(db, "SELECT id, step, value FROM pgqueue.steps") == [(kept, "a", 1)]
    db.execute("SELECT pgqueue.clean_up()")
    assert rows(db, "SELECT task_id FROM pgqueue.step") == [(kept,)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_recorded_step_runs_twice_whatever_is_killed(
    dsn: str,
    db: psycopg.Connection,
    size: dict[str, int],
    start: Callable[..., Program],
    record_property: Callable[[str, object], None],
) -> None:
    """A process dies in the middle of five steps, again and again; the database's clock orders runs and records."""
    db.execute("CREATE TABLE ran (task_id bigint, step text, at timestamptz, joined boolean)")
    db.execute("CREATE TABLE recorded (task_id bigint, step text, at timestamptz)")
    done: list[int] = []
    ready = threading.Semaphore(0)

    def hear(line: dict[str, Any]) -> None:
        if "ready" in line:
            ready.release()
        else:
            done.append(line["done"])

    def stepper() -> Program:
        program = start("stepper", dsn, "q", heard=hear)
        assert ready.acquire(timeout=30)
        return program

    kills = size["step_kills"]
    chance = random.Random(kills)
    with pgqueue.Client(dsn) as client:
        queue = client.queue("q")
        process = stepper()
        for kill in range(kills):
            queue.put_many([kill] * 3)
            ran = value(db, "SELECT count(*) FROM ran") + chance.randrange(1, 8)
            eventually(lambda ran=ran: value(db, "SELECT count(*) FROM ran") >= ran)
            process.kill()
            process = stepper()
        eventually(lambda: queue.stats()["total"] == 0, within=60)
    assert process.end() == 0
    tasks = 3 * kills
    assert row(db, "SELECT count(*), count(DISTINCT (task_id, step)) FROM recorded") == (5 * tasks, 5 * tasks)
    again = "SELECT r.task_id, r.step FROM ran r JOIN recorded USING (task_id, step) WHERE r.at > recorded.at"
    assert rows(db, again) == []
    assert row(db, "SELECT count(*), count(DISTINCT (task_id, step)) FROM ran WHERE joined") == (2 * tasks, 2 * tasks)
    repeated = value(db, "SELECT count(*) FROM ran WHERE NOT joined") - 3 * tasks
    record_property("steps", f"{kills} kills, {tasks} tasks, {repeated} steps ran again whose record was not committed")
