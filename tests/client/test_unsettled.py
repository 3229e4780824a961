"""A verb that ends a take and fails leaves no take in doubt: it is done, or the client does not hold the task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from eventually import eventually, soon
from hurrying import hurry
from proxies import Proxy, proxy
from running import running
from statements import rows, value

from pgqueue import ConnectionLost, Put, QueueFull, ServerError, Worker
from pgqueue._engine.own import OwnAsyncConn, OwnConn

VERBS: dict[str, Callable[[Any], Any]] = {
    "ack": lambda task: task.ack(),
    "forward": lambda task: task.ack(put=[Put("next", 1)]),
    "finish": lambda task: task.finish(1),
    "fail": lambda task: task.fail("no"),
    "bury": lambda task: task.bury(),
    "release": lambda task: task.release(60),
    "requeue": lambda task: task.requeue(),
}


@pytest.fixture
def network(dsn: str) -> Iterator[Proxy]:
    with proxy(dsn) as made:
        yield made


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Have the connection of the next call of a verb broken: `before` the statement runs, or `after` its commit.

    `meanwhile` is done before the call is repeated.
    """

    def break_next(verb: str, when: str, meanwhile: Callable[[], None] = lambda: None) -> list[str]:
        broken: list[str] = []

        def is_it(sql: str) -> bool:
            return f"pgqueue.{verb}(" in sql and not broken

        def run(self: OwnConn, call: Any, ask: Any = OwnConn.run) -> Any:
            if is_it(call.sql):
                broken.append(call.sql)
                if when == "after":
                    ask(self, call)
                self.close()
                meanwhile()
                raise psycopg.OperationalError("broken")
            return ask(self, call)

        async def run_async(self: OwnAsyncConn, call: Any, ask: Any = OwnAsyncConn.run) -> Any:
            if is_it(call.sql):
                broken.append(call.sql)
                if when == "after":
                    await ask(self, call)
                await self.close()
                meanwhile()
                raise psycopg.OperationalError("broken")
            return await ask(self, call)

        monkeypatch.setattr(OwnConn, "run", run)
        monkeypatch.setattr(OwnAsyncConn, "run", run_async)
        return broken

    return break_next


def sent(verb: str) -> str:
    return {"forward": "ack"}.get(verb, verb)


async def taken(queue: Any) -> Any:
    await queue.put("x", lane="l")
    await queue.put("y", lane="l")
    task = await queue.take(30)
    assert task.data == "x"
    return task


def refuse(db: psycopg.Connection, sqlstate: str) -> None:
    """Have each commit that deletes a task fail."""
    db.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{sqlstate}'; END$$"
    )
    db.execute(
        "CREATE CONSTRAINT TRIGGER refuse AFTER DELETE ON pgqueue.task DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION refuse()"
    )


def takes(db: psycopg.Connection) -> int:
    return int(value(db, "SELECT count(*) FROM pgqueue.take"))


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_whose_connection_was_lost_before_it_is_done_on_another(queue, db, lost, verb):
    task = await taken(queue)
    broken = lost(sent(verb), "before")
    await VERBS[verb](task)
    assert len(broken) == 1
    assert takes(db) == 0
    assert value(db, "SELECT count(*) FROM pgqueue.tasks WHERE queue = 'next'") == (verb == "forward")


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_whose_answer_was_lost_is_not_done_twice(queue, db, lost, verb):
    task = await taken(queue)
    lost(sent(verb), "after")
    with pytest.raises(ConnectionLost):
        await VERBS[verb](task)
    assert takes(db) == 0
    assert value(db, "SELECT count(*) FROM pgqueue.tasks WHERE queue = 'next'") == (verb == "forward")


async def test_a_repetition_does_not_report_the_success_of_another_taker(queue, db, lost):
    await queue.put("x", ttr=0.1)
    task = await queue.take(30)
    popped: list[Any] = []  # by another, once the time to run is over

    def pop() -> bool:
        popped.extend(rows(db, "SELECT id FROM pgqueue.pop('q')"))
        return bool(popped)

    lost("ack", "before", lambda: eventually(pop))
    with pytest.raises(ConnectionLost):
        await task.ack()
    assert popped == [(task.id,)]


