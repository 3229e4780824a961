"""client.session(): several holders over one client, each with takes, queues and deadlines of its own."""

from __future__ import annotations

import asyncio

import pytest
from eventually import Stopwatch, eventually, in_time, soon
from processes import programs
from statements import column, rows, state, value
from steady import steady
from waiters import waiting

import pgqueue
from pgqueue._engine import takes

pytestmark = pytest.mark.once

SESSIONS = "SELECT count(*) FROM pgqueue.sessions WHERE parent IS NOT NULL"


async def test_each_has_its_own_takes(client, queue, db):
    await queue.put_many(range(4))
    async with client.session("one") as one, client.session("two") as two:
        tasks = [await one.queue("q").take(0), await two.queue("q").take(0), await client.queue("q").take(0)]
        assert [task.data for task in tasks] == [0, 1, 2]
        label = client.shell.core.label
        assert column(db, "SELECT holder FROM pgqueue.takes ORDER BY id") == [f"{label} one", f"{label} two", label]
        with pytest.raises(pgqueue.TakeLost):
            await two.queue("q").ack(tasks[0].id)
        with pytest.raises(pgqueue.TakeLost):
            await client.queue("q").release(tasks[1].id)
        await one.queue("q").ack(tasks[0].id)
        await tasks[1].ack()
    assert state(db, tasks[2].id) == "taken"
    assert value(db, SESSIONS) == 0


async def test_a_close_gives_back_its_takes_alone_and_at_once(client, queue, db, dsn):
    await queue.put_many(range(3))
    one, two = client.session(), client.session()
    mine, others = await one.queue("q").take_many(2), await two.queue("q").take()
    with steady(dsn) as watch:
        await one.close()
        assert watch() < 1
    assert [state(db, task.id) for task in (*mine, others)] == ["ready", "ready", "taken"]
    with pytest.raises(pgqueue.TakeLost):
        await mine[0].ack()
    await one.close()
    with pytest.raises(pgqueue.ClosedError, match="the session is closed"):
        await one.queue("q").take(0)
    with pytest.raises(pgqueue.ClosedError, match="the session is closed"):
        await one.create_queue("own", exclusive=True)
    await client.close()
    assert column(db, "SELECT state FROM pgqueue.tasks ORDER BY id") == ["ready"] * 3


async def test_nothing_is_sent_before_the_first_take(client, queue, db):
    await queue.put(1)
    sessions = [client.session() for _ in range(100)]
    await queue.take(0)
    await sessions[0].queue("q").put(2)
    assert value(db, SESSIONS) == 0
    await sessions[1].queue("q").take(0)
    assert value(db, SESSIONS) == 1
    for session in sessions:
        await session.close()


async def test_an_exclusive_queue_is_the_sessions(client, db):
    one, two = client.session(), client.session()
    await (await one.create_queue("own", exclusive=True)).put("x")
    await one.create_queue("passing", temporary=True)
    for other in (two, client):
        with pytest.raises(pgqueue.errors.QueueExclusive):
            await other.queue("own").take(0)
        with pytest.raises(pgqueue.errors.QueueExclusive):
            await other.create_queue("own", if_not_exists=True)
    await one.create_queue("own", if_not_exists=True)
    assert (await one.queue("own").take(0)).data == "x"
    await two.close()
    assert [queue.name for queue in await client.queues()] == ["own", "passing"]
    await one.close()
    assert await client.queues() == []


async def test_an_auto_delete_queue_ends_with_the_last_session_that_took(client):
    one, two = client.session(), client.session()
    await client.create_queue("q", auto_delete=True)
    await one.queue("q").take(0)
    await two.queue("q").take(0)
    await one.close()
    assert len(await client.queues()) == 1
    await two.close()
    assert await client.queues() == []


async def test_a_will_is_not_published_when_the_session_is_closed(client, queue):
    await queue.put(1)
    async with client.session() as one:
        await one.exchanges.set_will("", "q", "dead")
        await one.queue("q").take(0)
    assert [task.data for task in await queue.pop(5)] == [1]


async def test_deadlines_are_the_sessions(client, db, monkeypatch):
    monkeypatch.setattr(takes, "SOON", 60.0)
    queue = await client.create_queue("q", ttr=30)
    await queue.put(1)
    one, two = client.session(), client.session()
    await one.queue("q").take(0)
    with pytest.raises(pgqueue.errors.DeadlineSoon):
        await one.queue("q").take(10, deadline_soon=True)
    assert await two.queue("q").take(0.1, deadline_soon=True) is None
    await one.close()


async def test_a_close_ends_its_waits_alone(client, queue, db):
    one, two = client.session(), client.session()
    await queue.put_many([1, 2])
    for session in (one, two):
        await (await session.queue("q").take(0)).ack()
    waits = [asyncio.ensure_future(session.queue("q").take(30)) for session in (one, one, two)]
    waits.append(asyncio.ensure_future(one.queue("q").pop(timeout=30)))
    await waiting(client, "q")
    core = client.shell.core
    await soon(lambda: len(core.running_listener.hub._channels[core.queue_ids["q"]].waiters) == 4)
    watch = Stopwatch()
    await one.close()
    assert await waits[0] is None
    assert await waits[1] is None
    assert await waits[3] == []
    assert watch() < 5
    assert not waits[2].done()
    await queue.put(3)
    assert (await waits[2]).data == 3
    await two.close()


