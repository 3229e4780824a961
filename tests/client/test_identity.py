"""identify: clients and processes that act as one. Some of the processes are killed."""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
from eventually import Stopwatch, eventually, soon
from processes import Program, programs
from statements import column, row, rows, state

import pgqueue

OURS = "FROM pg_stat_activity WHERE application_name = 'pgqueue listener' AND datname = current_database()"
SESSIONS = "SELECT id FROM pgqueue.sessions"
MEMBERS = "SELECT count(*), max(taken) FROM pgqueue.sessions WHERE identity = %s"


@pytest.fixture
def join(dsn: str) -> Iterator[Callable[[float], Program]]:
    with programs() as make:
        yield lambda grace: make("member", dsn, "q", grace)


# --- who one is


async def test_an_identity_is_a_uuid_and_stays(client):
    mine = await client.identify()
    assert str(uuid.UUID(mine)) == mine
    assert await client.identify() == mine
    assert await client.identify(mine) == mine


async def test_another_client_has_another_until_it_joins(shell, client):
    other = shell.client()
    mine = await client.identify()
    assert await other.identify() != mine
    assert await other.identify(uuid.UUID(mine)) == mine
    assert await other.identify() == mine


@pytest.mark.parametrize("identity", ["just-for-fun", "", 7, b"x" * 16], ids=repr)
async def test_invalid_identities_are_refused(client, identity):
    with pytest.raises(ValueError, match="identity must be a UUID, not"):
        await client.identify(identity)
    assert client.shell.core.running_listener is None


async def test_an_identity_that_nobody_has_is_an_error(client):
    nobodys = str(uuid.uuid4())
    with pytest.raises(pgqueue.errors.NoIdentity, match=f"there is no identity {nobodys}"):
        await client.identify(nobodys)


async def test_after_the_close_it_says_so(client):
    await client.close()
    with pytest.raises(pgqueue.ClosedError):
        await client.identify()


def test_both_shells_of_a_client_are_one(blocking):
    client = blocking()
    mine = client.identify()

    async def other() -> str:
        found: str = await client.aio.identify()
        await client.aio.shell.connections.close()
        return found

    assert asyncio.run(other()) == mine


# --- taking over


async def test_members_settle_each_others_tasks(shell, client):
    other, stranger = shell.client(), shell.client()
    await other.identify(await client.identify())
    await stranger.identify()
    first, second = await client.queue("q").put(1), await client.queue("q").put(2)
    await client.queue("q").take_many(2, timeout=0)
    with pytest.raises(pgqueue.TaskTakenByOther):
        await stranger.queue("q").ack(first.id)
    await other.queue("q").ack(first.id)
    await other.queue("q").release(second.id)
    assert (await client.queue("q").stats())["ready"] == 1


async def test_a_client_that_returns_within_the_grace_can_ack(shell, db):
    gone = shell.client(session_grace=30)
    identity = await gone.identify()
    task = await gone.queue("q").put("x")
    await gone.queue("q").take(0)
    await gone.close()
    assert state(db, task.id) == "taken"
    again = shell.client()
    assert await again.identify(identity) == identity
    await again.queue("q").ack(task.id)


async def test_after_the_grace_its_tasks_are_released(shell, db):
    gone = shell.client(session_grace=0.4)
    identity = await gone.identify()
    task = await gone.queue("q").put("x")
    await gone.queue("q").take(0)
    closed = Stopwatch()
    await gone.close()
    other = shell.client()
    taken = await other.queue("q").take(timeout=10)
    assert (taken.id, taken.attempts) == (task.id, 1)
    assert closed() >= 0.4
    with pytest.raises(pgqueue.errors.NoIdentity):
        await other.identify(identity)


async def test_without_a_grace_its_tasks_are_released_at_once(shell, db):
    gone = shell.client(session_grace=0)
    await gone.identify()
    task = await gone.queue("q").put("x")
    await gone.queue("q").take(0)
    await gone.close()
    assert state(db, task.id) == "ready"


async def test_without_an_identity_a_close_gives_back_at_once(shell, db):
    gone = shell.client(session_grace=30)
    task = await gone.queue("q").put("x")
    await gone.queue("q").take(0)
    await gone.close()
    assert state(db, task.id) == "ready"