async def test_many_acks_whose_connection_was_lost_before_are_done_on_another(queue, db, lost):
    await queue.put_many(range(3))
    tasks = await queue.take_many(3, 30)
    lost("ack_many", "before")
    await queue.ack_many(tasks)
    assert rows(db, "SELECT * FROM pgqueue.tasks") == []


async def test_many_acks_whose_answer_was_lost_are_not_done_twice(queue, db, lost):
    await queue.put_many(range(3))
    tasks = await queue.take_many(3, 30)
    lost("ack_many", "after")
    with pytest.raises(ConnectionLost):
        await queue.ack_many(tasks)
    assert rows(db, "SELECT * FROM pgqueue.tasks") == []


REFUSALS = {"a full disk": "53100", "a lock timeout": "55P03", "a statement timeout": "57014", "a deadlock": "40P01"}


@pytest.mark.parametrize("sqlstate", REFUSALS.values(), ids=REFUSALS)
async def test_a_task_whose_ack_was_rolled_back_is_given_back(client, queue, db, sqlstate):
    task = await taken(queue)
    refuse(db, sqlstate)
    with pytest.raises(psycopg.Error) as raised:
        await task.ack()
    assert raised.value.sqlstate == sqlstate
    db.execute("DROP TRIGGER refuse ON pgqueue.task; DROP FUNCTION refuse")
    for data in ("x", "y"):  # the lane goes on
        again = await queue.take(30)
        assert again.data == data
        await again.ack()


async def test_an_ack_during_an_outage_is_done_when_the_server_is_back(shell, network, db):
    client = shell.client(network.dsn, session_grace=30)
    task = await taken(client.queue("q"))
    with network.away():
        ack = asyncio.ensure_future(task.ack())
        await soon(lambda: client.shell.core.outage._since is not None)
        assert not ack.done()
    assert (await asyncio.wait_for(ack, 30)).state == "done"
    assert takes(db) == 0


async def test_an_ack_that_fails_for_good_gives_the_task_back_when_the_server_is(shell, network):
    client = shell.client(network.dsn, session_grace=30)
    task = await taken(client.queue("q"))
    hurry(client, connect_timeout=0.2)
    with network.away(), pytest.raises((ConnectionLost, ServerError)):
        await task.ack()
    assert (await client.queue("q").take(30)).data == "x"


@pytest.mark.once
async def test_a_cancelled_ack_gives_the_task_back(awaiting, db):
    client = awaiting()
    queue = client.queue("q")
    task = await taken(queue)
    db.execute("BEGIN; SELECT FROM pgqueue.task FOR UPDATE")
    ack = asyncio.ensure_future(task.ack())
    await soon(lambda: rows(db, "SELECT 1 FROM pg_locks WHERE NOT granted"))
    ack.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ack
    db.execute("ROLLBACK")
    assert (await queue.take(30)).data == "x"


async def test_a_refused_ack_leaves_the_task_to_its_taker(client, queue, db):
    await client.create_queue("full", capacity=1)
    await client.queue("full").put(1)
    task = await taken(queue)
    with pytest.raises(QueueFull):
        await task.ack(put=[Put("full", 2)])
    await task.ack()
    assert takes(db) == 0


@pytest.mark.once
def test_a_handler_whose_ack_failed_has_a_failed_attempt(blocking, db):
    client = blocking()
    client.queue("q").put("x")
    seen: list[int] = []

    def handler(data: Any, task: Any) -> None:
        seen.append(task.attempts)
        try:
            task.ack()
        finally:
            db.execute("DROP TRIGGER IF EXISTS refuse ON pgqueue.task")

    refuse(db, "53100")
    with running(Worker(client, {"q": handler}, retry_delay=0)):
        eventually(lambda: seen == [0, 1])
    db.execute("DROP FUNCTION refuse")
