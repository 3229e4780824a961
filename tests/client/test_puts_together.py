"""Puts that are made at the same time share a commit, on both shells.

A lock on the table of tasks holds two puts, or a batch, in their statements. The puts that come meanwhile gather: when
they have, the lock is let go.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading

import psycopg
import pytest
from eventually import eventually, soon
from hurrying import hurry
from outages import away
from psycopg.conninfo import make_conninfo
from statements import column, rows, value
from steady import steady

import pgqueue
from pgqueue.errors import CallTimeout, ClosedError, ConnectionLost, DataTooBig, NotAllowed, QueueFull, ServerError

pytestmark = pytest.mark.once

HELD = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgqueue' AND datname = current_database()"
    " AND wait_event_type = 'Lock'"
)
BATCHES = f"{HELD} AND strpos(query, 'others') > 0"
COMMITS = "SELECT count(DISTINCT xmin::text) FROM pgqueue.task"
UNDER_WAY = 2


@contextlib.contextmanager
def held(connect, by="LOCK TABLE pgqueue.task IN EXCLUSIVE MODE"):
    """No put can end."""
    with connect(autocommit=False) as other:
        other.execute(by)
        yield other
        other.rollback()


def inner(client):
    return getattr(client, "_thing", client).shell


def waiting(client):
    """How many puts have gathered."""
    _, gatherings = inner(client).together._home
    return sum(len(gathering.waiting) for gathering in gatherings._known.values())


def under_way(client):
    """How many puts and batches are under way."""
    _, gatherings = inner(client).together._home
    return sum(len(gathering.under_way) for gathering in gatherings._known.values())


async def gathered(client, db, queue, items, **options):
    """Puts that were called while UNDER_WAY others are under way, as futures; the first two are those others."""
    begun = waiting(client)
    first = [asyncio.ensure_future(queue.put("first", **options)) for _ in range(UNDER_WAY)]
    await soon(lambda: value(db, HELD) == UNDER_WAY)
    others = []
    for number, item in enumerate(items, begun + 1):
        others.append(asyncio.ensure_future(queue.put(item, **options)))
        await soon(lambda number=number: waiting(client) == number)
    return first + others


async def test_puts_that_gather_share_one_commit(client, queue, db, connect):
    await queue.put("before")
    with held(connect):
        puts = await gathered(client, db, queue, range(10))
    tasks = await asyncio.gather(*puts)
    assert [task.data for task in tasks[2:]] == list(range(10))
    assert {(task.state, task.existed, task.queue) for task in tasks} == {("ready", False, "q")}
    ids = [task.id for task in tasks[2:]]
    assert ids == sorted(ids)
    assert rows(
        db, "SELECT id, data FROM pgqueue.task WHERE data <> '\"first\"' AND data <> '\"before\"' ORDER BY id"
    ) == [*zip(ids, range(10), strict=True)]
    assert value(db, COMMITS) == 1 + UNDER_WAY + 1
    stats = await queue.stats()
    assert (stats["ready"], stats["calls"]["put"]) == (13, 13)
    assert under_way(client) == 0
    await tasks[5].delete()


async def test_puts_with_many_different_options_leave_nothing_behind(client, queue):
    for number in range(200):
        await queue.put(number, priority=number)
    assert len(inner(client).together._home[1]._known) <= 65


async def test_behind_a_pooler_puts_share_commits_too(shell, db, connect, dsn):
    client = shell.client(listen_dsn=dsn)  # it sends no options and prepares nothing
    queue = client.queue("q")
    await queue.put("before")
    with held(connect):
        puts = await gathered(client, db, queue, range(4))
    await asyncio.gather(*puts)
    assert value(db, COMMITS) == 1 + UNDER_WAY + 1


async def test_a_batch_has_an_upper_bound(client, queue, db, connect, monkeypatch):
    monkeypatch.setattr("pgqueue._engine.gathering.TASKS", 10)
    await queue.put("before")
    with held(connect):
        puts = await gathered(client, db, queue, range(25))
    ids = [task.id for task in await asyncio.gather(*puts)][2:]
    assert ids[:10] == sorted(ids[:10])
    assert value(db, COMMITS) == 1 + UNDER_WAY + 3


async def test_large_tasks_do_not_go_with_many(client, queue, db, connect):
    await queue.put("before")
    with held(connect):
        puts = await gathered(client, db, queue, ["x" * 200_000, "y" * 100_000, "z", "y" * 300_000, "z"])
    await asyncio.gather(*puts)
    assert value(db, COMMITS) == 1 + UNDER_WAY + 4


@pytest.mark.parametrize("options", [{"delay": 60}, {"priority": -3, "ttr": 5}, {"ttl": 50, "delay": 10}])
async def test_options_go_with_their_tasks(client, queue, db, connect, options):
    await queue.put("before")
    with held(connect):
        puts = await gathered(client, db, queue, range(3), **options)
        later = [asyncio.ensure_future(queue.put("other")) for _ in range(UNDER_WAY)]  # none of its kind is there
        await soon(lambda: value(db, HELD) == 2 * UNDER_WAY)
    tasks = await asyncio.gather(*puts, *later)
    shown = (
        "SELECT DISTINCT state, priority, ttr, run_at IS NULL, expires_at IS NULL FROM pgqueue.task WHERE id = ANY(%s)"
    )
    by_itself = await queue.put("alone", **options)
    assert {task.state for task in tasks[:5]} == {by_itself.state}
    assert rows(db, shown, [task.id for task in tasks[:5]]) == rows(db, shown, [by_itself.id])
    assert {task.state for task in tasks[5:]} == {"ready"}


async def test_the_delay_of_the_queue_is_in_the_answer(client, db, connect):
    queue = await client.create_queue("slow", delay=60)
    with held(connect):
        puts = await gathered(client, db, queue, range(3))
    assert {task.state for task in await asyncio.gather(*puts)} == {"delayed"}
    assert (await queue.stats())["delayed"] == 5


async def test_what_needs_a_statement_of_its_own_waits_for_nobody(client, queue, db, connect, transaction):
    await queue.put("before", lane="l", key="a")
    with held(connect):
        puts = await gathered(client, db, queue, [1])
        calls = [queue.put(2, lane="l"), queue.put(3, key="b"), queue.put_unique(4)]
        alone = [asyncio.ensure_future(call) for call in calls]
        await soon(lambda: value(db, HELD) == 5)
        assert waiting(client) == 1
    await asyncio.gather(*puts, *alone)
    assert (await queue.put(6, conn=transaction)).state == "ready"


async def test_without_sharing_each_put_has_a_statement_of_its_own(shell, db, connect):
    queue = shell.client(share_commits=False).queue("q")
    await queue.put("before")
    with held(connect):
        puts = [asyncio.ensure_future(queue.put(number)) for number in range(5)]
        await soon(lambda: value(db, HELD) == 5)
    await asyncio.gather(*puts)
    assert value(db, COMMITS) == 6


def test_the_setting_is_a_bool():
    with pytest.raises(ValueError, match="share_commits must be True or False"):
        pgqueue.Client(share_commits="no")  # type: ignore[arg-type]


# --- errors


async def test_a_task_that_is_too_big_fails_alone(client, db, connect):
    queue = await client.create_queue("small", max_size=100)
    with held(connect):
        puts = await gathered(client, db, queue, [1, "x" * 200, 2, 3])
    results = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(result).__name__ for result in results if isinstance(result, Exception)] == ["DataTooBig"]
    assert isinstance(results[3], DataTooBig)
    assert sorted(rows(db, "SELECT data FROM pgqueue.task WHERE data <> '\"first\"'")) == [(1,), (2,), (3,)]


async def test_a_character_that_the_database_lacks_fails_one_task_alone(client, queue, db, connect):
    db.execute("ALTER TABLE pgqueue.task ADD CONSTRAINT not_seven CHECK (data <> '7')")
    with held(connect):
        puts = await gathered(client, db, queue, [6, 7, 8])
    results = await asyncio.gather(*puts, return_exceptions=True)
    assert isinstance(results[3], psycopg.errors.CheckViolation)
    assert [result.data for result in results[2:] if not isinstance(result, BaseException)] == [6, 8]


@pytest.mark.parametrize("capacity", [2, 4, 7])
async def test_capacity(client, db, connect, capacity):
    """As many are put as there is room for, whether none, some or all of a batch."""
    queue = await client.create_queue("full", capacity=capacity)
    with held(connect, "LOCK TABLE pgqueue.task IN EXCLUSIVE MODE"):
        puts = await gathered(client, db, queue, range(5))
    results = await asyncio.gather(*puts, return_exceptions=True)
    errors = [result for result in results if isinstance(result, Exception)]
    assert {type(error) for error in errors} <= {QueueFull}
    assert len(errors) == 7 - capacity
    assert (await queue.stats())["total"] == capacity


async def test_a_queue_of_limited_length_keeps_the_newest(client, db, connect):
    queue = await client.create_queue("last", maxlen=3)
    with held(connect):
        puts = await gathered(client, db, queue, range(6))
    await asyncio.gather(*puts)
    await queue.put("last")  # puts that are under way at the same time do not count each other
    kept = column(db, "SELECT data FROM pgqueue.task ORDER BY id")
    together = [data for data in kept if isinstance(data, int)]  # one of the two before them may come after 5
    assert (len(kept), kept[-1]) == (3, "last")
    assert together
    assert together == list(range(6))[-len(together) :]


async def test_a_draining_queue_refuses_each(client, db, connect):
    queue = await client.create_queue("q")
    with held(connect):
        puts = await gathered(client, db, queue, range(3))
        db.execute("UPDATE pgqueue.queue SET draining = true WHERE name = 'q'")
    results = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(result).__name__ for result in results[2:]] == ["QueueDraining"] * 3
    assert len({id(result) for result in results[2:]}) == 3


async def test_a_right_that_is_missing_fails_each(shell, db, connect, stranger, dsn):
    name = stranger().info.user
    db.execute("SELECT pgqueue.grant_to(%s, ARRAY['put'])", [name])
    theirs = shell.client(make_conninfo(dsn, user=name, password="stranger"))
    queue = theirs.queue("q")
    await queue.put("before")
    with held(connect):
        puts = await gathered(theirs, db, queue, range(3))
        db.execute("SELECT pgqueue.restrict_queue('q')")
    results = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(result) for result in results[2:]] == [NotAllowed] * 3
    await theirs.close()
    db.execute("SELECT pgqueue.revoke_from(%s, ARRAY['put'])", [name])


async def test_a_lost_connection_leaves_each_in_doubt_and_the_rest_go_on(client, queue, db, connect):
    await queue.put("before")
    with held(connect):
        puts = await gathered(client, db, queue, range(4))
        db.execute(f"SELECT pg_terminate_backend(pid) FROM ({HELD.replace('count(*)', 'pid')} LIMIT 1) one")
        # one of the first has failed, and those that waited are under way
        await soon(lambda: waiting(client) == 0 and value(db, HELD) == 2)
        again = [asyncio.ensure_future(queue.put("again")) for _ in range(3)]
        await soon(lambda: waiting(client) == 3)
        batch = BATCHES.replace("count(*)", "pid")
        assert value(db, f"SELECT count(pg_terminate_backend(pid)) FROM ({batch}) one") == 1
        await soon(lambda: waiting(client) == 0)
    results = await asyncio.gather(*puts, *again, return_exceptions=True)
    assert [type(result) for result in results[2:6]] == [ConnectionLost] * 4
    assert len({id(result) for result in results[2:6]}) == 4
    assert [type(result) for result in results[:2]].count(ConnectionLost) == 1
    assert [getattr(result, "data", result) for result in results[6:]] == ["again"] * 3
    assert (
        value(db, "SELECT count(*) FROM pgqueue.task WHERE jsonb_typeof(data) = 'number'") == 0
    )  # none was sent twice


# --- time


@pytest.mark.slow
async def test_the_time_of_a_put_includes_the_wait_for_its_turn(shell, dsn, db, connect):
    client = shell.client(call_timeout=5)
    queue = client.queue("q")
    await queue.put("before")
    with held(connect):
        puts = await gathered(client, db, queue, range(3))
        with steady(dsn) as took:  # the time of each has begun
            results = await asyncio.gather(*puts, return_exceptions=True)
            assert took() < 5 + 1
        await soon(lambda: value(db, HELD) == 0)  # they are cancelled, which a busy machine does late
    assert {type(result) for result in results} == {CallTimeout}
    assert value(db, "SELECT count(*) FROM pgqueue.task") == 1
    await queue.put("after")


@pytest.mark.slow
async def test_a_lock_that_is_held_for_too_long_is_named_to_each(shell, db, connect):
    client = shell.client(call_timeout=3)
    queue = await client.create_queue("full", capacity=100)
    with held(connect, "SELECT pgqueue.put('full', '0')"):  # it has the lock of the queue
        puts = await gathered(client, db, queue, range(3))
        results = await asyncio.gather(*puts, return_exceptions=True)
    assert {type(result).__name__ for result in results} <= {"LockBlocked", "CallTimeout"}
    assert [type(result).__name__ for result in results[:2]] == ["LockBlocked"] * 2
    unsure = [type(result).__name__ for result in results].count("CallTimeout")  # "it may have taken effect"
    assert value(db, "SELECT count(*) FROM pgqueue.task") <= unsure


# --- the client's end


async def test_close_fails_those_that_were_not_sent(client, queue, db, connect):
    await queue.put("before")
    with held(connect):
        puts = await gathered(client, db, queue, range(3))
        closing = asyncio.ensure_future(client.close())
        results = await asyncio.gather(*puts[2:], return_exceptions=True)
        assert [type(result) for result in results] == [ClosedError] * 3
    assert [task.data for task in await asyncio.gather(*puts[:2])] == ["first"] * 2
    await closing
    with pytest.raises(ClosedError):
        await queue.put("after")
    assert value(db, "SELECT count(*) FROM pgqueue.task") == 3


@pytest.mark.slow
async def test_the_server_is_absent_for_all_as_long_as_for_one(shell, pg_server, dsn, db, connect):
    client = shell.client()
    queue = client.queue("q")
    await queue.put("before")
    hurry(client, connect_timeout=1)
    with away(pg_server, dsn), steady(pg_server.dsn("postgres")) as took:
        results = await asyncio.gather(*(queue.put(number) for number in range(8)), return_exceptions=True)
        assert took() < 5
    assert {type(result) for result in results} <= {ServerError, ConnectionLost}


# --- coroutines


async def test_a_cancelled_coroutine_that_waits_leaves(awaiting, db, connect):
    client = awaiting()
    queue = client.queue("q")
    await queue.put("before")
    with held(connect):
        puts = await gathered(client, db, queue, range(4))
        puts[3].cancel()
        with pytest.raises(asyncio.CancelledError):
            await puts[3]
        assert waiting(client) == 3
    done = await asyncio.gather(puts[2], *puts[4:])
    assert [task.data for task in done] == [0, 2, 3]
    assert rows(db, "SELECT data FROM pgqueue.task WHERE jsonb_typeof(data) = 'number' ORDER BY id") == [
        (0,),
        (2,),
        (3,),
    ]


@pytest.mark.parametrize("which", [2, 5], ids=["follower", "leader"])
async def test_a_cancelled_coroutine_does_not_concern_the_others_of_its_batch(awaiting, db, connect, which):
    """The last one leads."""
    client = awaiting()
    queue = client.queue("q")
    await queue.put("before")
    with held(connect):
        puts = await gathered(client, db, queue, range(4))
        one = value(db, HELD.replace("count(*)", "min(pid)"))
        assert value(db, f"SELECT pg_cancel_backend({one})")
        await soon(lambda: value(db, BATCHES) == 1)  # the batch is under way
        assert waiting(client) == 0
        puts[which].cancel()
        with pytest.raises(asyncio.CancelledError):
            await puts[which]
        assert value(db, BATCHES) == 1
    await asyncio.gather(*puts[:2], return_exceptions=True)
    others = [task for number, task in enumerate(puts) if number >= 2 and number != which]
    assert all(task.state == "ready" for task in await asyncio.gather(*others))
    assert value(db, "SELECT count(*) FROM pgqueue.task WHERE jsonb_typeof(data) = 'number'") == 4  # as it was sent


async def test_a_leader_that_is_cancelled_before_it_sends_hands_over(awaiting, db, connect):
    """The end of a put and the cancelling meet in one turn of the loop."""
    client = awaiting()
    queue = client.queue("q")
    await queue.put("before")
    gatherings = client.shell.together._home[1]
    with held(connect):
        puts = await gathered(client, db, queue, range(3))
        (gathering,) = gatherings._known.values()
        gatherings._make_way(gathering, next(iter(gathering.under_way)))  # as if one had ended: the last now leads
        puts[4].cancel()
        with pytest.raises(asyncio.CancelledError):
            await puts[4]
        await soon(lambda: value(db, HELD) == 3)
    assert [task.data for task in await asyncio.gather(*puts[:4])] == ["first", "first", 0, 1]
    assert under_way(client) == 0


@pytest.mark.slow
def test_each_event_loop_gathers_for_itself(dsn, db):
    client = pgqueue.AsyncClient(dsn)

    async def put_some():
        return [task.id for task in await asyncio.gather(*(client.queue("q").put(number) for number in range(20)))]

    async def put_more():
        async with client:
            return await put_some()

    assert len({*asyncio.run(put_some()), *asyncio.run(put_more())}) == 40


# --- threads and processes


def test_ctrl_c_of_the_main_thread_does_not_concern_the_others(dsn, db, connect, start):
    """The main thread is the last of the batch, and does not lead it: its statement would be cancelled."""
    db.execute("SELECT pgqueue.create_queue('q')")
    with held(connect) as lock:
        program = start("putting_together", dsn, "interrupt")
        assert program.hear() == "gathered"
        eventually(lambda: value(db, HELD) == UNDER_WAY)
        one = value(db, HELD.replace("count(*)", "min(pid)"))
        db.execute("SELECT pg_cancel_backend(%s::int)", [one])
        eventually(lambda: value(db, BATCHES) == 1)
        os.kill(program.pid, signal.SIGINT)
        assert program.hear() == "interrupted"
        assert value(db, BATCHES) == 1
        lock.rollback()
        assert program.hear() == "ended"
    assert value(db, "SELECT count(*) FROM pgqueue.task") == 5  # all but the cancelled one


@pytest.mark.slow
def test_a_forked_child_waits_for_none_of_its_parents_puts(dsn, db, start):
    program = start("putting_together", dsn, "fork")
    assert {program.hear(), program.hear()} == {"child", "parent"}
    assert program.end() == 0
    assert value(db, "SELECT count(*) FROM pgqueue.task") == 11


def test_threads_put_each_task_once_and_in_their_order(blocking, db):
    client = blocking()
    queue = client.queue("q")
    ids: dict[int, list[int]] = {}

    def put_some(thread: int) -> None:
        ids[thread] = [queue.put([thread, number]).id for number in range(50)]

    threads = [threading.Thread(target=put_some, args=(thread,)) for thread in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in ids.values())
    assert rows(db, "SELECT id, data FROM pgqueue.task ORDER BY id") == sorted(
        (id, [thread, number]) for thread, mine in ids.items() for number, id in enumerate(mine)
    )
    assert value(db, COMMITS) < 800