async def test_what_a_session_gives_back_goes_to_another_that_waits(client, queue):
    one, two = client.session(), client.session()
    await queue.put(1)
    await one.queue("q").take(0)
    wait = asyncio.ensure_future(two.queue("q").take(30))
    await waiting(client, "q")
    await one.close()
    assert (await wait).data == 1
    await two.close()


async def test_a_consumer_of_a_session(client, queue, db):
    await queue.put_many([1, 2])
    one = client.session()
    consumer = await one.consumer(["q"])
    (first, second) = await consumer.receive(timeout=10)
    consumer.ack(first)
    await consumer.flush()
    await one.close()
    with pytest.raises(pgqueue.ClosedError):
        await consumer.receive()
    await consumer.close()
    assert rows(db, "SELECT id, state FROM pgqueue.tasks") == [(second.id, "ready")]


async def test_a_session_whose_row_is_gone_is_opened_anew(client, queue, db, connect):
    await queue.put_many([1, 2])
    one = client.session()
    lost = await one.queue("q").take(0)
    with connect() as claiming, claiming.transaction():  # a claim holds off clean_up, which ends the take
        claiming.execute("SELECT pg_advisory_xact_lock_shared(pgqueue._claiming_lock(), session_id) FROM pgqueue.take")
        db.execute("DELETE FROM pgqueue.session WHERE parent IS NOT NULL")
        assert (await one.queue("q").take(5)).data == 2
        assert value(db, SESSIONS) == 1
        await lost.ack()  # by its token
    await one.close()


async def test_it_lives_on_after_a_lost_connection(shell, db):
    client = shell.client(session_grace=20)
    await client.queue("q").put_many([1, 2])
    one = client.session()
    task = await one.queue("q").take(0)
    core = client.shell.core
    before = core.running_listener.last_session
    value(db, "SELECT pg_terminate_backend(backend_pid) FROM pgqueue.sessions WHERE parent IS NULL")
    second = await one.queue("q").take(10)
    assert second.data == 2
    assert core.running_listener.last_session == before
    seen = "SELECT count(DISTINCT backend_pid), count(*) FROM pgqueue.sessions"
    assert rows(db, seen) == [(1, 2)]
    await one.queue("q").ack(task.id)
    await one.close()
    await client.queue("q").put(3)
    assert (await client.queue("q").take(0)).data == 2


async def test_after_its_client_was_given_up_it_is_another_one(shell, db, connect):
    client = shell.client(session_grace=0)
    await client.queue("q").put(1)
    one = client.session()
    task = await one.queue("q").take(0)
    listener = client.shell.core.running_listener
    with connect() as other, other.transaction():
        other.execute("LOCK pgqueue.session IN SHARE ROW EXCLUSIVE MODE")  # no session is opened, and none swept
        value(other, "SELECT pg_terminate_backend(backend_pid) FROM pgqueue.session WHERE parent IS NULL")
        other.execute("DELETE FROM pgqueue.session")
        other.execute("DELETE FROM pgqueue.take")
    again = await one.queue("q").take(10)
    assert again.id == task.id
    assert again.token != task.token
    assert value(db, SESSIONS) == 1
    assert listener is client.shell.core.running_listener
    await one.close()


async def test_a_cancel_reaches_the_holder(client, queue):
    await queue.put(1)
    one = client.session()
    task = await one.queue("q").take(0)
    cancelled = task.cancelled
    assert not cancelled.is_set()
    await client.cancel(task, "enough")
    assert await cancelled.wait(30)
    assert cancelled.reason == "enough"
    await one.close()


async def test_a_session_that_cannot_be_is_refused(client, queue, db):
    await queue.put(1)
    with pytest.raises(ValueError, match="label"):
        client.session(7)
    db.execute("SELECT pgqueue.set_quota('sessions', 0)")
    one = client.session()
    watch = Stopwatch()
    with pytest.raises(pgqueue.errors.QuotaReached, match="limit of 0 sessions"):
        await one.queue("q").take(30)
    assert watch() < 5
    await one.close()


async def test_the_end_of_the_client_ends_its_sessions(shell, db):
    client = shell.client()
    await client.queue("q").put(1)
    one = client.session()
    await one.queue("q").take(0)
    await client.close()
    assert value(db, "SELECT state FROM pgqueue.tasks") == "ready"
    assert value(db, "SELECT count(*) FROM pgqueue.sessions") == 0
    await one.close()
    with pytest.raises(pgqueue.ClosedError):
        await one.queue("q").take(0)


@pytest.mark.slow
def test_the_death_of_the_process_frees_all_within_a_second(dsn, db, blocking):
    client = blocking()
    queue = client.queue("q")
    own = "SELECT name FROM pgqueue.queues WHERE name = 'own'"

    def kill_to_ready() -> float:
        ids = list(queue.put_many(range(5)))
        with programs() as make:
            program = make("sessions", dsn, "q", 5, 0.5)
            assert program.hear()["taken"] == ids
            assert column(db, own) == ["own"]
            client.queue("other").take(0)  # this client sweeps
            with steady(dsn) as watch:
                program.kill()
                eventually(lambda: column(db, "SELECT DISTINCT state FROM pgqueue.tasks") == ["ready"])
                seconds = watch()
            eventually(lambda: column(db, own) == [])
        assert value(db, SESSIONS) == 0
        queue.ack_many(queue.take_many(5))
        return seconds

    in_time(kill_to_ready, within=1.5)
