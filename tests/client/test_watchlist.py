"""WatchList: the queues that one takes from, as beanstalkd's watch, ignore and reserve."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from shells import Awaitable

from pgqueue import AsyncWatchList, WatchList
from pgqueue.errors import NotIgnored

Shell = Any


def watch_list(shell: Shell, client: Any, *queues: str) -> Any:
    """In both shells, for tests that await."""
    if shell.name == "async":
        return AsyncWatchList(client, *queues)
    return Awaitable(WatchList(client._thing, *queues), client._threads)


async def test_a_watch_list_takes_from_its_queues(shell: Shell, client: Any) -> None:
    watched = watch_list(shell, client)
    assert watched.queues == ["default"]
    assert watched.watch("a") == 2
    assert watched.watch("a") == 2
    await client.queue("a").put("low", priority=1)
    await client.queue("default").put("high")
    await client.queue("other").put("none of ours", priority=-1)
    assert [(await watched.take(0)).data for _ in range(2)] == ["high", "low"]
    assert await watched.take(0) is None
    assert watched.ignore("default") == 1
    assert watched.ignore("never watched") == 1
    await client.queue("default").put(1)
    assert await watched.take(0) is None
    with pytest.raises(NotIgnored, match="'a' is the last queue"):
        watched.ignore("a")
    assert watched.queues == ["a"]


async def test_a_watch_list_of_names(shell: Shell, client: Any) -> None:
    watched = watch_list(shell, client, "b", "a", "b")
    assert watched.queues == ["b", "a"]
    waiting = asyncio.ensure_future(watched.take(20))
    await client.queue("a").put(1)
    assert (await waiting).queue == "a"
    with pytest.raises(ValueError, match="1 to 200 characters"):
        watched.watch("")
    with pytest.raises(ValueError, match="1 to 200 characters"):
        watch_list(shell, client, "x" * 201)
