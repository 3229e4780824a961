"""on_task_change: a callback for every change of a queue's tasks, on both shells."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from eventually import eventually, soon
from statements import rows, value

import pgqueue
from pgqueue.types import Change

pytestmark = pytest.mark.once

OURS = "FROM pg_stat_activity WHERE application_name = 'pgqueue listener' AND datname = current_database()"
OBSERVED = "SELECT observed FROM pgqueue.queue WHERE name = %s"


class Heard:
    """A callback that keeps what it is told."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def __call__(self, change: Change) -> None:
        self.changes.append(change)

    def ops(self) -> list[tuple[str, int]]:
        return [(change.op, change.task_id) for change in self.changes]


async def all_of(heard: Heard, queue: Any) -> list[tuple[str, int]]:
    """All that was told so far. No silence is waited for: a marker of another kind follows all the rest."""
    marker = await queue.put("marker", priority=1)
    await queue.delete(marker)
    await soon(lambda: ("delete", marker.id) in heard.ops())
    return [(op, id) for op, id in heard.ops() if id != marker.id]


async def test_every_change_is_told_once_and_in_order(queue):
    heard = Heard()
    assert await queue.on_task_change(heard) is None
    task = await queue.put("x")
    taken = await queue.take(0)
    await taken.touch(1)
    await taken.release()
    await queue.bury(task)
    await queue.kick()
    await (await queue.take(0)).ack()
    ops = ["put", "take", "touch", "release", "bury", "kick", "take", "delete"]
    assert await all_of(heard, queue) == [(op, task.id) for op in ops]
    assert {change.queue for change in heard.changes} == {"q"}
    assert abs((heard.changes[0].at - datetime.now(UTC)).total_seconds()) < 60


async def test_what_others_do_is_told_and_what_time_does(shell, queue, db):
    heard = Heard()
    await queue.on_task_change(heard)
    other = shell.client().queue("q")
    late = await other.put("x", delay=0.05)
    (taken,) = await other.take_many(1, timeout=10)
    await soon(lambda: ("take", late.id) in heard.ops())
    assert heard.ops() == [("put", late.id), ("delay", late.id), ("take", late.id)]
    await other.ack_many([taken])
    lost = await other.put("x", ttr=0.05)
    await other.take(0)
    await soon(lambda: ("ttr", lost.id) in heard.ops())


async def test_it_is_told_at_the_commit_and_never_after_a_rollback(shell, queue):
    heard = Heard()
    await queue.on_task_change(heard)
    conn = await shell.connection()
    kept = await queue.put("kept", conn=conn)
    other = await queue.put("other")
    await conn.commit()
    await queue.put("not kept", conn=conn)
    await conn.rollback()
    assert await all_of(heard, queue) == [("put", other.id), ("put", kept.id)]


async def test_a_thousand_at_once(queue):
    heard = Heard()
    await queue.on_task_change(heard)
    ids = await queue.put_many(range(1000))
    taken = await queue.take_many(1000, timeout=0)
    await queue.ack_many(taken)
    assert await all_of(heard, queue) == [(op, id) for op in ("put", "take", "delete") for id in ids]


async def test_the_setter_returns_the_old_one_and_only_the_new_one_is_called(client, queue):
    first, second = Heard(), Heard()
    assert await queue.on_task_change(first) is None
    assert await client.queue("q").on_task_change(second) is first
    task = await queue.put("x")
    assert await all_of(second, queue) == [("put", task.id)]
    assert first.changes == []
    assert await queue.on_task_change(None) is second
    assert await queue.on_task_change(None) is None


async def test_nothing_is_told_after_the_last_one_has_left_and_the_queue_is_plain(shell, queue, db):
    mine, others = Heard(), Heard()
    other = shell.client().queue("q")
    await queue.on_task_change(mine)
    await other.on_task_change(others)
    await queue.on_task_change(None)
    assert value(db, OBSERVED, "q") is True
    task = await queue.put("x")
    assert await all_of(others, queue) == [("put", task.id)]
    await other.on_task_change(None)
    assert rows(db, "SELECT observed, special FROM pgqueue.queue WHERE name = 'q'") == [(False, False)]
    assert mine.changes == []


