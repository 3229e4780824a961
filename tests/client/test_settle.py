"""Settling, on both shells: ack, release, bury, touch and kick, their errors, and conn= in the caller's transaction."""

from __future__ import annotations

from enum import Enum
from itertools import product
from typing import Any

import psycopg
import pytest
from eventually import soon
from psycopg.rows import dict_row
from sampling import sampled
from statements import everything, put, rows, state, take, value

import pgqueue

pytestmark = pytest.mark.once


async def test_ack_of_an_unknown_task_and_a_second_ack_are_refused(queue):
    with pytest.raises(pgqueue.TaskNotFound):
        await queue.ack(4711)
    await queue.put("x")
    task = await queue.take(0)
    assert (await task.ack()).state == "done"
    for again in (task.ack, task.release, task.bury, task.touch, task.peek, task.delete):
        with pytest.raises(pgqueue.TaskNotFound) as caught:
            await again()
        assert caught.value.task_id == task.id


async def test_ack_of_a_ready_task_is_refused(queue, db):
    task = await queue.put("x")
    before = everything(db, task.id)
    for verb in (queue.ack, queue.release, queue.touch):
        with pytest.raises(pgqueue.TaskNotTaken, match="ready"):
            await verb(task.id)
    assert everything(db, task.id) == before


async def test_ack_of_another_clients_task_names_both(client, queue, db):
    await queue.take(0)  # so that this client has a session
    id = put(db, "q")
    take(db, "q")  # by the session of this connection
    before = everything(db, id)
    for verb in (queue.ack, queue.release, queue.touch):
        with pytest.raises(pgqueue.TaskTakenByOther) as caught:
            await verb(id)
        holder = value(db, "SELECT holder FROM pgqueue.tasks WHERE id = %s", id)
        assert caught.value.holder == holder
        assert holder in str(caught.value)
        assert client.shell.core.label in str(caught.value)
    assert everything(db, id) == before


@pytest.mark.parametrize("id", [None, "x", 1.5, True, "", "-1", 0, -1, 2**63, "\uff11"])
async def test_invalid_task_ids_are_refused(queue, id):
    for verb in (queue.ack, queue.release, queue.bury, queue.touch, queue.peek, queue.delete):
        with pytest.raises(pgqueue.errors.TaskIdRequired):
            await verb(id)


async def test_an_id_may_be_a_string_of_digits(queue):
    await queue.put("x")
    task = await queue.take(0)
    await queue.ack(str(task.id))
    with pytest.raises(pgqueue.TaskNotFound):
        await queue.peek(task.id)


async def test_past_the_ttr_a_task_is_ready_and_its_ack_is_refused(queue, db):
    await queue.put("x", ttr=0.1)
    task = await queue.take(0)
    assert task.deadline is not None
    await soon(lambda: state(db, task.id) == "ready")
    for verb in (task.ack, task.release, task.bury, task.touch):
        with pytest.raises(pgqueue.TaskNotTaken):
            await verb()
    again = await queue.take(5)
    assert (again.id, again.attempts) == (task.id, 1)


async def test_a_touch_keeps_a_take_past_its_first_ttr(queue, db):
    await queue.put("x", ttr=20)
    task = await queue.take(0)
    deadline = value(db, "SELECT deadline FROM pgqueue.take")
    await task.touch(30)
    assert (value(db, "SELECT deadline FROM pgqueue.take") - deadline).total_seconds() == pytest.approx(30, abs=0.01)
    prolonged = value(db, "SELECT deadline FROM pgqueue.take")
    await task.touch()  # its ttr from now would be sooner
    assert value(db, "SELECT deadline FROM pgqueue.take") == prolonged
    with pytest.raises(ValueError, match="more"):
        await task.touch(-1)
    assert (await task.ack()).state == "done"


async def test_kick_counts_what_it_kicked(queue):
    ids = await queue.put_many(range(4))
    for id in ids:
        await queue.bury(id)
    assert await queue.kick(3) == 3
    assert await queue.kick(100500) == 1
    assert [task.id for task in await queue.take_many(10, 0)] == ids


@pytest.mark.parametrize("name", ["", "x" * 201, "a\0b", None, 5])
async def test_invalid_queue_names_are_refused(client, name):
    with pytest.raises(ValueError, match="queue"):
        client.queue(name)
    with pytest.raises(ValueError, match="queue"):
        await client.create_queue(name)


async def test_unusual_queue_names_are_accepted(client):
    for name in ("x" * 200, "a'b\"c;--", "ü", " "):
        await client.queue(name).put(name)
        assert (await client.queue(name).take(0)).data == name


async def test_failures_are_counted_and_kept(queue):
    await queue.put("x")
    await (await queue.take(0)).release(error="first \0 failure")
    task = await queue.take(0)
    assert task.attempts == 1
    await task.bury(error="for good")
    found = await queue.peek(task.id)
    assert (found.state, found.attempts, found.error) == ("buried", 2, "for good")
    stats = await queue.stats()
    assert [stats[state] for state in ("total", "ready", "delayed", "taken", "buried")] == [1, 0, 0, 0, 1]


async def test_many_are_settled_in_one_go_and_the_first_refusal_raised(queue, db):
    ids = await queue.put_many(range(5))
    tasks = await queue.take_many(5)
    await queue.release_many(tasks[3:])
    with pytest.raises(pgqueue.TaskNotTaken):
        await queue.ack_many(tasks)
    assert [row[0] for row in rows(db, "SELECT id FROM pgqueue.tasks ORDER BY id")] == ids[3:]


