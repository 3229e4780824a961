"""beanstalkd's habits, and those of the older clients of Tarantool's queue: one task by its id or its place."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, soon, soon_enough
from statements import pass_time, value

import pgqueue
from pgqueue import TaskNotFound, TaskNotTaken, TaskTakenByOther
from pgqueue._engine import takes
from pgqueue.errors import DeadlineSoon, TaskBusy

pytestmark = pytest.mark.once

Shell = Any


def armed(db: psycopg.Connection) -> bool:
    """Somebody waits in front of a queue."""
    held = "SELECT EXISTS (SELECT FROM pg_locks WHERE classid = pgqueue._waiter_lock() AND granted)"
    return bool(value(db, held))


# --- reserve-job


async def test_take_id_is_an_ordinary_take(queue: Any) -> None:
    first, second = await queue.put(1), await queue.put({"x": 2}, delay=60, ttr=60)
    task = await queue.take_id(second.id)
    assert (task.id, task.queue, task.state, task.data) == (second.id, "q", "taken", {"x": 2})
    assert task.token is not None
    assert task.deadline is not None
    assert (await task.ack()).state == "done"
    assert (await queue.take_id(str(first.id))).data == 1


async def test_take_id_of_a_buried_task(queue: Any) -> None:
    await queue.put(1)
    buried = await (await queue.take(0)).bury()
    assert (await queue.take_id(buried)).state == "taken"


async def test_take_id_of_what_cannot_be_had(shell: Shell, queue: Any) -> None:
    with pytest.raises(TaskNotFound, match="12345"):
        await queue.take_id(12345)
    task = await queue.put(1, lane="a")
    other = shell.client().queue("q")
    taken = await other.take(0)
    with pytest.raises(TaskTakenByOther, match=str(task.id)) as caught:
        await queue.take_id(task)
    assert caught.value.holder
    with pytest.raises(TaskTakenByOther):  # also one's own: it is taken already
        await other.take_id(taken)
    second = await queue.put(2, lane="a")
    with pytest.raises(TaskBusy, match="lane"):
        await queue.take_id(second)
    await taken.ack()
    assert (await queue.take_id(second)).data == 2
    for bad in (None, "x", 1.5, True):
        with pytest.raises(pgqueue.errors.TaskIdRequired):
            await queue.take_id(bad)


async def test_what_was_taken_by_id_comes_back_when_its_client_closes(shell: Shell, queue: Any) -> None:
    task = await queue.put(1, delay=60)
    client = shell.client()
    await client.queue("q").take_id(task)
    await client.close()
    assert (await queue.take(5)).id == task.id


async def test_take_id_takes_from_a_paused_queue(queue: Any) -> None:
    task = await queue.put(1)
    await queue.pause(60)
    assert await queue.take(0) is None
    assert (await queue.take_id(task)).data == 1


# --- delete, kick, peek


async def test_a_strict_delete_leaves_what_another_has(shell: Shell, queue: Any) -> None:
    await queue.put(1)
    task = await queue.take(0)
    other = shell.client().queue("q")
    await other.take(0)  # so that it has a session
    with pytest.raises(TaskTakenByOther):
        await other.delete(task.id, strict=True)
    assert (await queue.peek(task)).state == "taken"
    await task.delete(strict=True)
    with pytest.raises(TaskNotFound):
        await queue.delete(task, strict=True)
    ready = await queue.put(1)
    await other.delete(ready, strict=True)
    await queue.put(1)
    await other.delete((await queue.take(0)).id)  # not strict: whoever has it
    assert (await queue.stats())["total"] == 0


async def test_kick_moves_delayed_only_when_nothing_is_buried(queue: Any) -> None:
    delayed = await queue.put(1, delay=60)
    buried = await queue.put(2)
    await queue.bury(buried)
    assert await queue.kick(10) == 1
    assert [(await queue.peek(task)).state for task in (buried, delayed)] == ["ready", "delayed"]
    assert await queue.kick(10) == 0
    assert await queue.kick(10, delayed=True) == 1
    assert (await delayed.peek()).state == "ready"


async def test_kick_task(queue: Any) -> None:
    task = await queue.put(1, delay=60)
    assert await task.kick() is True
    assert await queue.kick_task(task.id) is False
    assert (await task.peek()).state == "ready"
    await task.delete()
    with pytest.raises(TaskNotFound):
        await task.kick()


async def test_a_burial_outlives_the_time_to_run_and_ends_with_the_time_to_live(
    queue: Any, db: psycopg.Connection
) -> None:
    await queue.put(1, ttr=60, ttl=3600)
    task = await (await queue.take(0)).bury()
    pass_time(db, "2 min")  # past its time to run
    assert await queue.take(0) is None
    assert (await task.peek()).state == "buried"
    pass_time(db, "1 h")
    await soon(lambda: _gone(queue, task))
    assert await queue.kick() == 0


async def _gone(queue: Any, task: Any) -> bool:
    try:
        await queue.take(0)  # a client that looks, so that there is a listener to see to it
        await task.peek()
    except TaskNotFound:
        return True
    return False


async def test_peek_next(queue: Any) -> None:
    for state in ("ready", "delayed", "buried"):
        assert await queue.peek_next(state) is None
    late, soon, buried = await queue.put(1, delay=90), await queue.put(2, delay=60), await queue.put(3)
    await queue.bury(buried)
    ready = await queue.put(4)
    assert (await queue.peek_next()).id == ready.id
    assert (await queue.peek_next("delayed")).id == soon.id
    found = await queue.peek_next("buried")
    assert (found.id, found.state, found.data) == (buried.id, "buried", 3)
    assert await found.kick() is True
    assert (await queue.take(0)).id == buried.id
    assert (await late.peek()).state == "delayed"
    with pytest.raises(ValueError, match="peek_next needs the state ready, delayed or buried, not 'taken'"):
        await queue.peek_next("taken")


# --- statistics of a task


async def test_task_stats(queue: Any) -> None:
    task = await queue.put(1, ttr=60, priority=5)
    stats = await task.stats()
    assert (stats.id, stats.queue, stats.state, stats.priority, stats.ttr) == (task.id, "q", "ready", 5, 60)
    assert 0 <= stats.age < 30
    assert (stats.reserves, stats.time_left) == (0, None)
    taken = await queue.take(0)
    stats = await taken.stats()
    assert stats.reserves == 1
    assert 50 < stats.time_left <= 60
    await taken.release(delay=90)
    assert 80 < (await task.stats()).time_left <= 90
    assert await task.kick()
    await (await queue.take(0)).bury()
    stats = await queue.task_stats(task.id)
    assert (stats.reserves, stats.releases, stats.buries, stats.kicks, stats.timeouts) == (2, 1, 1, 1, 0)
    await task.delete()
    with pytest.raises(TaskNotFound):
        await task.stats()


@pytest.mark.slow
async def test_task_stats_count_timeouts(queue: Any) -> None:
    task = await queue.put(1, ttr=2)
    await queue.take(0)
    assert (await queue.take(60)).id == task.id
    stats = await task.stats()
    assert (stats.timeouts, stats.reserves, stats.attempts) == (1, 2, 1)


# --- put_unique, urgent, requeue


async def test_put_unique_of_a_duplicate_is_none(queue: Any) -> None:
    task = await queue.put_unique({"a": 1, "b": [2]})
    assert task.state == "ready"
    assert await queue.put_unique({"b": [2], "a": 1}) is None
    assert (await queue.put_unique({"a": 1, "b": [3]})).id > task.id
    named = await queue.put_unique(1, key="k")
    assert await queue.put_unique(2, key="k") is None
    assert (await named.peek()).data == 1
    await queue.take_id(task)
    assert await queue.put_unique({"a": 1, "b": [2]}) is None  # it is taken, and not done
    await queue.ack(task.id)
    assert (await queue.put_unique({"a": 1, "b": [2]})).id > named.id


async def test_urgent_is_first(queue: Any) -> None:
    await queue.put("low", priority=-5)
    await queue.put("default")
    await queue.urgent("urgent")
    assert (await queue.urgent("more urgent", ttr=60)).state == "ready"
    assert [(await queue.take(0)).data for _ in range(4)] == ["more urgent", "urgent", "low", "default"]


async def test_requeue_is_last(queue: Any) -> None:
    for data in "abc":
        await queue.put(data)
    task = await queue.take(0)
    moved = await task.requeue()
    assert (moved.state, moved.data, moved.token) == ("ready", "a", None)
    assert moved.id > task.id
    taken = [await queue.take(0) for _ in range(3)]
    assert [task.data for task in taken] == ["b", "c", "a"]
    assert taken[2].id == moved.id
    assert await queue.requeue(taken[2].id) > moved.id
    with pytest.raises(TaskNotFound):
        await task.requeue()
    with pytest.raises(TaskNotTaken):
        await queue.requeue((await queue.put(1)).id)


async def test_puts_that_choose_their_place_in_the_callers_transaction(shell: Shell, queue: Any) -> None:
    conn = await shell.connection()
    await queue.put_unique(1, conn=conn)
    await queue.urgent(2, conn=conn)
    await conn.rollback()
    assert (await queue.stats())["total"] == 0
    await queue.put_unique(1, conn=conn)
    await queue.urgent(2, conn=conn)
    await conn.commit()
    assert [(await queue.take(0)).data for _ in range(2)] == [2, 1]


# --- pause-tube, DEADLINE_SOON


@pytest.mark.slow
async def test_a_waiting_take_is_served_at_the_end_of_a_pause(queue: Any) -> None:
    async def paused() -> float:
        await queue.put(1)
        watch = Stopwatch()
        await queue.pause(1)
        task = await queue.take(0) or await queue.take(60)
        seconds = watch()
        assert (await task.ack()).data == 1
        assert seconds > 0.95
        return seconds

    await soon_enough(paused, within=1.5)


@pytest.mark.slow
async def test_puts_into_a_paused_queue_serve_all_waiters_at_its_end(
    shell: Shell, queue: Any, db: psycopg.Connection
) -> None:
    others = [shell.client().queue("q") for _ in range(2)]
    waiting = [asyncio.ensure_future(taker.take(20)) for taker in (queue, *others)]
    await soon(lambda: armed(db))
    watch = Stopwatch()
    await queue.pause(0.5)
    await queue.put_many([1, 2, 3])
    tasks = await asyncio.gather(*waiting)
    assert sorted(task.data for task in tasks) == [1, 2, 3]
    assert watch() >= 0.5


@pytest.mark.slow
async def test_a_take_ends_before_a_deadline_of_its_client(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By SOON, and 29 seconds in place of one leave time to ack."""
    assert takes.SOON == 1
    monkeypatch.setattr(takes, "SOON", 29.0)

    async def warned() -> float:
        await queue.put(1, ttr=30)
        watch = Stopwatch()
        task = await queue.take(0)
        with pytest.raises(DeadlineSoon, match=r"settle or touch a task .* its time ends in"):
            await queue.take(60, deadline_soon=True)
        seconds = watch()
        assert seconds > 0.95
        assert (await task.ack()).state == "done"
        assert await queue.take(0.1, deadline_soon=True) is None
        return seconds

    await soon_enough(warned, within=1.5)


