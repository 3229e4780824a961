"""Queue.history() and Client.history() on both shells. That the rows are right is tested in sql/test_history.py."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from eventually import eventually
from minutes import write_minute
from statements import put, take, value


def written(db: psycopg.Connection) -> int:
    """Let a minute pass, and count the puts in the history. A client that ticks may write the minute just before."""
    write_minute(db)
    return int(value(db, "SELECT coalesce(sum(puts), 0) FROM pgqueue.history()"))


async def test_the_history_of_a_queue(queue: Any, db: psycopg.Connection) -> None:
    assert await queue.history() == []
    put(db, queue.name)
    put(db, queue.name)
    db.execute("SELECT pgqueue.ack(%s, %s)", take(db, queue.name))
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '90 s'")
    eventually(lambda: written(db) == 2)
    found = await queue.history(timedelta(hours=1), timedelta(minutes=5))
    assert sum(one.puts for one in found) == 2
    assert sum(one.done for one in found) == 1
    (one,) = [one for one in found if one.puts]
    assert (one.queue, one.takes, one.acks, one.ready, one.most_ready, one.taken) == (queue.name, 1, 1, 1, 1, 0)
    assert one.oldest_ready_age == pytest.approx(90, abs=60)
    assert isinstance(one.at, datetime)
    assert one.at.minute % 5 == 0


async def test_the_history_of_several_queues(client: Any, db: psycopg.Connection) -> None:
    for name in "abc":
        put(db, name)
    eventually(lambda: written(db) == 3)
    assert {one.queue for one in await client.history()} == {"a", "b", "c"}
    assert {one.queue for one in await client.history(["a", "c", "none"], 3600)} == {"a", "c"}
    assert await client.history([]) == []
    assert sum(one.puts for one in await client.history(since=timedelta(days=300), every=timedelta(days=100))) == 3


@pytest.mark.parametrize(
    ("since", "every"),
    [(-1, None), (None, None), (367 * 86400, None), (3600, 0), (3600, 30), (3600, 90), (2 * 86400, 60), ("x", None)],
)
async def test_what_the_history_does_not_have_is_refused(queue: Any, since: Any, every: Any) -> None:
    with pytest.raises(ValueError, match=r"since|every"):
        await queue.history(since, every)


async def test_a_name_that_is_not_valid_is_refused(client: Any, db: psycopg.Connection) -> None:
    with pytest.raises(ValueError, match="name"):
        await client.history([""])
    assert value(db, "SELECT count(*) FROM pgqueue.history()") == 0
