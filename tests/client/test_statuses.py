"""Status by key, on both shells: set, get, delete, and waiting that misses nothing."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from typing import Any

import psycopg
import pytest
from eventually import PATIENCE, Stopwatch, eventually, soon
from statements import rows, value
from waiters import LISTENERS, listening

import pgqueue
from pgqueue._engine.switchboard import KEPT

pytestmark = pytest.mark.once

KEY = hashlib.md5(b"https://example.org/").hexdigest()


@pytest.mark.parametrize("status", ["converted", 0, False, "", [], {"pages": 3, "of": [1.5, None, "ü"]}])
async def test_a_status_is_set_and_read(client, status):
    assert await client.statuses.get(KEY) is None
    await client.statuses.set(KEY, status)
    assert await client.statuses.get(KEY) == status
    assert await client.statuses.delete(KEY) is True
    assert await client.statuses.get(KEY) is None
    assert await client.statuses.delete(KEY) is False


@pytest.mark.slow
async def test_a_status_is_set_only_if_absent(client):
    assert await client.statuses.set("k", 1, ttl=3600, if_absent=True) is True
    assert await client.statuses.set("k", 2, if_absent=True) is False
    assert await client.statuses.get("k") == 1
    assert await client.statuses.set("k", 3) is True
    await client.statuses.delete("k")
    assert await client.statuses.set("k", 4, ttl=2, if_absent=True) is True
    await soon(lambda: gone(client, "k"))
    assert await client.statuses.set("k", 5, if_absent=True) is True


async def test_many_statuses_are_read_in_one_call(client):
    await client.statuses.set("a", {"n": 1})
    await client.statuses.set("b", False)
    assert await client.statuses.get_many(["b", "x", "a", "a"]) == {"a": {"n": 1}, "b": False}
    assert await client.statuses.get_many([]) == {}
    with pytest.raises(ValueError, match="at most 100000 elements"):
        await client.statuses.get_many(map(str, range(100_001)))


async def test_follow_returns_each_status_as_it_comes(client):
    await client.statuses.set("b", "done")
    await client.statuses.set("c", "queued")
    seen = []

    async def follow():
        async for pair in pairs(client, ["a", "b", "c"], "done"):
            seen.append(pair)

    following = asyncio.ensure_future(follow())
    await listening(client, 2)
    assert seen == [("b", "done")]
    for n, key in enumerate(("c", "a"), 2):
        await client.statuses.set(key, "done")
        await soon(lambda n=n: len(seen) == n)
        assert seen[-1] == (key, "done")
    await following


@pytest.mark.slow
async def test_follow_misses_no_set_in_races(client):
    """With no poll, only the announcements can end the iteration."""
    for n in range(30):
        keys = [f"{n}.{i}" for i in range(20)]
        following = asyncio.ensure_future(followed(client, keys))
        for key in keys:
            await client.statuses.set(key, n)
        watch = Stopwatch()
        assert await following == dict.fromkeys(keys, n)
        assert watch() < PATIENCE, n


async def pairs(client: Any, keys, until=None, timeout=2 * PATIENCE):
    """follow() of either shell, in coroutines."""
    if isinstance(client, pgqueue.AsyncClient):
        async for pair in client.statuses.follow(keys, until, timeout):
            yield pair
        return
    blocking: Any = client.statuses.follow(keys, until, timeout)
    over: Any = object()
    while (pair := await asyncio.to_thread(next, blocking, over)) is not over:
        yield pair


async def followed(client, keys, timeout=2 * PATIENCE):
    return {key: status async for key, status in pairs(client, keys, timeout=timeout)}


async def test_follow_outlives_its_listener(client, db):
    following = asyncio.ensure_future(followed(client, ["a", "b"]))
    await listening(client, 2)
    rows(db, "SELECT pgqueue.set_status('a', '1')")
    rows(
        db,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND datname = current_database()",
    )
    rows(db, "SELECT pgqueue.set_status('b', '2')")
    watch = Stopwatch()
    assert await following == {"a": 1, "b": 2}
    assert watch() < PATIENCE


async def test_follow_that_is_over(client, db):
    await client.statuses.set("a", 1)
    following = pairs(client, ["x", "a", "y"], timeout=0)
    assert await anext(following) == ("a", 1)
    with pytest.raises(TimeoutError, match="2 of 3 keys"):
        await anext(following)
    assert value(db, LISTENERS) == 0
    assert await followed(client, [], 0) == {}


@pytest.mark.slow
async def test_statuses_that_were_awaited_are_soon_not_listened_to(client):
    """Each key is another channel, and seldom wanted again."""
    for number in range(KEPT + 20):
        waiting = asyncio.ensure_future(client.statuses.wait(str(number)))
        await listening(client)
        await client.statuses.set(str(number), 1)
        assert await waiting == 1
    assert len(client.shell.core.listener().switchboard._lines) <= KEPT + 1


async def test_a_close_ends_a_follow_and_a_break_leaves_no_ear(awaiting):
    client = awaiting()
    await client.statuses.set("a", 1)
    async for _ in client.statuses.follow(["a", "b"]):
        break
    following = asyncio.ensure_future(followed(client, ["a", "b"]))
    await listening(client)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert all(not line.ears for line in client.shell.core.listener().switchboard._lines.values())
    following = asyncio.ensure_future(followed(client, ["b", "c"]))
    await listening(client, 2)
    await client.close()
    with pytest.raises(pgqueue.ClosedError):
        await following


@pytest.mark.slow
async def test_a_status_with_a_ttl_is_gone_by_itself(client):
    await client.statuses.set("k", 1, ttl=2)
    await client.statuses.set("ever", 1)
    assert await client.statuses.get("k") == 1
    await soon(lambda: gone(client, "k"))
    assert await client.statuses.get("ever") == 1
    with pytest.raises(TimeoutError):
        await client.statuses.wait("k", timeout=0)


async def gone(client, key):
    return await client.statuses.get(key) is None


async def test_reading_and_looking_starts_no_listener(client, db):
    await client.statuses.set("k", 1)
    assert await client.statuses.get("k") == 1
    assert await client.statuses.wait("k") == 1
    with pytest.raises(TimeoutError, match="'x' did not come within 0 s"):
        await client.statuses.wait("x", timeout=0)
    assert value(db, LISTENERS) == 0


async def test_wait_returns_what_is_set_meanwhile(client):
    wait = asyncio.ensure_future(client.statuses.wait(KEY, timeout=2 * PATIENCE))
    await listening(client)
    watch = Stopwatch()
    await client.statuses.set(KEY, "done")
    assert await wait == "done"
    assert watch() < PATIENCE


@pytest.mark.parametrize("until", ["done", lambda status: status.startswith("d")])
async def test_wait_until(client, until):
    await client.statuses.set("k", "queued")
    wait = asyncio.ensure_future(client.statuses.wait("k", until, 2 * PATIENCE))
    await listening(client)
    await client.statuses.set("k", "converted")
    await client.statuses.set("other", "done")
    await client.statuses.set("k", "done")
    assert await wait == "done"


async def test_until_is_compared_as_it_would_be_stored(client):
    await client.statuses.set("k", [1, {"2": "x"}])
    assert await client.statuses.wait("k", (1, {"2": "x"}), 0) == [1, {"2": "x"}]
    with pytest.raises(pgqueue.BadData, match=r"\$\[1\]: a key must be a string, not 2"):
        await client.statuses.wait("k", (1, {2: "x"}), 0)
    with pytest.raises(pgqueue.BadData, match=r"\$: JSON has no nan"):
        await client.statuses.wait("k", float("nan"), 0)


async def test_what_until_raises_ends_the_wait(client):
    await client.statuses.set("k", "x")
    with pytest.raises(TypeError):
        await client.statuses.wait("k", lambda status: status > 3, 5)


async def test_a_wait_that_is_over(client):
    await client.statuses.set("k", "queued")
    watch = Stopwatch()
    with pytest.raises(TimeoutError, match=r"'k' did not come within 0\.3 s"):
        await client.statuses.wait("k", "done", timeout=0.3)
    assert watch() >= 0.3


@pytest.mark.slow
async def test_no_set_is_missed_in_300_races(client):
    """Set and wait begin together each time; with no poll, only the announcement can end a wait."""
    for n in range(300):
        wait = asyncio.ensure_future(client.statuses.wait("k", n, 2 * PATIENCE))
        await client.statuses.set("k", n)
        watch = Stopwatch()
        assert await wait == n
        assert watch() < PATIENCE, n


async def test_a_rolled_back_set_wakes_nobody(shell, client, db):
    looks = []
    wait = asyncio.ensure_future(client.statuses.wait("k", lambda status: looks.append(status) or True, 30))
    await listening(client)
    conn = await shell.connection()
    await client.statuses.set("k", "undone", conn=conn)
    await conn.rollback()
    await client.statuses.set("k", "set", conn=conn)
    assert value(db, "SELECT count(*) FROM pgqueue.statuses") == 0
    await conn.commit()
    assert await wait == "set"
    assert looks == ["set"]
    await client.statuses.delete("k", conn=conn)
    await conn.rollback()
    assert await client.statuses.get("k") == "set"


async def test_all_who_wait_are_woken(client, db):
    waits = [asyncio.ensure_future(client.statuses.wait("k", timeout=2 * PATIENCE)) for _ in range(20)]
    await listening(client, 20)
    await client.statuses.set("k", 7)
    assert await asyncio.gather(*waits) == [7] * 20
    assert value(db, LISTENERS) == 1


async def test_a_wait_outlives_its_listener_and_the_other_connections(client, db):
    wait = asyncio.ensure_future(client.statuses.wait("k", "done", timeout=2 * PATIENCE))
    await listening(client)
    await client.statuses.set("k", "queued")
    rows(
        db,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND datname = current_database()",
    )
    rows(db, "SELECT pgqueue.set_status('k', '\"done\"')")
    watch = Stopwatch()
    assert await wait == "done"
    assert watch() < PATIENCE


async def test_a_close_ends_a_wait(client):
    wait = asyncio.ensure_future(client.statuses.wait("k"))
    await listening(client)
    await client.close()
    with pytest.raises(pgqueue.ClosedError):
        await wait


async def test_a_cancelled_wait_leaves_nothing_behind(awaiting):
    client = awaiting()
    wait = asyncio.ensure_future(client.statuses.wait("k"))
    await listening(client)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    assert all(not line.ears for line in client.shell.core.listener().switchboard._lines.values())


@pytest.mark.parametrize("key", ["", "x" * 201, "a\0b", "\ud800", None, 1, b"k", ["k"]])
async def test_a_key_that_cannot_be(client, db, key):
    for call in (
        lambda: client.statuses.set(key, 1),
        lambda: client.statuses.get(key),
        lambda: client.statuses.delete(key),
        lambda: client.statuses.wait(key, timeout=0),
        lambda: client.statuses.get_many([key]),
        lambda: followed(client, [key], 0),
    ):
        with pytest.raises(ValueError, match="key"):
            await call()
    assert rows(db, "SELECT FROM pgqueue.status") == []


@pytest.mark.parametrize("status", [None, {1, 2}, float("inf"), {"a\0": 1}, {"\ud800": 1}, "x" * 2_000_000])
async def test_a_status_that_cannot_be(client, db, status):
    with pytest.raises(ValueError):  # noqa: PT011
        await client.statuses.set("k", status)
    assert rows(db, "SELECT FROM pgqueue.status") == []


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), "1", True, 1e10])
async def test_a_ttl_that_cannot_be(client, db, ttl):
    with pytest.raises(ValueError, match="ttl"):
        await client.statuses.set("k", 1, ttl=ttl)
    assert rows(db, "SELECT FROM pgqueue.status") == []


@pytest.mark.parametrize("timeout", [float("nan"), "1", True])
async def test_a_timeout_that_cannot_be(client, timeout):
    with pytest.raises(ValueError, match="timeout"):
        await client.statuses.wait("k", timeout=timeout)


async def test_until_cannot_be_a_coroutine_function(client):
    async def until(status):
        return True

    with pytest.raises(ValueError, match="plain function"):
        await client.statuses.wait("k", until, 0)
    with pytest.raises(ValueError, match="plain function"):
        client.statuses.follow(["k"], until, 0)


@pytest.mark.slow
def test_what_expired_is_removed_by_listeners(dsn, db, blocking):
    db.execute("SELECT pgqueue.set_status('k', '1', '1 ms')")
    blocking().queue("q").take(0)  # a listener cleans as soon as it is there
    eventually(lambda: rows(db, "SELECT FROM pgqueue.status") == [])


def test_setters_of_one_key_in_many_threads(blocking):
    """Upserts that meet neither fail nor deadlock, and the last one counts."""
    client = blocking()

    def set_many(n):
        for i in range(50):
            client.statuses.set("k", [n, i])

    threads = [threading.Thread(target=set_many, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.statuses.get("k")[1] == 49


def test_a_sync_connection_for_an_async_client(awaiting, dsn):
    async def main():
        client = pgqueue.AsyncClient(dsn)
        with psycopg.connect(dsn) as conn, pytest.raises(TypeError, match="AsyncConnection"):
            await client.statuses.set("k", 1, conn=conn)  # type: ignore[arg-type]
        await client.close()

    asyncio.run(main())