async def test_a_ready_task_precedes_the_deadline_warning(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takes, "SOON", 60.0)
    await queue.put(1, ttr=30)
    await queue.take(0)
    await queue.put(2)
    assert (await queue.take(60, deadline_soon=True)).data == 2
    with pytest.raises(DeadlineSoon):
        await queue.take(60, deadline_soon=True)


@pytest.mark.slow
async def test_a_touch_postpones_the_warning_and_other_clients_get_none(
    shell: Shell, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takes, "SOON", 60.0)
    queue = client.queue("q")
    await queue.put(1, ttr=40)
    task = await queue.take(0)
    await task.touch(1000)
    assert await client.take(["q", "r"], 0.4, deadline_soon=True) is None
    await queue.put(2, ttr=30)
    await queue.take(0)
    other = shell.client()
    assert await other.queue("r").take(0.1, deadline_soon=True) is None
    assert await queue.take(0.05) is None  # nobody asked for it


async def test_a_take_that_warns_of_deadlines_gets_a_task_that_is_put_meanwhile(
    queue: Any, db: psycopg.Connection
) -> None:
    await queue.put(1, ttr=60)
    await queue.take(0)
    waiting = asyncio.ensure_future(queue.take(20, deadline_soon=True))
    await soon(lambda: armed(db))
    await queue.put(2)
    assert (await waiting).data == 2
