"""A client at a limit of connections: two are enough, one says what it needs, and a place that becomes free is used."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from eventually import PATIENCE, eventually, soon
from hurrying import hurry
from poolers import PROGRAM, pgbouncer
from psycopg import sql
from psycopg.conninfo import make_conninfo
from roles import made
from running import running
from statements import value

import pgqueue
from pgqueue import ServerError, Worker
from pgqueue._engine import outages
from pgqueue._engine.cluster.servers import placed_among
from pgqueue._engine.scarcity import LIMITS, NEED, Scarcity, with_remedy

LIMIT_OF_ROLE = "too many connections for role.*take, wait or lock.*Raise the role's CONNECTION LIMIT"
POOLED = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND application_name = 'pgqueue'"


class Limited:
    """A role that may use pgqueue, and have so many connections."""

    def __init__(self, name: str, dsn: str, db: psycopg.Connection) -> None:
        self.name, self.dsn, self._db = name, make_conninfo(dsn, user=name), db

    def allow(self, connections: int) -> None:
        limit = sql.SQL("ALTER ROLE {} CONNECTION LIMIT {}")
        self._db.execute(limit.format(sql.Identifier(self.name), sql.Literal(connections)))


@pytest.fixture
def role(dsn: str, db: psycopg.Connection) -> Iterator[Limited]:
    with made(dsn, db) as make:
        yield Limited(make("put", "take", "look", "manage", "share"), dsn, db)


async def do_everything(client) -> None:
    """Eight calls of each kind at once, twice: the listener begins between the first puts and the first takes."""
    queue = client.queue("q")
    for _ in range(2):
        await asyncio.gather(*(queue.put(n) for n in range(8)))
        tasks = await asyncio.gather(*(queue.take(30) for _ in range(8)))
        await asyncio.gather(*(task.ack() for task in tasks))
        async with client.lock("l", timeout=30):
            assert len(await queue.put_many(range(3))) == 3
        assert len(await queue.take_many(3, 30)) == 3
        await queue.release_all()
        await queue.truncate()


@pytest.mark.parametrize(
    "connections", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
async def test_two_connections_are_enough_for_everything(shell, role, connections):
    role.allow(connections)
    await do_everything(shell.client(role.dsn))


async def test_a_first_take_leaves_a_connection_for_the_first_ack(shell, role, client):
    await client.queue("q").put(1)
    role.allow(2)
    task = await shell.client(role.dsn).queue("q").take(30)
    await task.ack()


@pytest.mark.slow
async def test_a_take_that_waits_is_woken_at_a_limit(shell, role):
    role.allow(2)
    queue = shell.client(role.dsn).queue("q")
    for number in range(2):
        take = asyncio.ensure_future(queue.take(30))
        await queue.put(number)
        assert (await take).data == number


@pytest.mark.slow
@pytest.mark.once
def test_two_are_enough_for_threads_and_asyncio_together(role):
    role.allow(2)
    with pgqueue.Client(role.dsn, poll=None) as client:

        async def both() -> None:
            for _ in range(2):
                await asyncio.gather(*(client.aio.queue("a").put(n) for n in range(5)))
                await asyncio.to_thread(lambda: client.queue("b").put(1))
                await asyncio.gather(*(client.aio.queue("a").take(30) for n in range(5)))
                task = await asyncio.to_thread(lambda: client.queue("b").take(30))
                await asyncio.to_thread(task.ack)
            await client.aio.close()

        asyncio.run(both())


@pytest.mark.slow
async def test_one_connection_is_enough_to_put_and_a_take_says_what_it_needs(shell, role):
    role.allow(1)
    client = shell.client(role.dsn)
    queue = client.queue("q")
    await asyncio.gather(*(queue.put(n) for n in range(8)))
    hurry(client, connect_timeout=0.5)
    with pytest.raises(ServerError, match=LIMIT_OF_ROLE):
        await queue.take(0)
    hurry(client, connect_timeout=PATIENCE)
    await queue.put(8)
    role.allow(2)
    assert (await queue.stats())["total"] == 9


async def test_a_client_goes_on_by_itself_when_a_limit_is_raised(shell, role, db):
    role.allow(1)
    client = shell.client(role.dsn, connect_timeout=30)
    queue = client.queue("q")
    await queue.put(0)
    take = asyncio.ensure_future(queue.take(30))
    await soon(lambda: client.shell.core.scarcity._lacking)
    role.allow(2)
    await (await take).ack()


@pytest.mark.slow
async def test_claims_have_connections_of_their_own_again(shell, role, db):
    role.allow(2)
    queue = shell.client(role.dsn).queue("q")
    await queue.take(0)
    await queue.put(1)
    await queue.take(0)
    assert value(db, POOLED, role.name) == 1
    role.allow(4)

    async def has_two() -> bool:
        await queue.take(0)
        return value(db, POOLED, role.name) == 2

    async with asyncio.timeout(30):
        while not await has_two():
            await asyncio.sleep(0.1)


async def test_the_first_call_waits_for_a_place_and_then_names_the_limit(shell, role):
    role.allow(1)
    with psycopg.connect(role.dsn):
        with pytest.raises(ServerError, match=LIMIT_OF_ROLE):
            await shell.client(role.dsn, connect_timeout=0.2).queue("q").put(1)
        client = shell.client(role.dsn, connect_timeout=30)
        first = asyncio.ensure_future(client.queue("q").put(1))
        await soon(lambda: client.shell.core._failure is not None)
        assert not first.done()
    assert (await first).state == "ready"


async def test_a_put_in_a_lane_of_a_cluster_waits_at_a_limit(shell, role, monkeypatch):
    """Where connections are refused for another reason, it does not: it may go to no other server."""
    monkeypatch.setattr(outages, "MOVES_ON", 0.01)
    role.allow(1)
    servers = [shell.client(role.dsn, connect_timeout=30), shell.client()]
    cluster = shell.cluster(servers)
    lane = next(f"lane {n}" for n in range(100) if placed_among([0, 1], f"lane {n}") == 0)
    with psycopg.connect(role.dsn):
        put = asyncio.ensure_future(cluster.queue("q").put(1, lane=lane))
        core = servers[0].shell.core
        await soon(lambda: core._failure is not None)
        first = core._failed_at
        await soon(lambda: core._failed_at > first + 0.1)  # it tries again ten times after it would give up
        assert not put.done()
    assert (await put).state == "ready"


@pytest.mark.once
def test_two_are_enough_for_a_worker_whose_client_puts(role):
    role.allow(2)
    seen: list[int] = []
    with pgqueue.Client(role.dsn, poll=None) as client, running(Worker(client, {"q": seen.append})):
        for number in range(3):
            client.queue("q").put(number)
        eventually(lambda: sorted(seen) == [0, 1, 2])


@pytest.mark.once
@pytest.mark.skipif(PROGRAM is None, reason="PgBouncer is not installed")
def test_the_limit_of_a_pooler(dsn):
    with pgbouncer(dsn, "session", max_client_conn=3, ignore_startup_parameters="options") as pooled:
        with pgqueue.Client(pooled, listen_dsn=pooled, connect_timeout=30) as client:
            for number in range(3):
                client.queue("q").put(number)
                client.queue("q").take(30).ack()
        with psycopg.connect(pooled), psycopg.connect(pooled), psycopg.connect(pooled):
            client = pgqueue.Client(pooled, listen_dsn=dsn, connect_timeout=0.2)
            with client, pytest.raises(ServerError, match=r"max_client_conn.*Raise the pooler's limit"):
                client.queue("q").put(1)


# --- which part gives way


class Part:
    def __init__(self, held: int = 0, needs: int = 1, is_pool: bool = True) -> None:
        self._held, self.needs, self.is_pool, self.asked = held, needs, is_pool, 0

    def held(self) -> int:
        return self._held

    def give_way(self) -> None:
        self.asked += 1


FULL = psycopg.OperationalError('FATAL:  too many connections for role "r"')
OTHER = psycopg.OperationalError("password authentication failed")


class Shared(Scarcity):
    def pool(self, held: int = 0, needs: int = 1) -> Part:
        part = Part(held, needs)
        self.join(part)
        return part


def test_pools_give_way_to_a_pool_that_has_none():
    scarcity = Shared()
    lacking, one, many = scarcity.pool(), scarcity.pool(held=1), scarcity.pool(held=3, needs=0)
    assert not scarcity.has_surplus(one)
    scarcity.refused(lacking, FULL)
    assert [part.asked for part in (lacking, one, many)] == [0, 1, 1]
    assert [scarcity.has_surplus(part) for part in (lacking, one, many)] == [False, True, True]
    assert [scarcity.refusal(part) for part in (lacking, one, many)] == [None, str(FULL), str(FULL)]
    scarcity.served(lacking)
    assert (scarcity.has_surplus(many), scarcity.refusal(many)) == (False, None)


def test_pools_keep_one_connection_before_the_listener():
    scarcity, listener = Shared(), Part(is_pool=False)
    one, none, claims = scarcity.pool(held=1), scarcity.pool(), scarcity.pool(held=1, needs=0)
    scarcity.refused(listener, FULL)
    assert [scarcity.has_surplus(part) for part in (one, claims)] == [True, True]
    claims._held = 0
    assert not scarcity.has_surplus(one)
    assert [scarcity.refusal(part) for part in (one, none, claims)] == [str(FULL)] * 3
    one._held = 0
    assert [scarcity.refusal(part) for part in (one, none, claims)] == [None, None, str(FULL)]


def test_pools_that_lack_a_connection_take_turns():
    scarcity = Shared()
    first, second, third = (scarcity.pool() for _ in range(3))
    for part in (first, second, first):
        scarcity.refused(part, FULL)
    assert [scarcity.refusal(part) for part in (first, second, third)] == [None, str(FULL), str(FULL)]
    scarcity.served(first)
    assert [scarcity.refusal(part) for part in (second, third)] == [None, str(FULL)]


def test_a_part_that_does_not_ask_any_more_lacks_nothing(monkeypatch):
    scarcity = Shared()
    lacking, other = scarcity.pool(), scarcity.pool(held=2)
    monkeypatch.setattr("pgqueue._engine.scarcity.LAPSE", 0.0)
    scarcity.refused(lacking, FULL)
    assert (scarcity.has_surplus(other), scarcity.refusal(other)) == (False, None)


@pytest.mark.parametrize("part", [{"held": 1}, {"needs": 0}], ids=["has one", "can do without"])
def test_nothing_gives_way_to_what_is_not_needed(part):
    scarcity = Shared()
    refused, other = scarcity.pool(**part), scarcity.pool(held=2)
    scarcity.refused(refused, FULL)
    assert (other.asked, scarcity.has_surplus(other)) == (0, False)


def test_nothing_gives_way_after_another_refusal():
    scarcity = Shared()
    lacking, other = scarcity.pool(), scarcity.pool(held=2)
    scarcity.refused(lacking, FULL)
    scarcity.refused(lacking, OTHER)
    assert (other.asked, scarcity.has_surplus(other)) == (1, False)


WORDS = {
    'FATAL:  too many connections for role "r"': "ALTER ROLE",
    'FATAL:  too many connections for database "d"': "ALTER DATABASE",
    "FATAL:  sorry, too many clients already": "max_connections",
    "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute": "max_connections",
    "FATAL:  remaining connection slots are reserved for non-replication superuser connections": "max_connections",
    "FATAL:  no more connections allowed (max_client_conn)": "max_client_conn",
    "FATAL:  client connections exceeded (max_user_client_connections)": "max_client_conn",
}


@pytest.mark.parametrize("words", WORDS)
def test_each_limit_has_its_remedy(words):
    said = with_remedy(words)
    assert said.startswith(f"{words}. {NEED}. Raise ")
    assert WORDS[words] in said.removeprefix(words)
    assert with_remedy("FATAL:  role does not exist") == "FATAL:  role does not exist"
    assert len(LIMITS) == 4


def test_a_limit_of_the_database(dsn, db, role):
    name = value(db, "SELECT current_database()")
    limit = sql.SQL("ALTER DATABASE {} CONNECTION LIMIT {}")
    db.execute(limit.format(sql.Identifier(name), 0))
    try:
        client = pgqueue.Client(role.dsn, connect_timeout=0.2)
        with client, pytest.raises(ServerError, match=r"too many connections for database.*ALTER DATABASE"):
            client.queue("q").put(1)
    finally:
        db.execute(limit.format(sql.Identifier(name), -1))
