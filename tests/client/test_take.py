"""Taking and waiting, on both shells: time limits, wake-ups, order, delays, closes and cancellations."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest
from eventually import PATIENCE, Stopwatch, soon, soon_enough
from statements import notifications, pass_time, rows, value
from steady import steady
from waiters import waiting

import pgqueue
from pgqueue._engine import cursor
from pgqueue._engine.hub import Hub

LISTENERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgqueue listener' AND datname = current_database()"
)
LOCK_WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.mark.parametrize(("verb", "held"), [("take_many", 1), ("pop", 0)])
async def test_a_take_from_several_queues_finds_what_a_tick_is_making_ready(client, connect, db, verb, held):
    """T1, a tick, has made the task ready and not yet committed. It was due when the take began."""
    await client.take_many(["q", "r"], 5, 0)

    async def find() -> bool:
        await client.queue("r").put("x", delay=3600)
        pass_time(db, "2 h")
        with connect(autocommit=False) as t1:
            promoted = value(t1, "SELECT pgqueue._promote(id) FROM pgqueue.queue WHERE name = 'r'")
            taking = asyncio.ensure_future(getattr(client, verb)(["q", "r"], 5, 0))
            await soon(lambda: taking.done() or value(db, LOCK_WAITS) == 1)
        found = [task.data for task in await taking] == ["x"]
        assert value(db, "SELECT count(*) FROM pgqueue.take") == found * held
        await client.queue("r").truncate()
        return found and promoted == 1  # else the client's own tick was first, or the machine stood still

    await soon(find)


async def test_a_waiting_take_gets_what_is_put(client, queue):
    async def put_to_taken() -> float:
        taking = asyncio.ensure_future(queue.take(60))
        await waiting(client, "q")
        watch = Stopwatch()
        await queue.put("x")
        assert (await taking).data == "x"
        return watch()

    await soon_enough(put_to_taken, within=0.3)


@pytest.mark.parametrize(("timeout", "within"), [(0, 0.05), (0.3, 0.5)])
async def test_a_take_from_an_empty_queue_ends_in_its_time(queue, timeout, within):
    await queue.take(0)  # opens the session

    async def take() -> float:
        watch = Stopwatch()
        assert await queue.take(timeout) is None
        assert watch() >= timeout
        return watch()

    await soon_enough(take, within=within)


async def test_eight_takers_take_each_task_once(queue):
    ids = await queue.put_many(range(100))

    async def taker():
        taken = []
        while task := await queue.take(0):
            taken.append(task.id)
        return taken

    taken = await asyncio.gather(*(taker() for _ in range(8)))
    assert sorted(id for ids in taken for id in ids) == ids


async def test_a_rolled_back_put_is_never_seen(shell, client, queue, db):
    taking = asyncio.ensure_future(queue.take(60))
    await waiting(client, "q")
    conn = await shell.connection()
    await queue.put("x", conn=conn)
    await conn.rollback()
    assert rows(db, "SELECT * FROM pgqueue.tasks") == []
    await queue.put("y")
    assert (await taking).data == "y"


async def test_twenty_waiters_are_served_by_one_notification(shell, client, queue, dsn):
    taking = [asyncio.ensure_future(queue.take(60)) for _ in range(20)]
    hub = client.shell.core.listener().hub
    await soon(lambda: sum(len(channel.waiters) for channel in hub._channels.values()) == 20)
    conn = await shell.connection()
    for n in range(20):
        await queue.put(n, conn=conn)
    with steady(dsn) as watch:
        await conn.commit()
        served = await asyncio.gather(*taking)
        assert watch() < 1
    assert sorted(task.data for task in served) == list(range(20))


@pytest.mark.slow
async def test_one_put_serves_one_and_the_other_keeps_its_time(client, queue):
    await queue.take(0)  # opens the session

    async def attempt() -> float:
        watch = Stopwatch()
        taking = [asyncio.ensure_future(queue.take(0.8)) for _ in range(2)]
        hub = client.shell.core.listener().hub
        await soon(
            lambda: sum(len(one.waiters) for one in hub._channels.values()) == 2 or any(one.done() for one in taking)
        )
        await queue.put("x")
        tasks = await asyncio.gather(*taking)
        seconds = watch()
        assert seconds >= 0.8
        if tasks == [None, None]:  # their time was over before the put
            assert await queue.pop() is not None
            return float("inf")
        assert sorted(task is None for task in tasks) == [False, True]
        return seconds

    await soon_enough(attempt, within=1.1)


@pytest.mark.slow
async def test_no_wake_up_is_lost_in_400_races(queue):
    """Put and take begin together each time; nothing but a wake-up can end the take."""
    for n in range(400):
        taking = asyncio.ensure_future(queue.take(2 * PATIENCE))
        await queue.put(n)
        watch = Stopwatch()
        task = await taking
        assert task is not None, n
        assert watch() < PATIENCE
        assert task.data == n
        await task.ack()


async def test_a_put_without_a_waiter_sends_no_notify(client, queue, dsn, db):
    await queue.put("makes the queue")
    (id,) = rows(db, "SELECT id FROM pgqueue.queue")[0]
    with psycopg.connect(dsn, autocommit=True) as ear:
        ear.execute(f'LISTEN "pgqueue:{id}"')
        await queue.put(1)
        await queue.put_many([2, 3])
        assert notifications(ear, db) == []


@pytest.fixture
def exact(monkeypatch):
    """However slow this machine is: what is tested is the order at the head of the queue."""
    monkeypatch.setattr(cursor, "SLOWER", float("inf"))


@pytest.mark.usefixtures("exact")
async def test_a_released_task_is_first_again(queue):
    await queue.put_many(["old", "young"])
    task = await queue.take(0)
    assert (await task.release()).state == "ready"
    again = await queue.take(0)
    assert (again.id, again.data) == (task.id, "old")


async def test_a_delayed_release_wakes_a_waiting_take(client, queue):
    await queue.put("x")

    async def release_to_taken() -> float:
        task = await queue.take(0)
        taking = asyncio.ensure_future(queue.take(60))
        await waiting(client, "q")
        watch = Stopwatch()
        await task.release(delay=0.5)
        again = await taking
        seconds = watch()
        assert again.id == task.id
        assert seconds > 0.45
        await again.release()
        return seconds

    await soon_enough(release_to_taken, within=0.7)


async def test_a_shorter_delay_overtakes_a_longer_one(client, queue):
    await queue.put("late", delay=60)

    async def put_to_taken() -> float:
        taking = asyncio.ensure_future(queue.take(60))
        await waiting(client, "q")
        watch = Stopwatch()
        await queue.put("soon", delay=0.2)
        assert (await taking).data == "soon"
        assert watch() > 0.19
        return watch()

    await soon_enough(put_to_taken, within=0.5)


@pytest.mark.parametrize("delay", [-1, float("nan"), "1", True, 1e10])
async def test_invalid_delays_are_refused(queue, db, delay):
    with pytest.raises(ValueError, match="delay"):
        await queue.put("x", delay=delay)
    with pytest.raises(ValueError, match="delay"):
        await queue.put_many(["x"], delay=delay)
    assert rows(db, "SELECT * FROM pgqueue.tasks") == []


async def test_a_close_ends_a_waiting_take(client, queue, dsn, db):
    taking = asyncio.ensure_future(queue.take(60))
    await waiting(client, "q")
    with steady(dsn) as watch:
        await client.close()
        assert await taking is None
        assert watch() < 2
    with pytest.raises(pgqueue.ClosedError):
        await queue.take(0)
    value(db, "SELECT (pgqueue.put('q', '1')).id")
    assert rows(db, "SELECT state FROM pgqueue.tasks") == [("ready",)]


def test_a_close_before_the_last_look_ends_a_take_as_in_its_sleep(blocking, monkeypatch):
    """The look finds the pool closed."""
    enter = Hub.enter

    def close_and_enter(hub, waiter):
        client.close()
        return enter(hub, waiter)

    client = blocking()
    queue = client.queue("q")
    assert queue.take(0) is None
    monkeypatch.setattr(Hub, "enter", close_and_enter)
    assert queue.take(60) is None
    with pytest.raises(pgqueue.ClosedError):
        queue.take(0)


async def test_a_close_gives_back_what_was_taken(client, queue, db):
    await queue.put_many([1, 2])
    await queue.take_many(2)
    await client.close()
    assert rows(db, "SELECT state, attempts FROM pgqueue.tasks") == [("ready", 0), ("ready", 0)]


@pytest.mark.slow
async def test_a_take_cancelled_anywhere_leaves_the_task_to_be_taken(awaiting, db):
    """Cancelled after more and more turns of the loop, until it is done before it can be."""
    client = awaiting()
    queue = client.queue("q")
    await queue.put("x")
    await (await queue.take(0)).release()  # everything is connected
    for turns in range(200):
        taking = asyncio.ensure_future(queue.take(1))
        for _ in range(turns):
            await asyncio.sleep(0)
        taking.cancel()
        try:
            task = await taking
        except asyncio.CancelledError:
            task = await queue.take(5)
        assert task is not None, turns
        await task.release()
    await soon(lambda: rows(db, "SELECT state FROM pgqueue.tasks") == [("ready",)])


async def test_a_deadline_that_passes_while_the_claim_runs(client, queue, dsn):
    """The claim has to wait for a lock that is freed after the take's time is over."""
    await queue.put("x")
    await queue.take(0.01)
    await queue.put("y")
    with psycopg.connect(dsn) as blocker:
        blocker.execute("LOCK TABLE pgqueue.take IN ACCESS EXCLUSIVE MODE")
        taking = asyncio.ensure_future(queue.take(0.1))
        await soon(lambda: value(blocker, "SELECT count(*) FROM pg_locks WHERE NOT granted") > 0)
        threading.Timer(0.3, blocker.rollback).start()
        assert (await taking).data == "y"


