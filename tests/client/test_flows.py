"""Tasks after others, graphs and batches, on both shells."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from commands import Commands
from eventually import eventually, soon
from processes import Program
from statements import column, row, rows, value

import pgqueue
from pgqueue import Put

# --- tasks after others


async def test_a_chain_with_results(client, queue):
    first = await queue.put("extract")
    then = await queue.put("load", after=first)
    last = await queue.put("report", after=[first, then.id, str(then.id)])
    assert (then.state, last.state) == ("waiting", "waiting")
    await (await queue.take()).finish({"rows": 12}, keep=0.001)
    task = await queue.take()
    assert task.id == then.id
    assert [(r.id, r.state, r.result, r.queue) for r in await task.results()] == [
        (first.id, "done", {"rows": 12}, queue.name)
    ]
    await task.ack()
    task = await queue.take()
    assert [(r.id, r.state, r.result) for r in await task.results()] == [
        (first.id, "done", {"rows": 12}),
        (then.id, "done", None),
    ]


async def test_a_waiting_take_is_woken_by_the_end_of_what_its_task_waits_for(client, queue):
    first = await client.queue("other").put(1)
    then = await queue.put(2, after=first)
    await (await client.queue("other").take()).ack()
    assert (await queue.take(timeout=5)).id == then.id


async def test_failures_by_policy(client, queue):
    first = await queue.put("fails")
    tasks = [await queue.put(policy, after=first, on_failure=policy) for policy in ("wait", "bury", "run")]
    await (await queue.take()).fail("boom")
    task = await queue.take(timeout=5)
    assert task.id == tasks[2].id
    assert [(r.state, r.error) for r in await task.results()] == [("failed", "boom")]
    await soon(lambda: buried(queue, tasks[1].id))
    assert f"task {first.id}, for which this task waited, failed" in (await queue.peek(tasks[1].id)).error
    assert (await queue.peek(tasks[0].id)).state == "waiting"
    await first.kick()
    await (await queue.take()).ack()
    assert (await queue.take(timeout=5)).id == tasks[0].id


async def buried(queue: Any, id: int) -> bool:
    return bool((await queue.peek(id)).state == "buried")


async def test_put_many_after_others_and_put_unique(queue):
    first = await queue.put(1)
    ids = await queue.put_many(range(3), after=first)
    unique = await queue.put_unique("only one", after=first)
    assert await queue.put_unique("only one", after=first) is None
    assert (await queue.stats())["blocked"] == 4
    await (await queue.take()).ack()
    assert [task.id for task in await queue.take_many(9)] == [*ids, unique.id]


async def test_a_graph_goes_in_one_call(client, queue):
    name = queue.name
    split = Put(name, "split")
    group = [Put(name, n, after=split) for n in range(3)]
    ids = await client.put_graph([split, *group, Put(name, "join", after=group)])
    handled = []
    while (task := await queue.take(timeout=0.5)) is not None:
        handled.append(task.id)
        await task.ack()
    assert handled == ids
    assert await client.put_graph([]) == []


async def test_a_task_hands_on_to_a_graph(queue):
    await queue.put("first")
    task = await queue.take()
    second = Put(queue.name, "second")
    await task.ack(put=[second, Put(queue.name, "third", after=second)])
    assert (await queue.stats())["blocked"] == 1


async def test_a_graph_of_the_callers_transaction_goes_with_it(shell, client, queue):
    conn = await shell.connection()
    first = Put(queue.name, 1)
    await client.put_graph([first, Put(queue.name, 2, after=first)], conn=conn)
    await conn.rollback()
    assert (await queue.stats())["total"] == 0
    one = await queue.put(1, conn=conn)
    two = await queue.put(2, conn=conn, after=one)
    await conn.commit()
    await (await queue.take()).ack()
    assert (await queue.take(timeout=5)).id == two.id


async def test_bad_flows(client, queue):
    there = await queue.put(1)
    for options, message in (
        ({"after": 99}, "never put"),
        ({"after": [there.id, -1]}, "task id"),
        ({"after": "x"}, "task id"),
        ({"after": there, "on_failure": "skip"}, "on_failure"),
        ({"after": Put("q", 1)}, "not put yet"),
        ({"after": there, "key": "k", "if_exists": "replace"}, "replaces"),
    ):
        with pytest.raises(ValueError, match=message):
            await queue.put(2, **options)
    with pytest.raises(pgqueue.errors.BatchError, match="no batch"):
        await queue.put(2, batch=there.id)
    late = Put("q", 1)
    for puts in ([Put("q", 2, after=late), late], [Put("q", 2, after=late)]):
        with pytest.raises(ValueError, match="must stand before it"):
            await client.put_graph(puts)
    assert (await queue.stats())["total"] == 1


# --- batches


@pytest.mark.slow
async def test_a_batch_calls_back_once(client, queue):
    then = Put("end", "all are done")
    async with client.batch(then, name="letters") as batch:
        ids = await queue.put_many(range(5), batch=batch)
        ids.append((await queue.put("more", batch=batch)).id)
        await (await queue.take()).ack()  # tasks may end before it is closed
        assert (await batch.progress()).state == "open"
    progress = await batch.progress()
    assert (progress.name, progress.state, progress.total, progress.done, progress.open) == (
        "letters",
        "running",
        6,
        1,
        5,
    )
    tasks = await queue.take_many(9)
    for task in tasks[1:]:
        await task.ack()
    assert await client.queue("end").take(timeout=0.5) is None
    await tasks[0].ack()
    task = await client.queue("end").take(timeout=5)
    assert (task.data, [task.id]) == ("all are done", batch.callbacks)
    assert [(r.id, r.state, r.result) for r in await task.results()] == [(batch.id, "done", {"total": 6, "failed": 0})]
    assert (await batch.progress()).state == "done"
    assert [found.id for found in await client.batches.newest()] == [batch.id]
    await task.ack()
    assert await client.queue("end").take(timeout=0.5) is None


async def test_failed_tasks_of_a_batch(client, queue):
    policies: Any = ("run", "wait", "bury")
    async with client.batch([Put(policy, 1, on_failure=policy) for policy in policies]) as batch:
        await queue.put_many(range(2), batch=batch)
    first, second = await queue.take_many(2)
    await second.ack()
    await first.fail("boom")
    assert (await client.queue("run").take(timeout=5)).data == 1
    await soon(lambda: ended(batch))
    assert ((await batch.progress()).state, (await batch.progress()).failed) == ("failed", 1)
    assert [(f.id, f.error) for f in await client.batches.failures(batch.id)] == [(first.id, "boom")]
    assert [(await client.queue(policy).stats())["buried"] for policy in policies] == [0, 0, 1]
    await queue.kick(1)
    await (await queue.take()).ack()
    assert (await client.queue("wait").take(timeout=5)).data == 1
    assert (await batch.progress()).state == "done"


async def ended(batch: Any) -> bool:
    return bool((await batch.progress()).ended)


async def test_an_empty_batch_ends_at_once(client):
    async with client.batch(Put("end", 1)) as batch:
        pass
    assert (await client.queue("end").take(timeout=5)).data == 1
    assert (await batch.progress()).total == 0


async def test_a_batch_whose_block_raises_is_forgotten(client, queue):
    batch = client.batch(Put("end", 1))

    async def fail() -> None:
        async with batch:
            await queue.put(1, batch=batch)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    with pytest.raises(pgqueue.errors.BatchError):
        await batch.progress()
    await (await queue.take()).ack()  # its tasks stay
    assert await client.queue("end").take(timeout=0.5) is None


async def test_a_batch_of_the_callers_transaction_goes_with_it(shell, client, queue, db):
    conn = await shell.connection()
    async with client.batch(Put("end", 1), conn=conn) as batch:
        await queue.put_many(range(3), batch=batch, conn=conn)
    await conn.rollback()
    assert rows(db, "SELECT * FROM pgqueue.batch") == rows(db, "SELECT * FROM pgqueue.task") == []
    async with client.batch(Put("end", 1), conn=conn) as batch:
        await queue.put_many(range(3), batch=batch, conn=conn)
    await conn.commit()
    await queue.ack_many(await queue.take_many(3))
    assert (await client.queue("end").take(timeout=5)).data == 1


async def test_what_a_closed_batch_refuses_and_an_open_one(client, queue):
    async with client.batch() as batch:
        with pytest.raises(pgqueue.errors.BatchError, match="is open"):
            await queue.put(1, after=batch)
    with pytest.raises(pgqueue.errors.BatchError, match="is closed"):
        await queue.put(1, batch=batch)
    with pytest.raises(pgqueue.errors.BatchError, match="closed already"):
        await batch.close()
    after = await queue.put("after it", after=batch)
    assert (await queue.take(timeout=5)).id == after.id
    with pytest.raises(ValueError, match="does not exist yet"):
        await queue.put(1, batch=client.batch())


# --- races


@pytest.mark.slow
def test_closing_waits_for_transactions_that_have_put_into_the_batch(dsn: str, db: psycopg.Connection) -> None:
    """T1 has put a task into the batch and is open: the close waits, or the batch would end without that task."""
    with pgqueue.Client(dsn) as client, psycopg.connect(dsn) as conn:
        batch = client.batch(Put("end", 1)).open()
        client.queue("q").put("late", batch=batch, conn=conn)
        closing = threading.Thread(target=batch.close)
        closing.start()
        eventually(lambda: value(db, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'") == 1)
        conn.commit()
        closing.join(30)
        assert batch.progress().total == 1
        assert client.queue("end").take(timeout=0.5) is None
        client.queue("q").take().ack()  # type: ignore[union-attr]
        assert client.queue("end").take(timeout=5) is not None


@pytest.mark.slow
def test_the_last_two_tasks_of_a_batch_end_at_once(dsn: str, db: psycopg.Connection) -> None:
    with pgqueue.Client(dsn) as client, psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
        with client.batch(Put("end", 1)) as batch:
            client.queue("q").put_many(range(2), batch=batch)
        one, two = client.queue("q").take_many(2)
        one.ack(conn=first)
        two.ack(conn=second)
        first.commit()
        assert client.queue("end").take(timeout=0.5) is None
        second.commit()
        assert client.queue("end").take(timeout=5) is not None
        assert client.queue("end").take(timeout=0.5) is None


def test_a_batch_whose_maker_was_killed_is_forgotten(db: psycopg.Connection) -> None:
    old, young = (value(db, "SELECT pgqueue.create_batch()") for _ in range(2))
    db.execute("SELECT pgqueue.put_flow('q', '1', batch => %s)", [old])
    db.execute("UPDATE pgqueue.batch SET created_at = now() - interval '25 h' WHERE id = %s", [old])
    db.execute("SELECT pgqueue.clean_up()")
    assert column(db, "SELECT id FROM pgqueue.batches") == [young]
    db.execute("SELECT pgqueue.ack(id, token) FROM pgqueue.take('q')")
    assert rows(db, "SELECT * FROM pgqueue.member") == rows(db, "SELECT * FROM pgqueue.batch_part") == []


def test_the_command_shows_batches(command: Commands, dsn: str) -> None:
    with pgqueue.Client(dsn) as client:
        with client.batch(name="letters") as batch:
            client.queue("q").put_many(range(3), batch=batch)
        failed = client.queue("q").take()
        assert failed is not None
        failed.fail("boom")
    assert command.lines("batch")[1].split() == [str(batch.id), "letters", "running", "3", "0", "1", "2"]
    assert command.lines("batch", batch.id)[-1].split() == [str(failed.id), "q", "failed", "boom"]
    whole, failure = command.json("batch", batch.id)
    assert (whole["total"], whole["failed"], whole["open"]) == (3, 1, 2)
    assert (failure["id"], failure["error"]) == (failed.id, "boom")
    assert "no batch 999" in command.fails(1, "batch", 999)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_batch_ends_once_whatever_is_killed(
    dsn: str,
    db: psycopg.Connection,
    size: dict[str, int],
    start: Callable[..., Program],
    record_property: Callable[[str, object], None],
) -> None:
    """Two takers handle the tasks and the callback, and are killed; each ack is logged in its own transaction."""
    db.execute("CREATE TABLE acked (task_id bigint, pid int, at timestamptz DEFAULT clock_timestamp())")
    total, kills = size["members"], 5
    ready = threading.Semaphore(0)

    def taker() -> Program:
        program = start("taker", dsn, "q", 50, heard=lambda line: "ready" in line and ready.release())
        assert ready.acquire(timeout=30)
        return program

    with pgqueue.Client(dsn) as client:
        with client.batch(Put("q", "end")) as batch:
            for first in range(0, total, 1000):
                client.queue("q").put_many(range(first, min(first + 1000, total)), batch=batch)
        takers = [taker() for _ in range(2)]
        for kill in range(1, kills + 1):
            done = total * kill // (kills + 1)
            eventually(lambda done=done: value(db, "SELECT count(*) FROM acked") >= done, within=60 + total / 200)
            takers.pop(0).kill()
            takers.append(taker())
        eventually(lambda: client.queue("q").stats()["total"] == 0, within=60 + total / 200)
        (callback,) = batch.callbacks
        assert [process.end() for process in takers] == [0, 0]
        assert row(db, "SELECT count(*), count(DISTINCT task_id) FROM acked") == (total + 1, total + 1)
        query = "SELECT at > (SELECT max(at) FROM acked WHERE task_id <> %s) FROM acked WHERE task_id = %s"
        assert rows(db, query, callback, callback) == [(True,)]
        assert batch.progress().done == total
        assert rows(db, "SELECT * FROM pgqueue.member") == []
    record_property("batch", f"{total} tasks, {kills} kills")
