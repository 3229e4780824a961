"""Keys, capacity and what else a put may meet, on both shells."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from eventually import Stopwatch, soon, soon_enough
from statements import rows, value

import pgqueue

pytestmark = pytest.mark.once


@pytest.fixture
def limited(queue, db):
    """The queue `q`, which holds three tasks."""
    db.execute("SELECT pgqueue.create_queue('q')")
    db.execute("UPDATE pgqueue.queue SET capacity = 3")
    return queue


# --- keys


async def test_a_key_says_which_task_is_there(queue):
    first = await queue.put({"n": 1}, key="k")
    assert (first.key, first.existed) == ("k", False)
    second = await queue.put({"n": 2}, key="k")
    assert (second.id, second.data, second.existed) == (first.id, {"n": 1}, True)
    assert (await queue.peek(first)).key == "k"


async def test_replace(queue):
    first = await queue.put(1, key="k")
    second = await queue.put(2, key="k", if_exists="replace", delay=60)
    assert (second.id, second.data, second.state, second.existed) == (first.id, 2, "delayed", True)
    assert (await queue.peek(first)).data == 2


async def test_replace_of_a_taken_task(queue):
    first = await queue.put(1, key="k")
    await queue.take(0)
    with pytest.raises(pgqueue.errors.KeyTaken, match=f"task {first.id}"):
        await queue.put(2, key="k", if_exists="replace")
    assert (await queue.peek(first)).data == 1


async def test_error(queue):
    await queue.put(1, key="k")
    with pytest.raises(pgqueue.KeyExists, match='"k"'):
        await queue.put(2, key="k", if_exists="error")
    with pytest.raises(pgqueue.PutRefused):
        await queue.put_many([1, 2], key=["other", "k"], if_exists="error")
    assert (await queue.stats())["total"] == 1


async def test_put_many_with_keys_and_lanes(queue, db):
    first = await queue.put(1, key="a")
    ids = await queue.put_many(iter([2, 3, 4]), key=["a", "b", None], lane=[None, "x", "x"])
    assert ids[0] == first.id
    assert rows(db, "SELECT id, key, lane FROM pgqueue.tasks ORDER BY id") == [
        (ids[0], "a", None),
        (ids[1], "b", "x"),
        (ids[2], None, "x"),
    ]


async def test_put_many_into_one_lane(queue, db):
    ids = await queue.put_many(range(1500), lane="x")  # in two statements
    assert len(ids) == 1500
    assert rows(db, "SELECT DISTINCT lane FROM pgqueue.tasks") == [("x",)]


async def test_conn_puts_in_the_callers_transaction(queue, transaction, db):
    task = await queue.put(1, key="k", lane="l", conn=transaction)
    assert task.existed is False
    assert rows(db, "SELECT FROM pgqueue.task") == []
    await transaction.rollback()
    again = await queue.put(1, key="k", conn=transaction)
    assert again.existed is False
    await transaction.commit()
    assert (await queue.put(2, key="k", conn=transaction)).id == again.id


@pytest.mark.parametrize(
    "options",
    [
        {"lane": ""},
        {"lane": "é" * 128},
        {"lane": "a\0"},
        {"lane": 1},
        {"lane": "\ud800"},
        {"key": ""},
        {"key": "k" * 256},
        {"key": b"k"},
        {"key": "k", "if_exists": "update"},
        {"if_exists": None},
        {"sender": "me"},
        {"timeout": float("nan")},
        {"timeout": "1"},
        {"timeout": True},
        {"lanes": "l"},
        {"unknown": 1},
    ],
)
async def test_bad_options(queue, db, options):
    with pytest.raises(ValueError):  # noqa: PT011
        await queue.put(1, **options)
    many = {name: [option] if name in ("lane", "key") else option for name, option in options.items()}
    if "timeout" not in options:
        with pytest.raises(ValueError):  # noqa: PT011
            await queue.put_many([1], **many)
    assert rows(db, "SELECT FROM pgqueue.task") == []


@pytest.mark.parametrize("options", [{"key": "k"}, {"key": ["a"]}, {"lane": ["a", "b", "c"]}])
async def test_put_many_needs_a_key_or_lane_for_each(queue, db, options):
    with pytest.raises(ValueError, match=r"lanes|key"):
        await queue.put_many([1, 2], **options)
    assert rows(db, "SELECT FROM pgqueue.task") == []


async def test_an_unknown_option_is_named_with_those_that_there_are(queue):
    with pytest.raises(ValueError, match=r"'prio'.*priority"):
        await queue.put(1, prio=1)


async def test_a_sender_is_stored(queue, db):
    me = uuid.uuid4()
    await queue.put(1, sender=me)
    await queue.put_many([1], sender=str(me), key=["k"])
    assert rows(db, "SELECT sender FROM pgqueue.tasks") == [(me,), (me,)]


# --- capacity


async def test_a_full_queue_without_a_timeout(limited, db):
    await limited.put_many([1, 2])
    await limited.put(3)
    for put in (limited.put(4), limited.put_many([4])):
        with pytest.raises(pgqueue.QueueFull, match="q"):
            await put
    assert value(db, "SELECT count(*) FROM pgqueue.task") == 3


async def test_a_put_without_room_ends_in_its_time(limited):
    await limited.put_many([1, 2, 3])
    with pytest.raises(pgqueue.QueueFull):
        await limited.put(4, timeout=0)

    async def put() -> float:
        watch = Stopwatch()
        assert await limited.put(4, timeout=0.1) is None
        assert watch() >= 0.1
        return watch()

    await soon_enough(put, within=0.3)


async def test_a_put_waits_for_room(limited):
    await limited.put_many([1, 2, 3])

    async def room_to_put() -> float:
        task = await limited.take(0)
        waiting = asyncio.ensure_future(limited.put(4, timeout=30))
        await soon(lambda: limited._shell.core.running_listener.hub._channels)
        assert not waiting.done()
        watch = Stopwatch()
        await task.ack()
        assert (await waiting).data == 4
        return watch()

    await soon_enough(room_to_put, within=1.0)


async def test_as_many_puts_get_through_as_there_is_room(limited):
    """One notification may stand for two acks: a put that got through passes it on."""
    await limited.put_many([1, 2, 3])
    waiting = [asyncio.ensure_future(limited.put(n, timeout=30)) for n in range(4, 9)]
    for _ in range(5):
        await (await limited.take(30)).ack()
    assert sorted([(await task).data for task in waiting]) == [4, 5, 6, 7, 8]
    assert (await limited.stats())["total"] == 3


@pytest.mark.slow
async def test_racing_puts_never_pass_the_capacity(limited, db):
    seen = []

    async def put(n):
        task = await limited.put(n, timeout=30)
        seen.append(value(db, "SELECT count(*) FROM pgqueue.task"))
        return task

    puts = [asyncio.ensure_future(put(n)) for n in range(30)]
    taken = [await limited.take(30) for _ in range(3)]
    for _ in range(27):
        await taken.pop(0).ack()
        taken.append(await limited.take(30))
    await asyncio.gather(*puts)
    assert max(seen) <= 3


async def test_nothing_is_waited_for_in_a_callers_transaction(limited, transaction):
    with pytest.raises(ValueError, match="conn"):
        await limited.put(1, timeout=1, conn=transaction)


async def test_a_client_that_closes_ends_the_wait(limited, client):
    await limited.put_many([1, 2, 3])
    waiting = asyncio.ensure_future(limited.put(4, timeout=30))
    await soon(lambda: client.shell.core.running_listener and client.shell.core.running_listener.hub._channels)
    await client.close()
    answer: Any = (await asyncio.gather(waiting, return_exceptions=True))[0]
    assert answer is None or isinstance(answer, pgqueue.ClosedError)


async def test_a_queue_with_a_largest_size(queue, db):
    db.execute("SELECT pgqueue.create_queue('q')")
    db.execute("UPDATE pgqueue.queue SET max_size = 10")
    with pytest.raises(pgqueue.errors.DataTooBig, match="10"):
        await queue.put("x" * 9)
    await queue.put("x" * 8)


async def test_a_queue_that_is_draining(queue, db):
    await queue.put(1)
    db.execute("UPDATE pgqueue.queue SET draining = true")
    with pytest.raises(pgqueue.errors.QueueDraining, match="q"):
        await queue.put(2)
    assert (await queue.take(0)).data == 1
