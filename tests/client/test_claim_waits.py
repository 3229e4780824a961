"""A claim that waits for its first message, on both shells."""

from __future__ import annotations

import asyncio

import pytest
from waiters import waiting


async def test_it_is_woken_by_a_put_and_has_what_there_is(client, queue):
    claiming = asyncio.ensure_future(queue.messages.claim(limit=5, timeout=30))
    await waiting(client, "q")
    ids = await queue.put_many(["a", "b"])
    claim = await claiming
    assert [message.id for message in claim.messages] == list(ids)
    await queue.ack_many(claim.messages)


async def test_it_does_not_wait_unless_told(queue):
    await queue.put("x", delay=3600)
    assert await queue.messages.claim() is None
    assert await queue.messages.claim(timeout=0.05) is None


@pytest.mark.slow
async def test_what_is_there_is_claimed_at_once_and_what_becomes_due_in_time(queue):
    await queue.put("now")
    later = await queue.put("soon", delay=2)
    first = await queue.messages.claim(timeout=None)
    assert [message.data for message in first.messages] == ["now"]
    second = await queue.messages.claim(timeout=30)
    assert [message.id for message in second.messages] == [later.id]


async def test_two_who_wait_share_what_comes(client, queue):
    claiming = [asyncio.ensure_future(queue.messages.claim(limit=1, timeout=30)) for _ in range(2)]
    await waiting(client, "q")
    await queue.put_many([1, 2])
    claims = await asyncio.gather(*claiming)
    assert sorted(claim.messages[0].data for claim in claims) == [1, 2]
