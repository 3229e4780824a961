"""Managing queues, on both shells."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, soon, soon_enough
from hurrying import hurry
from psycopg.conninfo import make_conninfo
from statements import value

import pgqueue
from pgqueue import NoQueue
from pgqueue.errors import NotAllowed, NotRunning, QueueDraining, QueueExists, QueueInUse

pytestmark = pytest.mark.once

Shell = Any

# --- types and options


async def test_create_queue_twice(client: Any) -> None:
    queue = await client.create_queue("q", type="fifottl", ttl=60)
    assert queue.name == "q"
    with pytest.raises(QueueExists, match='"q"'):
        await client.create_queue("q")
    again = await client.create_queue("q", if_not_exists=True, ttl=5)
    assert again.name == "q"
    assert (await again.info()).ttl == 60


async def test_an_unknown_queue_type_is_refused(client: Any) -> None:
    with pytest.raises(ValueError, match="fifo, fifottl, utube, utubettl, limfifottl, not 'x'"):
        await client.create_queue("q", type="x")
    assert await client.queues() == []


async def test_a_touch_on_fifo_is_an_error(client: Any) -> None:
    queue = await client.create_queue("q", type="fifo")
    await queue.put(1)
    task = await queue.take(0)
    with pytest.raises(ValueError, match="of the type fifo has no touch"):
        await task.touch(1)
    await task.ack()


@pytest.mark.parametrize(
    ("type", "option"),
    [
        ("fifo", {"priority": 1}),
        ("fifo", {"lane": "a"}),
        ("fifottl", {"lane": "a"}),
        ("utube", {"ttl": 1}),
        ("limfifottl", {"lane": "a"}),
    ],
)
async def test_a_put_refuses_what_the_type_lacks(client: Any, type: str, option: dict[str, Any]) -> None:
    queue = await client.create_queue("q", type=type)
    (name,) = option
    with pytest.raises(ValueError, match=f"a queue of the type {type} has no {name}"):
        await queue.put(1, **option)
    await queue.put(1)


@pytest.mark.parametrize("option", [{"colour": 1}, {"name2": 1}, {"session": 5}])
async def test_an_option_that_there_is_not(client: Any, option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(ValueError, match=f"a queue has no option '{name}'"):
        await client.create_queue("q", **option)
    with pytest.raises(ValueError, match=f"a queue has no option '{name}'"):
        await client.queue("q").alter(**option)


@pytest.mark.parametrize(
    "option",
    [
        {"maxlen": 0},
        {"max_takes": True},
        {"max_size": -1},
        {"capacity": -1},
        {"capacity": 1.5},
        {"keep_done": 0},
        {"expires": 0},
        {"expires": "soon"},
        {"ttl": float("nan")},
        {"exclusive": 1},
        {"temporary": None},
        {"listed": "yes"},
        {"dead_letter": 5},
        {"dead_letter": "x" * 256},
        {"metadata": {1, 2}},
        {"metadata": {"\0": 1}},
    ],
)
async def test_options_that_cannot_be(client: Any, option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|at most|cannot|NUL|set"):
        await client.create_queue("q", **option)
    assert await client.queues() == []


async def test_info_tells_all_options(client: Any) -> None:
    given = {
        "type": "limfifottl",
        "priority": 3,
        "delay": 1.5,
        "ttr": 2.5,
        "ttl": 3600.0,
        "capacity": 9,
        "maxlen": 8,
        "max_size": 1000,
        "max_takes": 4,
        "keep_done": 86400.0,
        "expires": 600.0,
        "dead_letter": "",
        "dead_letter_key": "dead",
        "auto_delete": True,
        "listed": True,
        "temporary": True,
        "exclusive": False,
        "metadata": {"who": ["cares", None]},
    }
    queue = await client.create_queue("q", **given)
    info = await queue.info()
    assert {name: getattr(info, name) for name in given} == given
    assert (info.name, info.draining, info.paused_until, info.granted_to) == ("q", False, None, None)
    assert abs((datetime.now(UTC) - info.created_at).total_seconds()) < 60


async def test_alter_changes_what_is_named(client: Any) -> None:
    queue = await client.create_queue("q", ttl=60, maxlen=5, metadata=1)
    await queue.alter(ttl=0.00001, maxlen=None, metadata={"a": [1]}, auto_delete=True)
    info = await queue.info()
    assert (info.ttl, info.maxlen, info.metadata, info.auto_delete) == (0.00001, None, {"a": [1]}, True)
    await queue.alter(metadata=None)
    await queue.alter()
    assert (await queue.info()).metadata is None
    for name in ("type", "exclusive", "temporary"):
        with pytest.raises(ValueError, match=f"{name} cannot be altered"):
            await queue.alter(**{name: None})


async def test_what_needs_a_queue_that_is_there(client: Any, queue: Any) -> None:
    for call in (queue.info(), queue.alter(ttl=5), queue.rename("new"), queue.truncate(), queue.release_all()):
        with pytest.raises(NoQueue, match="q"):
            await call
    assert queue.name == "q"


async def test_a_renamed_queue_is_used_under_its_new_name(client: Any, queue: Any) -> None:
    await queue.put(1)
    held = await queue.take(0)
    await queue.put(2)
    await client.create_queue("taken")
    with pytest.raises(QueueExists):
        await queue.rename("taken")
    await queue.rename("new")
    assert queue.name == "new"
    assert (await held.ack()).state == "done"
    assert (await queue.take(0)).data == 2
    assert await client.queue("q").take(0) is None


def armed(db: psycopg.Connection) -> bool:
    """Somebody waits in front of a queue."""
    held = "SELECT EXISTS (SELECT FROM pg_locks WHERE classid = pgqueue._waiter_lock() AND granted)"
    return bool(value(db, held))


async def test_who_waits_under_the_old_name_goes_on_with_a_new_queue(shell: Shell, db: psycopg.Connection) -> None:
    client, other = shell.client(), shell.client()
    await client.create_queue("q")
    waiting = asyncio.ensure_future(client.queue("q").take(20))
    await soon(lambda: armed(db))
    await other.queue("q").rename("new")
    await other.queue("q").put("here")
    assert (await waiting).data == "here"


# --- lists of queues


async def test_queues_are_listed_by_marker(client: Any) -> None:
    names = ["a", "b1", "b2", "b%", "c"]
    for name in names:
        await client.create_queue(name, metadata=name)
    listed = await client.queues()
    assert sorted(queue.name for queue in listed) == sorted(names)
    order = [queue.name for queue in listed]
    pages, marker = [], None
    while page := await client.queues(marker=marker, limit=2):
        assert len(page) <= 2
        pages += [queue.name for queue in page]
        marker = page[-1].name
    assert pages == order
    assert {queue.name for queue in await client.queues(prefix="b")} == {"b1", "b2", "b%"}
    assert [queue.name for queue in await client.queues(prefix="b%")] == ["b%"]
    assert [queue.metadata for queue in await client.queues(prefix="c")] == ["c"]


async def test_a_limit_that_cannot_be(client: Any) -> None:
    for limit in (0, -1, 1.5):
        with pytest.raises(ValueError, match="limit"):
            await client.queues(limit=limit)


# --- dropping and emptying


async def test_drop_with_a_taken_task_or_a_waiter(shell: Shell, db: psycopg.Connection) -> None:
    client, other = shell.client(), shell.client()
    queue = client.queue("q")
    await queue.put(1)
    task = await queue.take(0)
    with pytest.raises(QueueInUse, match="1 are taken"):
        await other.delete_queue("q", if_unused=True)
    await task.ack()
    waiting = asyncio.ensure_future(queue.take(20))
    await soon(lambda: armed(db))
    with pytest.raises(QueueInUse, match="a taker waits"):
        await other.delete_queue("q", if_unused=True)
    await queue.put(2)
    await (await waiting).ack()
    await soon(lambda: not armed(db))  # it stays so for an instant after the last taker went
    assert await other.delete_queue("q", if_unused=True) == 0
    assert await other.queues() == []


async def test_truncate_and_release_all(client: Any, queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await queue.put_many(range(5))
    for _ in range(2):
        await queue.take(0)
    assert await queue.release_all() == 2
    assert (await queue.stats())["taken"] == 0
    task = await queue.take(0)
    await client.queue("other").put(1)
    monkeypatch.setattr("pgqueue._calls.queue.PART", 2)
    told: list[int] = []
    assert await queue.truncate(on_progress=told.append) == 5
    assert told == [2, 4, 5]
    assert (await queue.stats())["total"] == 0
    assert (await client.queue("other").stats())["total"] == 1
    with pytest.raises(pgqueue.TaskNotFound):
        await task.ack()


async def test_truncate_of_some_states(client: Any, queue: Any) -> None:
    await queue.put_many(range(3))
    await queue.put(3, delay=60)
    task = await queue.take(0)
    assert await queue.truncate(states=["ready", "delayed"]) == 3
    await task.ack()
    assert (await queue.stats())["total"] == 0
    with pytest.raises(ValueError, match=r"for example \['ready'\], not the string 'ready'"):
        await queue.truncate(states="ready")
    with pytest.raises(ValueError, match="no task is ever 'ripe': the states are taken, ready"):
        await queue.truncate(states=["ripe"])


# --- pausing and draining


async def test_draining(client: Any, queue: Any) -> None:
    await queue.put(1)
    await queue.drain()
    with pytest.raises(QueueDraining, match='"q" is draining'):
        await queue.put(2)
    assert (await queue.info()).draining
    assert (await queue.take(0)).data == 1
    await queue.drain(False)
    await queue.put(2)


async def test_draining_the_whole_server(client: Any, queue: Any) -> None:
    await queue.put(1)
    await client.drain()
    for name in ("q", "new"):
        with pytest.raises(QueueDraining):
            await client.queue(name).put(2)
    assert await client.queue("new").take(0) is None
    await client.drain(False)
    await client.queue("new").put(2)


async def test_a_put_that_waits_for_room_learns_that_the_queue_is_draining(
    shell: Shell, db: psycopg.Connection
) -> None:
    client = shell.client()
    queue = await client.create_queue("q", capacity=1)
    await queue.put(1)
    waiting = asyncio.ensure_future(queue.put(2, timeout=20))
    await soon(lambda: armed(db))
    await shell.client().queue("q").drain()
    with pytest.raises(QueueDraining):
        await waiting


@pytest.mark.parametrize("seconds", [-1, float("nan"), None, "1", True])
async def test_a_pause_that_cannot_be(queue: Any, seconds: Any) -> None:
    with pytest.raises(ValueError, match="seconds"):
        await queue.pause(seconds)


async def test_a_pause_that_is_ended_early_wakes_a_waiting_take(shell: Shell, db: psycopg.Connection) -> None:
    queue, other = shell.client().queue("q"), shell.client().queue("q")

    async def end_to_taken() -> float:
        await queue.put(1)
        await queue.pause(60)
        waiting = asyncio.ensure_future(queue.take(20))
        await soon(lambda: armed(db))
        clock = Stopwatch()
        await other.pause(0)
        task = await waiting
        seconds = clock()
        assert (await task.ack()).data == 1
        return seconds

    await soon_enough(end_to_taken, within=0.5)


# --- the state of the server


async def test_the_dsn_of_a_client_leads_to_its_database(client: Any, queue: Any) -> None:
    await queue.put("seen")
    with psycopg.connect(await client.dsn()) as connection:
        assert connection.execute("SELECT data FROM pgqueue.tasks").fetchall() == [("seen",)]


async def test_state(client: Any) -> None:
    assert await client.state() == "running"


async def test_a_server_that_takes_no_changes(shell: Shell, dsn: str) -> None:
    client = shell.client(make_conninfo(dsn, options="-c default_transaction_read_only=on"))
    assert await client.state() == "read only"
    with pytest.raises(NotRunning, match="read-only"):
        await client.queue("q").put(1)
    hurry(client, connect_timeout=0.5)
    with pytest.raises(NotRunning, match=r"without a session.*read-only"):
        await client.queue("q").take(0)


async def test_a_restricted_queue(shell: Shell, db: psycopg.Connection, dsn: str) -> None:
    db.execute("CREATE ROLE pgqueue_test_h; SELECT pgqueue.grant_to('pgqueue_test_h')")
    try:
        client = shell.client(make_conninfo(dsn, options="-c role=pgqueue_test_h"))
        await client.queue("q").put(1)
        db.execute("SELECT pgqueue.restrict_queue('q')")
        for call in (client.queue("q").put(1), client.queue("q").take(0), client.queue("q").truncate()):
            with pytest.raises(NotAllowed, match=r'role pgqueue_test_h may not .* queue "q"'):
                await call
        await client.close()
    finally:
        db.execute("DROP OWNED BY pgqueue_test_h; DROP ROLE pgqueue_test_h")


async def test_a_temporary_queue_ends_with_its_client(shell: Shell) -> None:
    client, other = shell.client(), shell.client()
    queue = await client.create_queue("q", temporary=True)
    assert (await queue.info()).temporary
    await other.queue("q").put(1)
    assert (await other.queue("q").take(0)).data == 1
    await client.close()
    await soon(lambda: _gone(other, "q"))


async def _gone(client: Any, name: str) -> bool:
    return not await client.queues(prefix=name)
