"""Bytes, and texts that jsonb cannot hold, through the database: in data, results, statuses and nodes, and from SQL."""

from __future__ import annotations

import psycopg
import pytest
from statements import value

import pgqueue
from pgqueue.testing import drain

pytestmark = pytest.mark.once

ODD = {"body": b"\x00\xff", "title": "a\0b", "half": "\ud800", "n": [1, b""]}


@pytest.mark.parametrize("data", [b"", bytes(range(256)), "\0", ODD, [ODD]])
async def test_data_comes_back(queue, data):
    assert (await queue.put(data)).data == data
    await queue.put_many([data, 7])
    assert (await queue.take(0)).data == data
    assert (await queue.peek_next("ready")).data == data
    assert [task.data for task in await queue.pop(2)] == [data, 7]


async def test_results_statuses_and_nodes_come_back(client, queue):
    task = await queue.put(b"x", key="k")
    assert (await queue.put(b"y", key="k")).data == b"x"
    taken = await queue.take(0)
    await taken.progress(b"half")
    assert (await task.outcome()).progress == b"half"
    await taken.finish(ODD)
    assert await task.result() == ODD
    await client.statuses.set("s", ODD)
    assert await client.statuses.get("s") == ODD
    await client.nodes.create("/n", ODD)
    assert (await client.nodes.get("/n")).data == ODD


async def test_bytes_are_found_and_are_keys(queue):
    await queue.put({"body": b"a", "n": 1})
    await queue.put({"body": b"b", "n": 2})
    page = await queue.tasks("ready", contains={"body": b"b"})
    assert [task.data["n"] for task in page.tasks] == [2]
    assert await queue.put_unique(b"a") is not None
    assert await queue.put_unique(b"a") is None


async def test_sql_puts_and_reads_bytes(queue, db: psycopg.Connection):
    content = bytes(range(256))  # of more than one line of base64
    db.execute("SELECT pgqueue.put('q', jsonb_build_object('$bytes', encode(%s, 'base64')))", (content,))
    assert (await queue.take(0)).data == content
    await queue.put({"body": content})
    seen = "SELECT decode(data->'body'->>'$bytes', 'base64') FROM pgqueue.tasks WHERE state = 'ready'"
    assert value(db, seen) == content


async def test_the_limit_of_a_queue_counts_what_is_stored(client):
    queue = await client.create_queue("small", max_size=60)
    await queue.put(b"x" * 30)
    with pytest.raises(pgqueue.errors.DataTooBig):
        await queue.put(b"x" * 36)


def test_a_job_gets_a_text_with_nul_as_it_was_put(blocking):
    client = blocking()

    @client.job(queue="letters")
    def send(to: str, more: dict[str, str], all_: list) -> None:
        seen.append((to, more, all_))

    seen: list[tuple[object, ...]] = []
    send.put("a\0b", {"k": "\0"}, ["\0"])
    drain(client)
    assert seen == [("a\0b", {"k": "\0"}, ["\0"])]
