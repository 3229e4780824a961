"""A client of one of several numbered servers: each verb refuses an id that names another server."""

from __future__ import annotations

import pytest

from pgqueue.errors import BatchError, TaskElsewhere

ELSEWHERE = (1 << 43) + 1
MESSAGE = f"{ELSEWHERE} belongs to server 1, this is server 0: call that one"

CALLS = {
    "client.peek": lambda client, queue: client.peek(ELSEWHERE),
    "client.kick": lambda client, queue: client.kick(ELSEWHERE),
    "client.put_again": lambda client, queue: client.put_again(ELSEWHERE),
    "client.delete": lambda client, queue: client.delete(ELSEWHERE),
    "client.cancel": lambda client, queue: client.cancel(ELSEWHERE),
    "client.cancel_many": lambda client, queue: client.cancel_many([ELSEWHERE]),
    "results.outcome": lambda client, queue: client.results.outcome(ELSEWHERE),
    "results.get": lambda client, queue: client.results.get(ELSEWHERE, timeout=30),
    "results.attempts": lambda client, queue: client.results.attempts(ELSEWHERE),
    "queue.peek": lambda client, queue: queue.peek(ELSEWHERE),
    "queue.kick_task": lambda client, queue: queue.kick_task(ELSEWHERE),
    "queue.delete": lambda client, queue: queue.delete(ELSEWHERE),
    "queue.delete, strict": lambda client, queue: queue.delete(ELSEWHERE, strict=True),
    "queue.task_stats": lambda client, queue: queue.task_stats(ELSEWHERE),
    "queue.take_id": lambda client, queue: queue.take_id(ELSEWHERE),
    "queue.ack": lambda client, queue: queue.ack(ELSEWHERE),
    "queue.ack_many": lambda client, queue: queue.ack_many([ELSEWHERE]),
    "queue.bury": lambda client, queue: queue.bury(ELSEWHERE),
    "queue.touch": lambda client, queue: queue.touch(ELSEWHERE),
}


@pytest.mark.parametrize("verb", CALLS)
async def test_no_verb_takes_a_task_of_another_server(client, queue, verb):
    with pytest.raises(TaskElsewhere) as error:
        await CALLS[verb](client, queue)
    assert str(error.value) == f"task {MESSAGE}"
    assert error.value.task_id == ELSEWHERE


async def test_no_task_waits_for_one_of_another_server(queue):
    with pytest.raises(ValueError, match=f"task {MESSAGE}"):
        await queue.put(1, after=ELSEWHERE)
    assert (await queue.stats())["total"] == 0


async def test_no_task_is_put_into_a_batch_of_another_server(queue):
    with pytest.raises(BatchError, match=f"batch {MESSAGE}"):
        await queue.put(1, batch=ELSEWHERE)


async def test_tasks_of_a_numbered_server_do_as_others(client, queue, db):
    """Their ids have sixteen digits: JSON, channels and the tokens of takes go with them."""
    db.execute("SELECT pgqueue.set_server(1023)")
    first = await queue.put(1)
    assert first.id == (1023 << 43) + 1
    second = await queue.put(2, after=first)
    task = await queue.take(0)
    await task.finish({"done": 1})
    assert await client.results.get(first.id, timeout=30) == {"done": 1}
    task = await queue.take(30)
    assert (task.id, task.data) == (second.id, 2)
    await queue.ack_many([task])