async def test_a_session_that_was_given_up_comes_back_as_who_it_was(client, db):
    identity = await client.identify()
    (session,) = column(db, SESSIONS)
    db.execute("TRUNCATE pgqueue.session")
    db.execute(f"SELECT pg_terminate_backend(pid) {OURS}")
    await soon(lambda: column(db, SESSIONS) not in ([], [session]))
    assert await client.identify() == identity


# --- processes


def test_a_process_that_is_started_anew_goes_on_with_the_tasks_of_the_one_that_was_killed(
    db: psycopg.Connection, join: Callable[[float], Program], blocking: Callable[..., pgqueue.Client]
) -> None:
    ids = blocking().queue("q").put_many(range(3))
    first = join(30)
    identity = first.ask("identify")["identity"]
    assert first.ask("take 3") == {"taken": ids}
    first.kill()
    second = join(0.2)
    assert second.ask(f"identify {identity}") == {"identity": identity}
    assert [second.ask(f"ack {id}") for id in ids] == [{"acked": True}] * 3
    assert rows(db, "SELECT FROM pgqueue.take") == []


@pytest.mark.slow
def test_the_living_inherit_from_the_killed(
    db: psycopg.Connection, join: Callable[[float], Program], blocking: Callable[..., pgqueue.Client]
) -> None:
    queue = blocking().queue("q")
    ids = queue.put_many(range(2))
    first, second = join(0.2), join(0.2)
    identity = first.ask("identify")["identity"]
    second.ask(f"identify {identity}")
    assert first.ask("take 2") == {"taken": ids}
    first.kill()
    eventually(lambda: row(db, MEMBERS, identity) == (1, 2))
    assert second.ask(f"ack {ids[0]}") == {"acked": True}
    second.kill()
    taken = queue.take(timeout=10)
    assert taken is not None
    assert (taken.id, taken.attempts) == (ids[1], 1)


@pytest.mark.slow
def test_whoever_joins_around_the_death_of_the_last_has_its_tasks_or_an_error(
    db: psycopg.Connection,
    join: Callable[[float], Program],
    blocking: Callable[..., pgqueue.Client],
) -> None:
    """A process is killed, and another joins at about the moment when the grace of the first is over. Either it has
    joined, and acks every task by id, or it is told that there is no such identity, and they are ready."""
    queue = blocking().queue("q")
    chance = random.Random(38)
    outcomes = []
    for _ in range(12):
        first, second = join(0.1), join(30)
        identity = first.ask("identify")["identity"]
        ids = queue.put_many(range(5))
        assert first.ask("take 5") == {"taken": ids}
        assert second.ask("identify")["identity"] != identity
        first.kill()
        threading.Event().wait(chance.uniform(0.1, 0.4))  # a random moment is the point
        answer = second.ask(f"identify {identity}")
        outcomes.append(joined := answer == {"identity": identity})
        if joined:
            eventually(lambda identity=identity: row(db, MEMBERS, identity) == (1, 5))  # type: ignore[misc]
            assert [second.ask(f"ack {id}") for id in ids] == [{"acked": True}] * 5
        else:
            assert answer == {"error": "NoIdentity"}
            assert [second.ask(f"ack {id}") for id in ids] == [{"error": "TaskNotTaken"}] * 5
            taken = queue.take_many(5, timeout=10)
            assert [task.id for task in taken] == ids
            queue.ack_many(taken)
        second.kill()
    assert rows(db, "SELECT FROM pgqueue.take") == []
    print(f"joined {sum(outcomes)} of {len(outcomes)}")


@pytest.mark.slow
def test_killed_members_lose_nothing(
    db: psycopg.Connection, join: Callable[[float], Program], blocking: Callable[..., pgqueue.Client]
) -> None:
    """A relay: each takes some, and is killed or closed at a random moment after the next has joined. The last one
    acks the tasks of all of them."""
    chance = random.Random(83)
    queue = blocking().queue("q")
    runner = join(0.2)
    identity = runner.ask("identify")["identity"]
    held: list[int] = []
    for turn in range(10):
        queue.put_many(range(2))
        held += runner.ask("take 2")["taken"]
        following = join(0.2)
        assert following.ask(f"identify {identity}") == {"identity": identity}
        threading.Event().wait(chance.uniform(0, 0.3))
        if turn % 2:
            runner.kill()
        else:
            runner.ask("close")
        runner = following
    assert sorted(held) == list(range(1, 21))
    assert [runner.ask(f"ack {id}") for id in held] == [{"acked": True}] * 20
    assert rows(db, "SELECT FROM pgqueue.take") == []