async def test_each_queue_has_its_own(client):
    one, two = Heard(), Heard()
    await client.queue("one").on_task_change(one)
    await client.queue("two").on_task_change(two)
    task = await client.queue("two").put("x")
    assert await all_of(two, client.queue("two")) == [("put", task.id)]
    assert one.changes == []


async def test_a_callback_that_raises_is_logged_and_called_again(queue, caplog):
    calls = Heard()

    def broken(change: Change) -> None:
        calls(change)
        raise LookupError("no such luck")

    await queue.on_task_change(broken)
    with caplog.at_level(logging.ERROR, "pgqueue"):
        task = await queue.put("x")
        await queue.delete(task)
        await soon(lambda: caplog.text.count("LookupError: no such luck") == 2)
    assert len(calls.changes) == 2
    assert await queue.put("y") is not None


async def test_after_a_lost_connection_it_goes_on(client, queue, db, caplog):
    heard = Heard()
    await queue.on_task_change(heard)
    ((_, pid),) = rows(db, f"SELECT pg_terminate_backend(pid), pid {OURS}")
    await soon(lambda: value(db, f"SELECT count(*) {OURS} AND pid <> %s", pid))
    await soon(lambda: "changes of queue 'q' may have been missed: the connection was lost" in caplog.text)
    task = await queue.put("x")
    assert await all_of(heard, queue) == [("put", task.id)]


async def test_when_the_session_was_given_up_too_it_goes_on(client, queue, db):
    """As after a crash of the server: what the session observed was forgotten with it."""
    heard = Heard()
    await queue.on_task_change(heard)
    db.execute("DELETE FROM pgqueue.session")  # not TRUNCATE of both: its locks deadlock with a tick now and then
    db.execute("DELETE FROM pgqueue.observer")
    db.execute("UPDATE pgqueue.queue SET observed = false")
    db.execute(f"SELECT pg_terminate_backend(pid) {OURS}")
    await soon(lambda: value(db, OBSERVED, "q"))
    task = await queue.put("x")
    assert await all_of(heard, queue) == [("put", task.id)]


async def test_it_ends_with_the_client(shell, db):
    client = shell.client()
    await client.queue("q").on_task_change(Heard())
    assert value(db, OBSERVED, "q") is True
    await client.close()
    assert value(db, OBSERVED, "q") is False
    with pytest.raises(pgqueue.ClosedError):
        await client.queue("q").on_task_change(Heard())


@pytest.mark.parametrize("callback", [1, "print", asyncio.sleep], ids=["number", "string", "coroutine function"])
async def test_what_is_no_callback_is_refused(queue, db, callback):
    with pytest.raises(ValueError, match="callback must be a plain function, or None"):
        await queue.on_task_change(callback)
    assert rows(db, "SELECT FROM pgqueue.queue") == []


async def test_taking_away_none_asks_nothing(client, queue, db):
    assert await queue.on_task_change(None) is None
    assert client.shell.core.running_listener is None


def test_a_callback_runs_in_the_listeners_thread(blocking):
    threads: list[str] = []
    queue = blocking().queue("q")
    queue.on_task_change(lambda change: threads.append(threading.current_thread().name))
    queue.put("x")
    eventually(lambda: threads == ["pgqueue-listener"])


async def test_a_callback_runs_on_the_loop_that_registered_it(awaiting):
    threads: list[threading.Thread] = []
    client = awaiting()
    await client.queue("q").on_task_change(lambda change: threads.append(threading.current_thread()))
    await client.queue("q").put("x")
    await soon(lambda: threads == [threading.current_thread()])


