"""run_at, buried_at and the lists of exchanges, in both shells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import pgqueue
from pgqueue.types import Binding

SOON = datetime.now(UTC) + timedelta(hours=1)


async def test_run_at(client: Any, queue: Any) -> None:
    task = await queue.put(1, run_at=SOON)
    assert task.state == "delayed"
    assert (await queue.peek(task)).run_at == SOON
    for id in await queue.put_many([1, 2], run_at=SOON):
        assert (await queue.peek(id)).run_at == SOON
    assert (await queue.peek(await queue.put_unique("u", run_at=SOON))).run_at == SOON
    assert (await queue.peek(await queue.urgent("u", run_at=SOON))).run_at == SOON
    assert (await queue.put(2, run_at=SOON - timedelta(days=1))).state == "ready"
    await (await queue.take(0)).ack(put=[pgqueue.Put("next", 1, run_at=SOON)])
    assert (await client.queue("next").peek_next("delayed")).run_at == SOON
    await client.exchanges.publish("", "next", 2, run_at=SOON + timedelta(hours=1))
    assert (await client.queue("next").stats())["delayed"] == 2


@pytest.mark.parametrize(
    "options", [{"run_at": SOON, "delay": 1}, {"run_at": SOON, "delay": 0}, {"run_at": datetime(2030, 1, 1)}]
)
async def test_a_run_at_that_is_not_valid(client: Any, queue: Any, options: Any) -> None:
    with pytest.raises(ValueError, match="run_at"):
        await queue.put(1, **options)
    with pytest.raises(ValueError, match="run_at"):
        await queue.put_many([1], **options)
    with pytest.raises(ValueError, match="run_at"):
        await client.exchanges.publish("", "q", 1, **options)
    with pytest.raises(ValueError, match="run_at"):
        pgqueue.Put("q", 1, **options)


async def test_a_task_knows_since_when_it_is_buried(queue: Any) -> None:
    task = await queue.put(1)
    await queue.bury(task)
    assert abs((await queue.peek(task)).buried_at - datetime.now(UTC)) < timedelta(minutes=1)
    await queue.kick()
    assert (await queue.peek(task)).buried_at is None


async def test_exchanges_and_bindings_are_listed(client: Any) -> None:
    assert await client.exchanges.list() == await client.exchanges.bindings() == []
    await client.exchanges.declare("logs", "topic")
    await client.exchanges.declare("all", "fanout", durable=False)
    for name in ("a", "b"):
        await client.create_queue(name)
    await client.exchanges.bind("b", "logs", "db.#")
    await client.exchanges.bind("a", "logs", "db.#")
    await client.exchanges.bind("a", "all")
    found = await client.exchanges.list()
    assert [(e.name, e.type, e.durable, e.bindings, e.retained) for e in found] == [
        ("all", "fanout", False, 1, 0),
        ("logs", "topic", True, 2, 0),
    ]
    every = [Binding("all", "", "a"), Binding("logs", "db.#", "a"), Binding("logs", "db.#", "b")]
    assert await client.exchanges.bindings() == every
    assert await client.exchanges.bindings("logs") == every[1:]
    assert await client.exchanges.bindings(queue="a") == every[:2]
    assert await client.exchanges.bindings("logs", "a") == [every[1]]
    assert await client.exchanges.bindings("none") == []


async def test_what_asks_makes_no_queue(client: Any, queue: Any) -> None:
    with pytest.raises(pgqueue.errors.NoQueue):
        await queue.pause(1)
    with pytest.raises(pgqueue.errors.NoQueue):
        await queue.drain()
    assert (await queue.stats())["total"] == (await queue.messages.stats()).total == 0
    assert await client.queues() == []


async def test_a_queue_with_a_taken_task_is_deleted_by_force_only(client: Any, queue: Any) -> None:
    await queue.put(1)
    task = await queue.take(0)
    with pytest.raises(pgqueue.errors.QueueInUse):
        await client.delete_queue(queue.name)
    assert await client.delete_queue(queue.name, force=True) == 1
    with pytest.raises(pgqueue.errors.TaskNotFound):
        await task.ack()


async def test_listed_is_altered(client: Any, queue: Any) -> None:
    task = await queue.put(1)
    with pytest.raises(pgqueue.errors.QueueNotListed):
        await queue.messages.list()
    await queue.alter(listed=True)
    assert [message.id for message in (await queue.messages.list()).messages] == [task.id]
