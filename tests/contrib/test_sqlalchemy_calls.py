"""Every method that has a conn, on SQLAlchemy with each driver: invisible before the commit, undone by a rollback."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from alchemy import DRIVERS, Caller, caller, done
from statements import column, rows

import pgqueue
from pgqueue import Put, types

OUTSIDE = """
    SELECT (SELECT json_agg(t ORDER BY id)::text FROM pgqueue.tasks t), (SELECT count(*) FROM pgqueue.results),
        (SELECT json_agg(n ORDER BY path)::text FROM pgqueue.nodes n),
        (SELECT json_agg(s)::text FROM pgqueue.statuses s),
        (SELECT count(*) FROM pgqueue.batch), (SELECT count(*) FROM pgqueue.step),
        (SELECT jsonb_agg(to_jsonb(s) - 'late' ORDER BY name)::text FROM pgqueue.schedules s)
"""
ODD = {"odd": "100 %s %% :p0 ::text \\: 'x'"}

CHANGES: dict[str, Callable[[Any], Any]] = {
    "Queue.put": lambda s: s.queue.put(
        ODD, priority=-(2**31), ttr=60, ttl=60.5, lane="%s", key=":k", sender=uuid.uuid4(), conn=s.conn
    ),
    "Queue.put_many": lambda s: s.queue.put_many([1, 2, 3], lane=["a", None, "b"], key=["x", "y", None], conn=s.conn),
    "Queue.put_unique": lambda s: s.queue.put_unique("new", conn=s.conn),
    "Queue.urgent": lambda s: s.queue.urgent("now", conn=s.conn),
    "Queue.pop": lambda s: s.queue.pop(2, conn=s.conn),
    "Queue.ack": lambda s: s.queue.ack(s.task, conn=s.conn),
    "Queue.ack_many": lambda s: s.queue.ack_many([s.task, s.other], conn=s.conn),
    "Queue.release": lambda s: s.queue.release(s.task, 3600, error="why", conn=s.conn),
    "Queue.release_many": lambda s: s.queue.release_many([s.task, s.other.id], conn=s.conn),
    "Queue.bury": lambda s: s.queue.bury(s.task, priority=7, conn=s.conn),
    "Queue.touch": lambda s: s.queue.touch(s.task, 100, conn=s.conn),
    "Queue.requeue": lambda s: s.queue.requeue(s.task, conn=s.conn),
    "Queue.delete": lambda s: s.queue.delete(s.ready, strict=True, conn=s.conn),
    "Messages.delete": lambda s: s.queue.messages.delete(s.ready, conn=s.conn),
    "Messages.delete_many": lambda s: s.queue.messages.delete_many([s.ready], conn=s.conn),
    "Queue.finish": lambda s: s.queue.finish(s.task, {"result": 1}, conn=s.conn),
    "Queue.fail": lambda s: s.queue.fail(s.task, "no", conn=s.conn),
    "Queue.cancel": lambda s: s.queue.cancel(s.ready, reason="100 %s", conn=s.conn),
    "Queue.kick_task": lambda s: s.queue.kick_task(s.buried, conn=s.conn),
    "Task.ack": lambda s: s.task.ack(put=[Put("q", "next")], conn=s.conn),
    "Task.cancel": lambda s: s.task.cancel(":why", conn=s.conn),
    "Task.step": lambda s: s.task.step("charge", lambda: ODD, conn=s.conn),
    "Task.bury": lambda s: s.task.bury(error="é", conn=s.conn),
    "Task.touch": lambda s: s.task.touch(conn=s.conn),
    "Task.finish": lambda s: s.task.finish(conn=s.conn),
    "Task.fail": lambda s: s.task.fail("no", conn=s.conn),
    "Task.forward": lambda s: s.task.forward("q", conn=s.conn),
    "Task.release": lambda s: s.task.release(every=3600, conn=s.conn),
    "Task.requeue": lambda s: s.task.requeue(conn=s.conn),
    "Client.batch": lambda s: s.client.batch(Put("q", "end"), name="%s", conn=s.conn).open(),
    "Client.cancel": lambda s: s.client.cancel(s.ready, conn=s.conn),
    "Client.cancel_many": lambda s: s.client.cancel_many([s.ready, s.task], "no", conn=s.conn),
    "Client.kick": lambda s: s.client.kick(s.buried, conn=s.conn),
    "Client.put_again": lambda s: s.client.put_again(s.buried, conn=s.conn),
    "Client.delete": lambda s: s.client.delete(s.ready, strict=True, conn=s.conn),
    "Client.put_graph": lambda s: s.client.put_graph([Put("q", "first"), Put("q", "second")], conn=s.conn),
    "Exchanges.publish": lambda s: s.client.exchanges.publish("", "q", {"n": 1}, mandatory=True, conn=s.conn),
    "Statuses.set": lambda s: s.client.statuses.set("there", [1.5], ttl=60, conn=s.conn),
    "Statuses.delete": lambda s: s.client.statuses.delete("here", conn=s.conn),
    "Schedules.set": lambda s: s.client.schedules.set("there", "@daily", "q", ODD, lane="%s", conn=s.conn),
    "Schedules.pause": lambda s: s.client.schedules.pause("here", conn=s.conn),
    "Schedules.resume": lambda s: s.client.schedules.resume("here", conn=s.conn),
    "Schedules.run_now": lambda s: s.client.schedules.run_now("here", conn=s.conn),
    "Schedules.delete": lambda s: s.client.schedules.delete("here", conn=s.conn),
    "Nodes.create": lambda s: s.client.nodes.create("/beside", {"n": 1}, ephemeral=True, conn=s.conn),
    "Nodes.set": lambda s: s.client.nodes.set("/here", "changed", conn=s.conn),
    "Nodes.delete": lambda s: s.client.nodes.delete("/here", conn=s.conn),
}
ELSEWHERE = {"Client.post", "Nodes.children", "Nodes.get", "Nodes.exists"}  # in the tests below


@pytest.fixture(params=DRIVERS)
async def it(request, dsn):
    async with caller(request.param, "session", dsn) as found:
        yield found


async def scene(it: Caller, db: Any) -> SimpleNamespace:
    """Two tasks that are taken, one that is ready, a buried one, a status and a node."""
    for table in (
        "task",
        "take",
        "result",
        "step",
        "batch",
    ):  # a tick would remove what these leave behind, at any time
        db.execute(f"DELETE FROM pgqueue.{table}")
    queue = it.client.queue("q")
    ids = await done(queue.put_many(range(4), ttr=3600))
    task, other = await done(queue.take_many(2))
    await done(queue.bury(ids[2]))
    await done(it.client.statuses.set("here", 1))
    await done(it.client.schedules.set("here", None, "q", every=3600))
    if not await done(it.client.nodes.exists("/here")):  # deleted, by a change before
        await done(it.client.nodes.create("/here", "data"))
    return SimpleNamespace(
        client=it.client, conn=it.conn, queue=queue, task=task, other=other, buried=ids[2], ready=ids[3]
    )


KINDS = (
    *(pgqueue.Client, pgqueue.Queue, pgqueue.Task),
    *(types.Exchanges, types.Groups, types.Messages, types.Nodes, types.Results, types.Schedules, types.Statuses),
)


def test_all_are_here():
    with_conn = {
        f"{kind.__name__}.{name}"
        for kind in KINDS
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and "conn" in inspect.signature(method).parameters
    }
    assert with_conn == CHANGES.keys() | ELSEWHERE


@pytest.mark.slow
async def test_every_change(it, db):
    for name, change in CHANGES.items():
        told = await scene(it, db)
        before = rows(db, OUTSIDE)
        for end in (it.rollback, it.commit):
            await done(change(told))
            assert (name, rows(db, OUTSIDE)) == (name, before)
            await end()
            assert (name, rows(db, OUTSIDE) == before) == (name, end == it.rollback)


async def test_reads_see_the_transaction(it, db):
    told = await scene(it, db)
    client, conn = it.client, told.conn
    await done(client.nodes.set("/here", "mine", conn=conn))
    assert (await done(client.nodes.get("/here", conn=conn))).data == "mine"
    await done(client.nodes.create("/here/below", conn=conn))
    assert await done(client.nodes.children("/here", conn=conn)) == ["below"]
    assert await done(client.nodes.exists("/here/below", conn=conn)) is True
    await it.rollback()
    assert await done(client.nodes.exists("/here/below", conn=conn)) is False


async def test_a_post_is_sent_at_the_commit(it):
    subscription = await done(it.client.subscribe("news"))
    await done(it.client.post("news", "gone", conn=it.conn))
    await it.rollback()
    await done(it.client.post("news", "sent", conn=it.conn))
    await it.commit()
    assert await done(subscription.get(30)) == "sent"


async def test_large_numbers_and_odd_texts_arrive_as_they_are(it, db):
    """Ids and tokens beyond int4, and what a text() or a driver might take for a parameter, an escape or a cast."""
    db.execute("SELECT setval('pgqueue.task_id_seq', (2 ^ 40)::int8)")
    queue = it.client.queue("q")
    put = await done(queue.put(ODD, lane="%(a)s", key=":p1", conn=it.conn))
    await it.commit()
    task = await done(queue.take(5))
    assert (task.id, task.data, task.id > 2**40) == (put.id, ODD, True)
    assert rows(db, "SELECT lane, key FROM pgqueue.tasks") == [("%(a)s", ":p1")]
    await done(task.ack(conn=it.conn))
    await it.commit()
    assert column(db, "SELECT id FROM pgqueue.tasks") == []