@pytest.mark.usefixtures("exact")
async def test_priority_then_age(queue):
    await queue.put("b", priority=1)
    await queue.put("a1", priority=0)
    await queue.put("a2")
    await queue.put("first", priority=-5)
    assert [(await queue.take(0)).data for _ in range(4)] == ["first", "a1", "a2", "b"]


async def test_the_lowest_of_several_queues(client):
    await client.queue("a").put("a", priority=5)
    await client.queue("b").put("b", priority=1)
    task = await client.take(["a", "b"], 0)
    assert (task.queue, task.data) == ("b", "b")
    assert [task.queue for task in await client.take_many(["a", "b"], 10, 0)] == ["a"]


async def test_a_thousand_in_order(queue):
    ids = await queue.put_many(range(1500))
    assert [task.id for task in await queue.take_many(1000)] == ids[:1000]
    assert [task.id for task in await queue.take_many(1000)] == ids[1000:]


async def test_fifty_queues_are_waited_on_over_one_connection(client, db):
    names = [f"q{n}" for n in range(50)]
    taking = [asyncio.ensure_future(client.queue(name).take(20)) for name in names]
    await waiting(client, *names)
    assert value(db, LISTENERS) == 1
    for name in names:
        await client.queue(name).put(name)
    assert [task.data for task in await asyncio.gather(*taking)] == names


async def test_a_terminated_listener_is_replaced_and_waiters_served(client, queue, dsn, db):
    taking = asyncio.ensure_future(queue.take(60))
    await waiting(client, "q")
    with steady(dsn) as watch:
        rows(db, LISTENERS.replace("count(*)", "pg_terminate_backend(pid)"))
        await queue.put("x")
        assert (await taking).data == "x"
        assert watch() < 2


async def test_no_listener_before_the_first_take(queue, db):
    await queue.put("x")
    await queue.stats()
    assert value(db, LISTENERS) == 0
    assert "pgqueue-listener" not in {thread.name for thread in threading.enumerate()}
    await queue.take(0)
    assert value(db, LISTENERS) == 1