class Id(int, Enum):  # str() of a member is its name
    LAST = 2**63 - 1


@pytest.mark.parametrize("many", ["ack_many", "release_many"])
async def test_tasks_and_ids_of_any_kind_are_settled_together(queue, db, many):
    first, second, third = await queue.put_many("abc")
    tasks = await queue.take_many(3)
    await getattr(queue, many)([tasks[0], str(second), third])
    assert rows(db, "SELECT FROM pgqueue.take") == []
    with pytest.raises(pgqueue.TaskNotFound, match=str(2**63 - 1)):
        await getattr(queue, many)([Id.LAST])
    await getattr(queue, many)([])
    assert {first, second, third} == {task.id for task in tasks}


async def test_create_queue_gives_defaults(client, queue):
    made = await client.create_queue("slow", priority=7, delay=60, ttr=5)
    assert (await made.put("x")).state == "delayed"
    assert (await made.put("x", delay=0)).state == "ready"
    task = await made.take(0)
    assert task.priority == 7
    assert task.deadline is not None
    with pytest.raises(pgqueue.errors.QueueExists):
        await client.create_queue("slow")


# --- in the caller's transaction


@pytest.mark.parametrize("options", [{}, {"row_factory": dict_row}])
async def test_a_put_as_the_very_first_statement_rolls_back(shell, queue, db, options):
    conn = await shell.connection(**options)
    await queue.put("x", conn=conn)
    await queue.put_many(range(3), conn=conn)
    await conn.rollback()
    assert rows(db, "SELECT * FROM pgqueue.tasks") == []


async def test_a_put_commits_with_its_transaction(shell, queue, db):
    conn = await shell.connection()
    task = await queue.put("x", conn=conn)
    assert rows(db, "SELECT * FROM pgqueue.tasks") == []
    await conn.execute("SAVEPOINT s")
    await queue.put("gone", conn=conn)
    await conn.execute("ROLLBACK TO SAVEPOINT s")
    await conn.commit()
    assert rows(db, "SELECT id, data FROM pgqueue.tasks") == [(task.id, "x")]


async def test_a_put_at_repeatable_read_with_an_old_snapshot(shell, queue):
    await queue.put("x")
    conn = await shell.connection()
    await conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await conn.execute("SELECT 1")
    await queue.put("y", conn=conn)
    await conn.commit()
    assert [task.data for task in await queue.take_many(5)] == ["x", "y"]


async def test_an_ack_rolls_back_and_commits(shell, queue, db):
    await queue.put("x")
    task = await queue.take(0)
    conn = await shell.connection()
    await task.ack(conn=conn)
    await conn.rollback()
    assert state(db, task.id) == "taken"
    await task.ack(conn=conn)
    await conn.commit()
    assert state(db, task.id) is None


async def test_a_refused_ack_leaves_the_callers_transaction_alone(shell, queue, db):
    conn = await shell.connection()
    await queue.put("kept", conn=conn)
    with pytest.raises(pgqueue.TaskNotFound):
        await queue.ack(4711, conn=conn)
    await conn.commit()
    assert rows(db, "SELECT data FROM pgqueue.tasks") == [("kept",)]


async def test_a_pop_is_exactly_once(shell, queue, db):
    ids = await queue.put_many(range(3))
    conn = await shell.connection()
    assert [task.id for task in await queue.pop(2, conn=conn)] == ids[:2]
    await conn.rollback()
    assert [task.state for task in await queue.pop(2, conn=conn)] == ["done", "done"]
    await conn.commit()
    assert [row[0] for row in rows(db, "SELECT id FROM pgqueue.tasks")] == ids[2:]


async def test_what_is_no_connection(shell, queue):
    wrong: Any = psycopg.connect(shell._dsn) if shell.name == "async" else object()
    with pytest.raises(TypeError, match="conn must be a psycopg"):
        await queue.put("x", conn=wrong)
    if shell.name == "async":
        wrong.close()


@pytest.mark.parametrize(
    ("verb", "priority", "error"),
    sampled(
        [*product(["release", "delay", "bury", "fail", "touch", "touch more"], [None, -3], [None, "it \0 broke"])],
        keep=9,
    ),
)
async def test_what_a_verb_returns_is_what_peek_shows(queue, verb, priority, error):
    """But for what only peek reads."""
    await queue.put("x", priority=5, ttr=60)
    task = await queue.take(0)
    if verb == "fail":
        given = await task.fail(error)
    elif verb.startswith("touch"):
        given = await task.touch(7 if verb == "touch more" else None)
    else:
        how = {"delay": {"delay": 60}}.get(verb, {})
        given = await getattr(task, "bury" if verb == "bury" else "release")(priority=priority, error=error, **how)
    seen = await queue.peek(task.id)
    for name in ("id", "queue", "state", "data", "priority", "attempts", "deadline"):
        assert getattr(given, name) == getattr(seen, name), name
    if error is not None and not verb.startswith("touch"):
        assert given.error == seen.error
    assert (given.token is not None) == (seen.state == "taken")


async def test_a_put_returns_the_priority_that_it_named(queue):
    task = await queue.put("x", priority=7)
    assert task.priority == (await queue.peek(task.id)).priority == 7
