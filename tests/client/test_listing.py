"""Listing messages on both shells; what the SQL promises is in sql/test_pages.py."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from statements import value

import pgqueue

ME = uuid.UUID("12345678-1234-5678-1234-567812345678")
OTHER = str(uuid.uuid4())


@pytest.fixture
async def queue(client):
    return await client.create_queue("q", listed=True)


def data(page: Any) -> list[Any]:
    return [message.data for message in page.messages]


async def test_echo_off_hides_the_clients_own_messages(queue):
    await queue.put("mine", sender=ME)
    await queue.put("theirs", sender=OTHER)
    await queue.put_many(["mine too"], sender=str(ME))
    await queue.put("nobody's")
    assert data(await queue.messages.list(sender=ME)) == ["theirs", "nobody's"]
    assert data(await queue.messages.list(sender=str(ME), echo=True)) == ["mine", "theirs", "mine too", "nobody's"]
    assert data(await queue.messages.list(sender=OTHER)) == ["mine", "mine too", "nobody's"]
    assert len(data(await queue.messages.list())) == 4


async def test_late_commits_are_not_lost(shell, queue):
    """Writers commit in another order than they put, while a reader pages on."""
    put: list[int] = []
    seen: list[int] = []

    async def write(conn: Any) -> None:
        for _ in range(15):
            task = await queue.put("x", conn=conn)
            await asyncio.sleep(0.002)
            await conn.commit()
            put.append(task.id)

    async def read(writing: asyncio.Future[Any]) -> None:
        marker = None
        while True:
            over = writing.done()
            page = await queue.messages.list(marker, limit=3)
            seen.extend(message.id for message in page.messages)
            marker = page.marker
            if over and not page.messages:
                return

    writing = asyncio.gather(*[write(await shell.connection()) for _ in range(4)])
    await read(writing)
    await writing
    assert sorted(seen) == sorted(put)


async def test_a_transaction_that_is_open_holds_the_listing_up_and_nothing_else(shell, queue):
    conn = await shell.connection()
    await queue.put("late", conn=conn)
    await queue.put("early")
    page = await queue.messages.list()
    assert (page.messages, page.marker) == ([], None)
    assert (await queue.take(0)).data == "early"
    await conn.commit()
    page = await queue.messages.list(include_claimed=True)
    assert data(page) == ["late", "early"]
    assert [message.state for message in page.messages] == ["ready", "taken"]


async def test_pages_and_their_markers(queue):
    await queue.put_many(range(25))
    page, pages = await queue.messages.list(limit=20), []
    while page.messages:
        pages.append(data(page))
        page = await queue.messages.list(page.marker, limit=20)
    assert pages == [list(range(20)), list(range(20, 25))]
    assert (await queue.messages.list(page.marker)).marker == page.marker
    await queue.put("next")
    assert data(await queue.messages.list(page.marker)) == ["next"]


async def test_a_listed_message_is_a_task(queue):
    task = await queue.put({"n": 1}, priority=3)
    (message,) = (await queue.messages.list()).messages
    assert (message.id, message.queue, message.state, message.priority) == (task.id, "q", "ready", 3)
    assert message.token is None
    await queue.messages.delete(message)
    assert data(await queue.messages.list()) == []


async def test_claimed_and_delayed_ones_are_asked_for(queue):
    await queue.put("claimed"), await queue.put("free"), await queue.put("delayed", delay=60)
    await queue.messages.claim(1)
    assert data(await queue.messages.list()) == ["free"]
    assert data(await queue.messages.list(include_claimed=True)) == ["claimed", "free"]
    assert data(await queue.messages.list(include_delayed=True)) == ["free", "delayed"]
    assert len(data(await queue.messages.list(include_claimed=True, include_delayed=True))) == 3


async def test_numbers(client, queue, db):
    empty = await queue.messages.stats()
    assert empty == pgqueue.types.MessageStats(free=0, claimed=0, total=0, oldest=None, newest=None)
    await queue.put_many(range(3))
    await queue.messages.claim(1)
    stats = await queue.messages.stats()
    assert (stats.free, stats.claimed, stats.total) == (2, 1, 3)
    assert stats.oldest == stats.newest == value(db, "SELECT min(created_at) FROM pgqueue.tasks")


async def test_refusals(client, queue):
    await client.queue("plain").put("x")
    with pytest.raises(pgqueue.errors.QueueNotListed, match="plain"):
        await client.queue("plain").messages.list()
    with pytest.raises(pgqueue.NoQueue, match="never made"):
        await client.queue("never made").messages.list()
    for marker in ("", "x", "1", "1.2.3", "\0"):
        with pytest.raises(ValueError, match="marker"):
            await queue.messages.list(marker)
    with pytest.raises(ValueError, match="sender must be a UUID"):
        await queue.messages.list(sender="me")