def test_a_loop_that_is_closed_is_no_matter(blocking):
    client = blocking()
    heard = Heard()

    async def register() -> None:
        await client.aio.queue("q").on_task_change(heard)
        await client.aio.shell.connections.close()

    asyncio.run(register())
    task = client.queue("q").put("x")
    other = Heard()
    assert client.queue("q").on_task_change(other) is heard
    client.queue("q").delete(task)
    eventually(lambda: ("delete", task.id) in other.ops())  # and perhaps the put, if that was slow to arrive
    assert heard.changes == []


def test_a_callback_may_use_the_client_and_change_the_callback(blocking):
    client = blocking()
    queue, left = client.queue("q"), threading.Event()

    def once(change: Change) -> None:
        client.queue("other").put(change.task_id)
        left.set()

    queue.on_task_change(once)
    task = queue.put("x")
    assert left.wait(30)
    taken = client.queue("other").take(timeout=10)
    assert taken is not None
    assert taken.data == task.id


def test_no_change_falls_between_two_callbacks(blocking):
    """Whichever of them is told, one is."""
    client, told = blocking(), set[int]()
    queue, put = client.queue("q"), blocking().queue("q").put
    ids: list[int] = []
    over = threading.Event()

    def producer() -> None:
        while not over.is_set():
            ids.append(put("x").id)

    queue.on_task_change(lambda change: told.add(change.task_id))
    thread = threading.Thread(target=producer)
    thread.start()
    for _ in range(30):
        queue.on_task_change(lambda change: told.add(change.task_id))
    over.set()
    thread.join()
    eventually(lambda: told == set(ids))


def test_coming_and_going_in_many_threads_leaves_it_as_the_last_one_did(blocking, db):
    client = blocking()
    queue, heard = client.queue("q"), Heard()

    def come_and_go(n: int) -> None:
        for turn in range(10):
            queue.on_task_change(heard if (n + turn) % 2 else None)

    threads = [threading.Thread(target=come_and_go, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    present = client.shell.core.observers.get("q")
    assert value(db, OBSERVED, "q") is (present is not None)
    (line,) = client.shell.core.listener().switchboard._lines.values()
    assert len(line.ears) == (present is not None)


def test_who_leaves_does_not_turn_off_what_another_just_turned_on(blocking, db, monkeypatch):
    """The one has left here, and not yet in the database, when the other comes."""
    client, heard = blocking(), Heard()
    queue = client.queue("q")
    queue.on_task_change(print)
    board = client.shell.core.listener().switchboard
    leave = board.leave

    def another_comes(ear: Any) -> None:
        monkeypatch.setattr(board, "leave", leave)
        leave(ear)
        assert queue.on_task_change(heard) is None

    monkeypatch.setattr(board, "leave", another_comes)
    assert queue.on_task_change(None) is print
    assert value(db, OBSERVED, "q") is True
    task = queue.put("x")
    eventually(lambda: heard.ops() == [("put", task.id)])


def test_a_forked_child_observes_by_itself(blocking):
    client = blocking()
    queue, heard = client.queue("q"), Heard()
    queue.on_task_change(heard)
    gc.collect()
    child = os.fork()
    if child == 0:
        try:
            mine = Heard()
            ok = queue.on_task_change(mine) is None
            task = queue.put("from the child")
            eventually(lambda: ("put", task.id) in mine.ops())
            os._exit(0 if ok else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    task = queue.put("x")
    eventually(lambda: ("put", task.id) in heard.ops())


def test_a_queue_that_nobody_observes_sends_nothing(blocking, db, dsn):
    client = blocking()
    queue = client.queue("q")
    queue.on_task_change(heard := Heard())
    queue.on_task_change(None)
    with psycopg.connect(dsn, autocommit=True) as ear:
        channel = value(db, "SELECT pgqueue._change_channel(id) FROM pgqueue.queue")
        ear.execute(f'LISTEN "{channel}"; LISTEN marker')
        taken = (queue.put("x"), queue.take(0))[1]
        assert taken is not None
        taken.ack()
        db.execute("NOTIFY marker")
        assert next(ear.notifies(timeout=10)).channel == "marker"
    assert heard.changes == []
