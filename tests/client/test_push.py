"""Handing on: ack(put=[...]), forward, release(every=...), and the batches of a push cluster; on both shells."""

from __future__ import annotations

import asyncio
import threading
from uuid import UUID

import psycopg
import pytest
from eventually import eventually, soon, soon_enough
from processes import programs
from statements import column, everything, row, rows, state, value

import pgqueue
from pgqueue import Put

pytestmark = pytest.mark.once

BLOCKED = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%pgqueue.ack(%%'"
PARTS = [[1, 25], [26, 50], [51, 75], [76, 100]]


@pytest.fixture
async def task(queue):
    await queue.put({"n": 1})
    return await queue.take(0)


def of_queue(db, name):
    return column(db, "SELECT data FROM pgqueue.tasks WHERE queue = %s ORDER BY id", name)


# --- ack(put=[...])


async def test_an_ack_hands_on(queue, task, db):
    sender = UUID(int=7)
    done = await task.ack(
        put=[
            Put("q", "again"),
            Put("leaf", {"a": None}, priority=5, delay=60, ttr=2.5, ttl=100, key="k", sender=sender),
            Put("leaf", None, lane="l"),
            Put("leaf", "not put: the key is there", key="k"),
        ]
    )
    assert (done.state, state(db, task.id)) == ("done", None)
    assert of_queue(db, "q") == ["again"]
    assert of_queue(db, "leaf") == [{"a": None}, None]
    query = "SELECT state, priority, ttr, extract(epoch FROM expires_at - run_at)::int, key, sender FROM pgqueue.task"
    found = row(db, f"{query} WHERE key = 'k'")
    assert (*found[:2], found[2].total_seconds(), *found[3:]) == ("D", 5, 2.5, 100, "k", sender)
    assert value(db, "SELECT lane FROM pgqueue.task WHERE data = 'null'") == "l"


async def test_nothing_to_hand_on_is_an_ack(queue, task):
    assert (await task.ack(put=[])).state == "done"
    assert (await queue.stats())["total"] == 0


async def test_a_task_named_by_its_id_hands_on(queue, task, db):
    await queue.ack(task.id, put=[Put("leaf", 1)])
    assert of_queue(db, "leaf") == [1]


async def test_waiters_are_woken(client, queue, task):
    taking = asyncio.ensure_future(client.queue("leaf").take(10))
    core = client.shell.core
    await soon(lambda: (at := core.running_listener.hub._channels.get(core.queue_ids.get("leaf"))) and at.drained)
    await task.ack(put=[Put("leaf", 1)])
    assert (await taking).data == 1


async def test_who_lost_the_task_hands_on_nothing(queue, task, db):
    db.execute("UPDATE pgqueue.take SET deadline = now() - interval '1 second'")
    with pytest.raises(pgqueue.TaskNotTaken):
        await task.ack(put=[Put("leaf", 1)])
    with pytest.raises(pgqueue.TaskNotTaken):
        await task.forward("leaf")
    assert of_queue(db, "leaf") == []


async def test_one_put_that_fails_keeps_the_parent_and_no_children(client, queue, task, db):
    db.execute("SELECT pgqueue.create_queue('full'), pgqueue.create_queue('small'), pgqueue.create_queue('ending')")
    db.execute("UPDATE pgqueue.queue SET capacity = 1 WHERE name = 'full'")
    db.execute("UPDATE pgqueue.queue SET max_size = 5 WHERE name = 'small'")
    db.execute("UPDATE pgqueue.queue SET draining = true WHERE name = 'ending'")
    await client.queue("full").put(0)
    await client.queue("leaf").put(0, key="k")
    before = everything(db, task.id)
    for wrong, error in (
        (Put("full", 1), pgqueue.QueueFull),
        (Put("leaf", 1, key="k", if_exists="error"), pgqueue.KeyExists),
        (Put("small", "more than five"), pgqueue.errors.DataTooBig),
        (Put("ending", 1), pgqueue.errors.QueueDraining),
        (Put("leaf", float("nan")), pgqueue.BadData),
    ):
        with pytest.raises(error):
            await task.ack(put=[Put("leaf", 1), wrong, Put("leaf", 2)])
        assert everything(db, task.id) == before
        assert (of_queue(db, "leaf"), of_queue(db, "full")) == ([0], [0])
    await task.ack(put=[Put("leaf", 1)])  # it is still held
    assert of_queue(db, "leaf") == [0, 1]


async def test_a_connection_that_breaks_in_the_middle_gives_the_parent_back(client, queue, task, db, dsn):
    """The second put waits for a transaction that has its key; then the server ends the connection, and that of the
    ack's repetition."""
    with psycopg.connect(dsn) as other:
        other.execute("SELECT pgqueue.put('leaf', '0', key => 'k')")
        acking = asyncio.ensure_future(task.ack(put=[Put("q", 1), Put("leaf", 2, key="k"), Put("q", 3)]))
        (first,) = await soon(lambda: row(db, BLOCKED))
        db.execute("SELECT pg_terminate_backend(%s::int)", [first])
        (second,) = await soon(lambda: (found := row(db, BLOCKED)) and found != (first,) and found)
        db.execute("SELECT pg_terminate_backend(%s::int)", [second])
        with pytest.raises(pgqueue.ConnectionLost):
            await acking
        other.rollback()
    again = await queue.take(30)
    assert (of_queue(db, "q"), of_queue(db, "leaf")) == ([{"n": 1}], [])
    assert again.id == task.id
    await again.ack(put=[Put("leaf", 2, key="k")])
    assert of_queue(db, "leaf") == [2]


async def test_the_place_of_a_fault_begins_with_the_put(task):
    with pytest.raises(pgqueue.BadData, match=r"^\[1\]\$\.x\[0\]: "):
        await task.ack(put=[Put("leaf", 1), Put("leaf", {"x": [{1}]})])


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 1.5},
        {"delay": -1},
        {"delay": float("nan")},
        {"ttr": 0},
        {"ttl": "1"},
        {"lane": ""},
        {"key": "x" * 256},
        {"key": "\0"},
        {"if_exists": "perhaps"},
        {"sender": "me"},
        {"conn": None},
    ],
)
def test_a_put_is_checked_when_it_is_made(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Put("q", 1, **options)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\0", "\ud800", None, 7])
def test_a_put_needs_a_queue(name):
    with pytest.raises(ValueError, match="name"):
        Put(name, 1)


async def test_only_puts_are_handed_on(task, db):
    before = everything(db, task.id)
    with pytest.raises(ValueError, match="put must hold Put"):
        await task.ack(put=[{"queue": "q"}])
    assert everything(db, task.id) == before


async def test_in_the_callers_transaction(queue, task, transaction, db):
    async def hand_on():
        await task.ack(put=[Put("leaf", 1), Put("lanes", 1, lane="l")], conn=transaction)

    await hand_on()
    await transaction.rollback()
    assert (state(db, task.id), of_queue(db, "leaf")) == ("taken", [])
    await hand_on()
    db.execute("SET statement_timeout = '5s'")  # the queues, and that one has lanes, do not wait for the transaction
    rows(db, "SELECT pgqueue.put('leaf', '2'), pgqueue.put('lanes', '2', lane => 'other')")
    await transaction.commit()
    assert (state(db, task.id), of_queue(db, "leaf"), of_queue(db, "lanes")) == (None, [1, 2], [1, 2])


@pytest.mark.slow
def test_a_crash_in_the_middle_of_a_split_yields_nothing(dsn, db, blocking):
    """kill -9 between the take and the ack: the range is there again, whole; and with the ack it is handed on."""
    ranges = blocking().queue("ranges")
    ranges.put([1, 100])
    with programs() as start:
        splitter = start("splitter", dsn)
        assert splitter.hear() == {"taken": [1, 100]}
        splitter.kill()
        task = ranges.take(5)
        assert task.data == [1, 100]
        assert of_queue(db, "ranges") == [[1, 100]]
        task.release()
        second = start("splitter", dsn)
        second.hear()
        second.tell("go on")
        assert second.hear() == {"acked": [1, 100]}
        assert of_queue(db, "ranges") == PARTS


def test_a_crash_during_the_ack_hands_on_all_or_nothing(dsn, db, blocking):
    """kill -9 while the statement waits for a lock. The server does not notice that its client is gone before the
    statement has ended, so here it is all: the parent is gone, and every part is there.
    """
    blocking().queue("ranges").put([1, 100])
    with programs() as start, psycopg.connect(dsn) as other:
        splitter = start("splitter", dsn)
        splitter.hear()
        other.execute("LOCK TABLE pgqueue.task IN SHARE ROW EXCLUSIVE MODE")
        splitter.tell("go on")
        (pid,) = eventually(lambda: row(db, BLOCKED))
        splitter.kill()
        assert of_queue(db, "ranges") == [[1, 100]]
        other.rollback()
        eventually(lambda: not row(db, "SELECT pid FROM pg_stat_activity WHERE pid = %s", pid))
    assert of_queue(db, "ranges") == PARTS


# --- forward


async def test_forward(queue, task, db):
    done = await task.forward("next", priority=3, key="k")
    assert (done.id, done.state) == (task.id, "done")
    assert rows(db, "SELECT queue, state, priority, data FROM pgqueue.tasks") == [("next", "ready", 3, {"n": 1})]


async def test_forward_other_data_into_the_same_queue(queue, task, db):
    await task.forward("q", {"n": 2})
    assert of_queue(db, "q") == [{"n": 2}]
    assert (await queue.take(0)).data == {"n": 2}


async def test_a_forward_that_is_refused_keeps_the_task(client, queue, task, db):
    await client.queue("next").put(0, key="k")
    before = everything(db, task.id)
    with pytest.raises(pgqueue.KeyExists):
        await task.forward("next", key="k", if_exists="error")
    with pytest.raises(ValueError, match="delay"):
        await task.forward("next", delay=-1)
    with pytest.raises(pgqueue.BadData):
        await task.forward("next", {1})
    assert everything(db, task.id) == before


async def test_forward_in_the_callers_transaction(task, transaction, db):
    await task.forward("next", conn=transaction)
    await transaction.rollback()
    assert (state(db, task.id), of_queue(db, "next")) == ("taken", [])


# --- release(every=...)


async def test_every_counts_from_the_take(queue, task, db):
    taken_at = value(db, "UPDATE pgqueue.take SET taken_at = taken_at - interval '0.3 seconds' RETURNING taken_at")
    assert (await task.release(every=1)).state == "delayed"
    assert ((await queue.peek(task)).run_at - taken_at).total_seconds() == 1


async def test_every_is_never_in_the_past(queue, task, db):
    db.execute("UPDATE pgqueue.take SET taken_at = taken_at - interval '1.5 seconds'")
    assert (await task.release(every=1)).state == "ready"
    assert (await queue.peek(task)).run_at is None
    assert (await queue.take(0)).id == task.id


@pytest.mark.slow
async def test_starts_are_a_second_apart(queue, db):
    await queue.put("every second")
    task = await queue.take(60)

    def taken_at():
        return value(db, "SELECT taken_at FROM pgqueue.take")

    async def start_to_start() -> float:
        nonlocal task
        before = taken_at()  # by the server: the client learns of a take late, and not equally late each time
        await asyncio.sleep(0.3)  # the work
        await task.release(every=1)
        task, earlier = await queue.take(60), task
        seconds = (taken_at() - before).total_seconds()
        assert task.id == earlier.id
        assert seconds >= 1
        return seconds

    await soon_enough(start_to_start, within=1.2)


@pytest.mark.parametrize(
    "options", [{"every": 0}, {"every": -1}, {"every": float("nan")}, {"every": "1"}, {"every": 1, "delay": 1}]
)
async def test_a_bad_every(task, db, options):
    before = everything(db, task.id)
    with pytest.raises(ValueError, match="every"):
        await task.release(**options)
    assert everything(db, task.id) == before


# --- batches


def test_a_thousand_are_taken_in_one_statement(blocking, monkeypatch):
    client = blocking()
    ids = client.queue("q").put_many(range(1500))
    sent = []
    run = client.shell.connections.run
    monkeypatch.setattr(client.shell.connections, "run", lambda call, **how: sent.append(call.sql) or run(call, **how))
    assert [task.id for task in client.queue("q").take_many(1000)] == ids[:1000]
    assert len(sent) == 1


@pytest.mark.slow
def test_everything_is_pushed_once_by_a_cascade(blocking):
    """Several workers split a range down to leaves; each number comes out once."""
    client = blocking()
    ranges, leaves = client.queue("ranges"), client.queue("leaves")
    ranges.put([1, 1000])

    def split():
        while task := ranges.take(0.2):
            lo, hi = task.data
            if hi - lo < 10:
                task.forward("leaves")
            else:
                task.ack(put=[Put("ranges", part) for part in pgqueue.split_range(lo, hi, 3)])

    workers = [threading.Thread(target=split) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert ranges.stats()["total"] == 0
    found = sorted(number for task in leaves.take_many(1000, 0) for number in range(task.data[0], task.data[1] + 1))
    assert found == list(range(1, 1001))
