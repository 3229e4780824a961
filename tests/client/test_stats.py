"""Queue.stats() on both shells. What the numbers mean, and that they are exact, is tested in sql/test_count.py."""

from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest
from eventually import soon
from statements import value

from pgqueue._calls import stats as counting

NOTHING: dict[str, Any] = {
    **dict.fromkeys(("total", "ready", "delayed", "taken", "buried", "blocked", "done", "kept"), 0),
    "oldest_ready_age": None,
    "calls": dict.fromkeys(counting.VERBS, 0),
}


async def test_a_queue_that_does_not_exist_has_nothing(client: Any, queue: Any, db: psycopg.Connection) -> None:
    assert await queue.stats() == NOTHING
    assert value(db, "SELECT count(*) FROM pgqueue.queue") == 0  # and is not made by asking


async def test_stats_after_each_verb(queue: Any, db: psycopg.Connection) -> None:
    expected = dict(NOTHING, calls=dict(NOTHING["calls"]))

    async def is_now(verb: str, n: int = 1, **changed: int) -> None:
        expected.update(changed)
        expected["calls"][verb] += n
        found = await queue.stats()
        age = found.pop("oldest_ready_age")
        assert (age is None) == (expected["ready"] == 0)
        assert age is None or 0 <= age < 60
        assert found == {name: n for name, n in expected.items() if name != "oldest_ready_age"}

    await queue.put_many([1, 2, 3])
    await is_now("put", 3, total=3, ready=3)
    delayed = await queue.put(4, delay=3600)
    await is_now("put", total=4, delayed=1)
    first, second = await queue.take(0), await queue.take(0)
    await is_now("take", 2, ready=1, taken=2)
    await first.release()
    await is_now("release", ready=2, taken=1)
    await second.release(delay=3600)
    await is_now("release", delayed=2, taken=0)
    third = await queue.take(0)
    await is_now("take", ready=1, taken=1)
    await third.touch(10)
    await is_now("touch")
    await third.ack()
    await is_now("ack", total=3, taken=0, done=1)
    await (await queue.take(0)).bury()
    expected["calls"]["take"] += 1
    await is_now("bury", ready=0, buried=1)
    await queue.kick()
    await is_now("kick", ready=1, buried=0)
    await queue.delete(delayed)
    await is_now("delete", total=2, delayed=1, done=2)
    db.execute("DELETE FROM pgqueue.task WHERE state = 'R'")
    await is_now("delete", 0, total=1, ready=0)
    db.execute("TRUNCATE pgqueue.task")
    await is_now("delete", 0, total=0, delayed=0)


async def test_done_is_ack_and_delete_and_an_ack_is_no_delete(queue: Any) -> None:
    tasks = [await queue.put(n) for n in range(3)]
    await (await queue.take(0)).ack()
    await queue.delete(tasks[1])
    found = await queue.stats()
    assert (found["done"], found["calls"]["ack"], found["calls"]["delete"]) == (2, 1, 1)


async def test_the_age_of_the_oldest_is_in_seconds(queue: Any, db: psycopg.Connection) -> None:
    await queue.put(1)
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '90 s'")
    assert (await queue.stats())["oldest_ready_age"] == pytest.approx(90, abs=10)


async def test_a_clients_ticks_fold(client: Any, queue: Any, db: psycopg.Connection) -> None:
    """Whoever uses the library gets it without asking; readers go on as if nothing was."""
    await queue.put_many(range(3))
    db.execute("SELECT pgqueue.put('q', '1') FROM generate_series(1, 1500)")
    await queue.take(0)  # from now on the client has a listener
    await soon(lambda: value(db, "SELECT count(*) FROM pgqueue.delta") < 1000)
    assert value(db, "SELECT pgqueue._is_counted()") is True
    found = await queue.stats()
    assert (found["total"], found["ready"], found["taken"], found["calls"]["put"]) == (1503, 1502, 1, 1503)


def test_the_sum_of_several_queues() -> None:
    calls = NOTHING["calls"]
    one = NOTHING | {"ready": 2, "total": 2, "oldest_ready_age": 3.0, "calls": calls | {"put": 2}}
    two = NOTHING | {"done": 1, "calls": calls | {"put": 1, "ack": 1}}
    both = one | two | {"ready": 2, "total": 2, "oldest_ready_age": 3.0, "calls": calls | {"put": 3, "ack": 1}}
    assert counting.summed([]) == NOTHING
    assert counting.summed([cast(counting.Stats, one), cast(counting.Stats, two)]) == both


async def test_the_stats_of_every_queue_by_its_name(client: Any) -> None:
    assert await client.stats() == {}
    await client.create_queue("empty")
    await client.queue("mail").put_many([1, 2])
    await client.queue("mail").take(0)
    found = await client.stats()
    assert found["empty"] == NOTHING
    assert (found["mail"]["ready"], found["mail"]["taken"], found["mail"]["calls"]["put"]) == (1, 1, 2)
    alone = await client.queue("mail").stats()
    assert found["mail"] | {"oldest_ready_age": 0} == alone | {"oldest_ready_age": 0}
    assert set(found) == {"empty", "mail"}
    await client.delete_queue("empty")
    assert list(await client.stats()) == ["mail"]
