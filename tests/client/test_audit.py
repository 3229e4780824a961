"""The audit trail, as clients see it, and the actor that a call names."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from statements import value

import pgqueue


async def test_the_newest_come_first(client: Any, db: psycopg.Connection) -> None:
    for name in ("a", "b"):
        await client.create_queue(name)
        await client.queue(name).pause(60)
    task = await client.queue("a").put(1)
    await client.delete(task.id)
    last, second, first = await client.audit.list()
    role = value(db, "SELECT current_user::text")
    assert (last.verb, last.queue, last.object, last.count, last.detail) == ("delete", "a", str(task.id), 1, None)
    assert (second.verb, second.queue, second.detail) == ("pause", "b", "00:01:00")
    assert (first.role, first.login, first.actor) == (role, role, None)
    assert first.id < second.id < last.id
    assert [deed.id for deed in await client.audit.list("a")] == [last.id, first.id]
    assert await client.audit.list(n=1) == [last]
    assert await client.audit.list("none") == []


async def test_calls_in_the_block_name_their_actor(client: Any) -> None:
    queue = await client.create_queue("q")
    with client.audit.acting("ada"):
        await queue.pause(60)
        with client.audit.acting("grace"):
            await queue.drain()
        await client.schedules.set("s", None, "q", every=60)
        await queue.alter(ttr=5)
        assert (await queue.info()).ttr == 5
    await queue.pause(0)
    assert [(deed.verb, deed.actor) for deed in await client.audit.list()] == [
        ("resume", None),
        ("alter", "ada"),
        ("set_schedule", "ada"),
        ("drain", "grace"),
        ("pause", "ada"),
    ]


async def test_calls_return_and_raise_the_same_under_an_actor(client: Any, db: psycopg.Connection) -> None:
    queue = await client.create_queue("q")
    tasks = [await queue.put(n) for n in range(5)]
    with client.audit.acting("ada %s $1 \N{SNOWMAN} '"):
        assert [task.id for task in (await queue.tasks("ready")).tasks] == [task.id for task in tasks]
        assert await client.cancel(tasks[0].id, "why") == "cancelled"
        assert await queue.cancel_all("ready") == 4
        assert await queue.truncate() == 0
        assert {one.verb for one in await client.audit.list()} == {"cancel"}
        with pytest.raises(pgqueue.TaskNotFound):
            await client.delete(99)
        with pytest.raises(pgqueue.NoQueue):
            await client.queue("none").pause(60)
    assert [deed.actor for deed in await client.audit.list()] == ["ada %s $1 \N{SNOWMAN} '"] * 2
    assert value(db, "SELECT count(*) FROM pgqueue.tasks") == 0


async def test_no_later_call_of_a_pooled_connection_has_the_actor(shell: Any) -> None:
    client = shell.client(pool_size=1)
    queue = await client.create_queue("q")
    with client.audit.acting("ada"):
        await queue.pause(60)
    await queue.pause(60)
    assert [deed.actor for deed in await client.audit.list()] == [None, "ada"]


async def test_each_task_of_a_program_has_an_actor_of_its_own(dsn: str) -> None:
    async with pgqueue.AsyncClient(dsn) as client:
        queue = await client.create_queue("q")

        async def act(name: str) -> None:
            with client.audit.acting(name):
                for _ in range(5):
                    await queue.alter(metadata=name)

        await asyncio.gather(*(act(name) for name in ("ada", "grace", "joan")))
        actors = [deed.actor for deed in await client.audit.list()]
    assert sorted(actors, key=str) == sorted(["ada", "grace", "joan"] * 5)


@pytest.mark.parametrize("actor", ["", "x" * 201, None, 5, "a\0b"])
async def test_an_actor_that_cannot_be(client: Any, actor: Any) -> None:
    with pytest.raises(ValueError, match="actor"), client.audit.acting(actor):
        raise AssertionError
