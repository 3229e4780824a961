"""Exchanges, bindings, retained messages and wills, on both shells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from eventually import eventually, soon
from processes import Program, programs
from statements import column, rows, value

import pgqueue

pytestmark = pytest.mark.once


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    with programs() as make:
        yield make


async def drained(queue: Any) -> list[Any]:
    return [task.data for task in await queue.pop(100)]


async def test_a_topic_mask_selects_messages(client: Any) -> None:
    await client.exchanges.declare("events", "topic")
    for mask in ("#", "*", "lazy.#", "a.#.z"):
        await client.create_queue(mask)
        assert await client.exchanges.bind(mask, "events", mask) is True
    reached = {key: await client.exchanges.publish("events", key, key) for key in ("", "lazy", "a.z", "a.b")}
    assert reached == {"": 1, "lazy": 3, "a.z": 2, "a.b": 1}
    assert await drained(client.queue("#")) == ["", "lazy", "a.z", "a.b"]
    assert await drained(client.queue("*")) == ["lazy"]
    assert await drained(client.queue("lazy.#")) == ["lazy"]
    assert await drained(client.queue("a.#.z")) == ["a.z"]


async def test_two_matching_bindings_are_one_copy(client: Any) -> None:
    await client.exchanges.declare("events", "topic")
    await client.create_queue("q")
    await client.exchanges.bind("q", "events", "a.*"), await client.exchanges.bind("q", "events", "#")
    assert await client.exchanges.publish("events", "a.b", 1) == 1
    assert await drained(client.queue("q")) == [1]


async def test_an_unroutable_message_is_dropped_or_refused_if_mandatory(
    shell: Any, client: Any, db: psycopg.Connection
) -> None:
    await client.exchanges.declare("x")
    assert await client.exchanges.publish("x", "k", 1) == 0
    conn = await shell.connection()
    await client.queue("q").put("kept", conn=conn)
    with pytest.raises(
        pgqueue.errors.Unroutable, match="no queue is bound to exchange 'x' with a key that matches 'k'"
    ):
        await client.exchanges.publish("x", "k", 1, mandatory=True, conn=conn)
    await conn.commit()  # it was not aborted
    assert await drained(client.queue("q")) == ["kept"]
    with pytest.raises(pgqueue.errors.Unroutable):
        await client.exchanges.publish("", "none", 1, mandatory=True)
    assert await client.exchanges.publish("", "q", 1, mandatory=True) == 1


async def test_a_waiting_taker_is_woken_by_a_publish(client: Any) -> None:
    await client.exchanges.declare("x", "fanout")
    queues = [await client.create_queue(name) for name in ("a", "b")]
    for queue in queues:
        await client.exchanges.bind(queue.name, "x")
    taking = [asyncio.ensure_future(queue.take(10)) for queue in queues]
    hub = client.shell.core.listener().hub
    await soon(lambda: sum(len(channel.waiters) for channel in hub._channels.values()) == 2)
    assert await client.exchanges.publish("x", "", "news", priority=3, ttr=60) == 2
    assert [(task.data, task.priority) for task in await asyncio.gather(*taking)] == [("news", 3)] * 2


async def test_publishing_in_a_transaction(shell: Any, client: Any) -> None:
    await client.exchanges.declare("x", "fanout")
    queue = await client.create_queue("q")
    await client.exchanges.bind("q", "x")
    conn = await shell.connection()
    assert await client.exchanges.publish("x", "", "rolled back", conn=conn) == 1
    await conn.rollback()
    await client.exchanges.publish("x", "", "committed", conn=conn)
    assert await drained(queue) == []
    await conn.commit()
    assert await drained(queue) == ["committed"]


async def test_declarations(client: Any) -> None:
    for _ in range(2):
        await client.exchanges.declare("x", "topic")
    with pytest.raises(
        pgqueue.errors.ExchangeExists, match=r'"x" exists: it is topic and durable, not fanout and durable'
    ):
        await client.exchanges.declare("x", "fanout")
    with pytest.raises(pgqueue.NoQueue, match='no queue "q": create it'):
        await client.exchanges.bind("q", "x")
    with pytest.raises(pgqueue.errors.NoExchange, match='no exchange "y"'):
        await client.exchanges.bind("q", "y")
    await client.create_queue("q")
    assert [await client.exchanges.bind("q", "x", "#"), await client.exchanges.bind("q", "x", "#")] == [True, False]
    assert [await client.exchanges.unbind("q", "x", "#"), await client.exchanges.unbind("q", "x", "#")] == [True, False]
    await client.exchanges.delete("x")
    for call in (
        client.exchanges.delete("x"),
        client.exchanges.publish("x", "", 1),
        client.exchanges.set_will("x", "", 1),
    ):
        with pytest.raises(pgqueue.errors.NoExchange):
            await call


async def test_delete_queue(client: Any) -> None:
    queue = await client.create_queue("q")
    await queue.put_many([1, 2])
    task = await queue.take(5)
    with pytest.raises(pgqueue.errors.QueueInUse, match="2 tasks, of which 1 are taken"):
        await client.delete_queue("q", if_unused=True)
    with pytest.raises(pgqueue.errors.QueueInUse):
        await client.delete_queue("q", if_empty=True)
    with pytest.raises(pgqueue.errors.QueueInUse):
        await client.delete_queue("q")
    assert await client.delete_queue("q", force=True) == 2
    with pytest.raises(pgqueue.TaskNotFound):
        await task.ack()
    with pytest.raises(pgqueue.NoQueue):
        await client.delete_queue("q")
    await queue.put("anew")
    assert (await queue.take(5)).data == "anew"


async def test_retained_messages(client: Any) -> None:
    await client.exchanges.declare("m", "mqtt")
    for n in (1, 2):
        await client.exchanges.publish("m", "home/lamp", n, retain=True)
    await client.exchanges.publish("m", "home/door", "gone", retain=True)
    await client.exchanges.publish("m", "home/door", None, retain=True)
    await client.exchanges.publish("m", "home/lamp", "only now")
    late = await client.create_queue("late")
    await client.exchanges.bind("late", "m", "home/+")
    assert await drained(late) == [2]
    await client.exchanges.bind("late", "m", "#")
    assert await drained(late) == []


@pytest.mark.parametrize(
    ("method", "args", "options"),
    [
        ("declare", ("",), {}),
        ("declare", (1,), {}),
        ("declare", ("e" * 256,), {}),
        ("declare", ("a\0b",), {}),
        ("declare", ("\ud800",), {}),
        ("declare", ("x", "headers"), {}),
        ("declare", ("x", None), {}),
        ("declare", ("x",), {"durable": 1}),
        ("delete", ("",), {}),
        ("bind", ("", "m", "k"), {}),
        ("bind", ("q", "", "k"), {}),
        ("bind", ("q", "m", 1), {}),
        ("bind", ("q", "m", "ü" * 128), {}),
        ("bind", ("q", "m", "a/#/b"), {}),
        ("bind", ("q", "m", "a\0"), {}),
        ("unbind", ("q", "m", None), {}),
        ("publish", ("m", "a/+", 1), {}),
        ("publish", ("m", "k" * 256, 1), {}),
        ("publish", ("m", "\udfff", 1), {}),
        ("publish", (None, "k", 1), {}),
        ("publish", ("m", "k", {1, 2}), {}),
        ("publish", ("m", "k", 1), {"delay": -1}),
        ("publish", ("m", "k", 1), {"ttl": 0}),
        ("publish", ("m", "k", 1), {"priority": True}),
        ("publish", ("m", "k", 1), {"retain": "yes"}),
        ("publish", ("", "q", 1), {"retain": True}),
        ("set_will", ("m", "k", float("nan")), {}),
        ("set_will", ("m", "#", 1), {}),
        ("set_will", ("", "q", 1), {"retain": True}),
        ("delete_queue", ("",), {}),
        ("delete_queue", ("q",), {"if_empty": 1}),
    ],
)
async def test_bad_arguments(client: Any, db: psycopg.Connection, method: str, args: Any, options: Any) -> None:
    db.execute("SELECT pgqueue.declare_exchange('m', 'mqtt'), pgqueue.queue_id('q'), pgqueue.bind('q', 'm', '#')")
    with pytest.raises(ValueError, match=r"\w+ .*\w+"):
        await getattr(client if method == "delete_queue" else client.exchanges, method)(*args, **options)
    assert rows(db, "SELECT FROM pgqueue.task") == rows(db, "SELECT FROM pgqueue.will") == []
    assert len(rows(db, "SELECT FROM pgqueue.exchange")) == len(rows(db, "SELECT FROM pgqueue.binding")) == 1


# --- what lives as long as a client


async def test_an_exclusive_queue_is_for_one_client(shell: Any, client: Any, db: psycopg.Connection) -> None:
    mine = await client.create_queue("mine", exclusive=True)
    other = shell.client()
    await other.queue("mine").put_many([1, 2])
    for call in (other.queue("mine").take(0), other.take_many(["mine", "q"], 2, 0), other.queue("mine").pop()):
        with pytest.raises(pgqueue.errors.QueueExclusive, match='"mine" is exclusive'):
            await call
    assert (await mine.take(5)).data == 1
    assert await drained(mine) == [2]
    await client.close()
    assert column(db, "SELECT name FROM pgqueue.queue") == []


@pytest.mark.parametrize("options", [{}, {"exclusive": True}, {"temporary": True}])
async def test_an_exclusive_queue_of_another_client_is_not_accepted_as_there(
    shell: Any, client: Any, db: psycopg.Connection, options: Any
) -> None:
    await client.create_queue("mine", exclusive=True)
    with pytest.raises(pgqueue.errors.QueueExclusive, match='"mine" is exclusive to another session'):
        await shell.client().create_queue("mine", if_not_exists=True, **options)
    own = await client.create_queue("mine", if_not_exists=True, **options)
    await own.put(1)
    assert (await own.take(0)).data == 1
    await client.close()
    await shell.client().create_queue("mine", if_not_exists=True)
    assert column(db, "SELECT exclusive FROM pgqueue.queues") == [False]


async def test_a_client_that_closes_leaves_nothing_and_no_will(shell: Any, db: psycopg.Connection) -> None:
    leaving, staying = shell.client(), shell.client()
    await staying.exchanges.declare("x", "fanout")
    await staying.create_queue("q")
    await staying.exchanges.bind("q", "x")
    await leaving.exchanges.declare("mine", durable=False)
    await (await leaving.create_queue("auto", auto_delete=True)).take(0)
    await leaving.exchanges.set_will("x", "", "never")
    with pytest.raises(pgqueue.errors.ExchangeExists, match="of another session"):
        await staying.exchanges.declare("mine", durable=False)
    await leaving.close()
    assert column(db, "SELECT name FROM pgqueue.exchanges") == ["x"]
    assert column(db, "SELECT name FROM pgqueue.queue") == ["q"]
    assert await drained(staying.queue("q")) == []


async def test_a_will_can_be_taken_back(client: Any, db: psycopg.Connection) -> None:
    await client.exchanges.declare("x")
    await client.exchanges.set_will("x", "k", 1)
    assert [await client.exchanges.clear_will(), await client.exchanges.clear_will()] == [True, False]
    assert rows(db, "SELECT FROM pgqueue.will") == []


def test_what_a_killed_process_declared_goes_and_its_will_is_done(
    program: Callable[..., Program], blocking: Callable[..., pgqueue.Client], dsn: str, db: psycopg.Connection
) -> None:
    client = blocking()
    client.exchanges.declare("wills", "mqtt")
    client.create_queue("watcher")
    client.exchanges.bind("watcher", "wills", "status")
    process = program("declarer", dsn)
    assert process.hear() == {"ready": True}
    assert len(column(db, "SELECT name FROM pgqueue.queue")) == 3
    process.kill()
    will = client.queue("watcher").take(10)  # as a waiting taker, whose listener sweeps
    assert will is not None
    assert will.data == "died"
    assert column(db, "SELECT name FROM pgqueue.queue") == ["watcher"]
    assert column(db, "SELECT name FROM pgqueue.exchanges") == ["wills"]
    assert column(db, "SELECT data FROM pgqueue.tasks") == ["died"]
    client.create_queue("late")
    client.exchanges.bind("late", "wills", "#")
    retained = client.queue("late").take(0)
    assert retained is not None
    assert retained.data == "died"


def test_a_lost_connection_is_no_death(blocking: Callable[..., pgqueue.Client], db: psycopg.Connection) -> None:
    client, witness = blocking(session_grace=30), blocking()
    client.exchanges.declare("x", "fanout")
    client.create_queue("mine", exclusive=True).put(1)
    client.exchanges.declare("my own", durable=False)
    client.exchanges.set_will("x", "", "died")
    witness.create_queue("q")
    witness.exchanges.bind("q", "x")
    listener = client.shell.core.listener()
    session = listener.session
    backend = "SELECT backend_pid FROM pgqueue.session WHERE id = %s"
    pid = value(db, backend, session)
    witness.queue("q").take(0)  # sweeps from now on
    value(db, "SELECT pg_terminate_backend(%s::int)", pid)
    eventually(lambda: value(db, backend, session) != pid)
    eventually(lambda: listener.session == session)
    task = client.queue("mine").take(10)
    assert task is not None
    assert client.exchanges.clear_will() is True
    assert "my own" in column(db, "SELECT name FROM pgqueue.exchanges")
    assert witness.queue("q").take(0) is None


async def test_takers_that_wait_find_the_queue_that_was_made_anew(
    shell: Any, client: Any, db: psycopg.Connection
) -> None:
    """They sleep in front of the old one, and have to move; whoever slept there before goes to the new one at once."""
    queue = client.queue("q")
    await queue.take(0.01)
    taking = [asyncio.ensure_future(queue.take(None)) for _ in range(3)]
    hub = client.shell.core.listener().hub
    await soon(lambda: sum(len(channel.waiters) for channel in hub._channels.values()) == 3)
    other = shell.client()
    await other.delete_queue("q")
    await other.queue("q").put_many([1, 2, 3])
    assert sorted([task.data for task in await asyncio.wait_for(asyncio.gather(*taking), 30)]) == [1, 2, 3]
    await other.delete_queue("q", force=True)
    await other.create_queue("q")
    late = asyncio.ensure_future(queue.take(None))
    await soon(lambda: value(db, "SELECT id FROM pgqueue.queue") in client.shell.core.queue_ids.values())
    await other.queue("q").put(4)
    assert (await asyncio.wait_for(late, 30)).data == 4
