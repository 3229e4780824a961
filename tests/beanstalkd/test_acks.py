"""Acks that several connections make at the same time."""

from __future__ import annotations

import asyncio

import pytest
from eventually import soon
from statements import pass_time

from pgqueue.beanstalkd.acks import Acks
from pgqueue.errors import ConnectionLost, TakeLost, TaskNotTaken

pytestmark = pytest.mark.once


@pytest.fixture
def statements(client, monkeypatch):
    """The calls that are sent."""
    sent, run = [], client.shell.run

    async def counted(call, *args, **options):
        sent.append(call)
        return await run(call, *args, **options)

    monkeypatch.setattr(client.shell, "run", counted)
    return sent


@pytest.mark.slow
async def test_acks_at_the_same_time_share_a_statement(client, statements):
    queues = [client.queue("a"), client.queue("b")]
    for queue in queues:
        await queue.put_many(range(10))
    tasks = [await queue.take(0) for queue in queues for _ in range(10)]
    statements.clear()
    acks = Acks(client)
    await asyncio.gather(*(acks.ack(task) for task in tasks))
    assert len(statements) == 2  # the first one, and all others
    assert [(await queue.stats())["total"] for queue in queues] == [0, 0]
    assert [(await queue.stats())["calls"]["ack"] for queue in queues] == [10, 10]


async def test_a_refused_ack_is_told_to_its_caller_alone(client):
    queue = client.queue("a")
    await queue.put_many(range(4))
    tasks = [await queue.take(0) for _ in range(4)]
    await queue.release(tasks[2])
    acks = Acks(client)
    ended = await asyncio.gather(*(acks.ack(task) for task in tasks), return_exceptions=True)
    assert [type(one) for one in ended] == [type(None), type(None), TaskNotTaken, type(None)]
    assert (await queue.stats())["total"] == 1


async def test_of_two_takes_of_a_task_the_later_one_counts(client, db):
    queue = client.queue("a")
    await queue.put_many(range(2), ttr=60)
    first, late = await queue.take(0), await queue.take(0)
    pass_time(db, "120 s")
    again = {task.id: task for task in [await queue.take(0), await queue.take(0)]}
    acks = Acks(client)
    which = [again[first.id], late, again[late.id]]
    ended = await asyncio.gather(*(acks.ack(task) for task in which), return_exceptions=True)
    assert isinstance(ended[1], TakeLost)
    assert (ended[0], ended[2]) == (None, None)
    assert (await queue.stats())["total"] == 0


async def test_acks_of_a_server_that_ends_do_not_hang(client, monkeypatch):
    queue = client.queue("a")
    await queue.put_many(range(3))
    tasks = [await queue.take(0) for _ in range(3)]
    acks, run, hung = Acks(client), client.shell.run, asyncio.Event()

    async def hangs(call, *args, **options):
        if "ack_many" in call.sql:
            hung.set()
            await asyncio.Event().wait()
        return await run(call, *args, **options)

    monkeypatch.setattr(client.shell, "run", hangs)
    acking = [asyncio.ensure_future(acks.ack(task)) for task in tasks]
    await soon(hung.is_set)
    acking[1].cancel()
    ended = await asyncio.gather(*acking, return_exceptions=True)
    assert [type(one) for one in ended] == [type(None), asyncio.CancelledError, ConnectionLost]
