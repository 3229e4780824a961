"""Limits over a cluster: with the scope "home" the home server keeps them, and their tasks are put there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest
from commands import Commands
from eventually import eventually
from members import change, copy
from processes import Program
from sampling import sampled
from shells import unwrapped
from statements import column, value

import pgqueue
from pgqueue import migrate
from pgqueue._engine.cluster import kept, operating
from pgqueue.errors import LimitElsewhere, NoQueue

pytestmark = pytest.mark.once

SEND = {"job": "send"}
LOOK = {"job": "look"}


@pytest.fixture
def dsns(pg_server: Any, lender: Any, without_password: Callable[[str], str]) -> Any:
    """Three servers, with the numbers 1, 2 and 3, and a table of them."""
    with contextlib.ExitStack() as stack:
        names = [without_password(pg_server.dsn(stack.enter_context(lender.lent()))) for _ in range(3)]
        conns = [stack.enter_context(psycopg.connect(dsn, autocommit=True)) for dsn in names]
        for number, (dsn, conn) in enumerate(zip(names, conns, strict=True), 1):
            conn.execute("SELECT pgqueue.set_server(%s)", [number])
            change(conns[:1], "add_server", number, dsn)
        for conn in conns[1:]:
            copy(conns[0], conn)
        yield names


@pytest.fixture
def dbs(dsns: list[str]) -> Any:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(psycopg.connect(dsn, autocommit=True)) for dsn in dsns]


def made(dsns: list[str], shell: Any) -> Any:
    return shell.cluster([shell.client(dsn) for dsn in dsns])


@pytest.fixture
async def cluster(dsns: list[str], shell: Any) -> Any:
    """A cluster with a queue q, in which the job send is limited to 2 at home."""
    cluster = made(dsns, shell)
    await cluster.create_queue("q")
    await cluster.limits.set("q", "send", concurrency=2, scope="home")
    return cluster


def counts(dbs: list[psycopg.Connection]) -> list[int]:
    return [value(db, "SELECT count(*) FROM pgqueue.task") for db in dbs]


# --- where tasks go


@pytest.mark.slow
async def test_tasks_of_the_limit_go_home_and_no_more_run_than_it_says(cluster: Any, dbs: Any) -> None:
    queue = cluster.queue("q")
    for _ in range(6):
        await queue.put(SEND)
    assert counts(dbs) == [6, 0, 0]
    tasks = await queue.take_many(9, 0)
    assert len(tasks) == 2
    assert await queue.take_many(9, 0) == []
    await tasks[0].ack()
    assert len(await queue.take_many(9, 5)) == 1


PUTS = {
    "put": lambda queue: queue.put(SEND),
    "put in a place": lambda queue: queue.put(SEND, place=1),
    "put with a key": lambda queue: queue.put(SEND, key="ida"),  # of server 2
    "put_unique": lambda queue: queue.put_unique(SEND, place=2),
    "urgent": lambda queue: queue.urgent(SEND),
    "put_many": lambda queue: queue.put_many([LOOK, SEND, LOOK]),
    "put_many delayed": lambda queue: queue.put_many([SEND], delay=60),
}


@pytest.mark.parametrize("verb", sampled([*PUTS], keep=5))
async def test_every_put_goes_home_whatever_place_or_key_it_has(cluster: Any, dbs: Any, verb: str) -> None:
    for _ in range(3):
        await PUTS[verb](cluster.queue("q"))
    assert counts(dbs)[0] > 0
    assert counts(dbs)[1:] == [0, 0]


async def test_a_graph_goes_home_if_one_of_its_tasks_does(cluster: Any, dbs: Any) -> None:
    for _ in range(3):
        first = pgqueue.Put("other", 1)
        await cluster.put_graph([first, pgqueue.Put("q", SEND, after=first)])
    assert counts(dbs) == [6, 0, 0]


@pytest.mark.slow
async def test_puts_of_a_job_go_home(cluster: Any, dbs: Any) -> None:
    @unwrapped(cluster).job(name="send", queue="q")
    def send(to: str) -> None: ...

    for _ in range(3):
        await send.aput(to="ada")
        await asyncio.to_thread(send.put, to="ada")
    await send.aput_many([("ada",), ("bob",)])
    assert counts(dbs) == [8, 0, 0]


@pytest.mark.slow
async def test_other_tasks_are_spread(cluster: Any, dbs: Any) -> None:
    await cluster.queue("q").put(SEND, place=1)
    for data in (LOOK, "text", {"job": 7}):
        for _ in range(3):
            await cluster.queue("q").put(data)
            await cluster.queue("other").put(SEND)
    assert counts(dbs)[1:] == [6, 6]


async def test_a_refused_put_is_remembered_and_the_next_goes_straight(
    cluster: Any, dbs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    members, asked = unwrapped(cluster)._members, []
    ask = members.ask
    monkeypatch.setattr(
        members, "ask", lambda server, verb: asked.append(members.all.index(server)) or ask(server, verb)
    )
    await cluster.queue("q").put(SEND, place=1)
    assert asked == [1, 0]
    await cluster.queue("q").put(SEND, place=2)
    await cluster.queue("q").put_many([LOOK, SEND], place=2)
    assert asked == [1, 0, 0, 0]
    await cluster.queue("q").put(LOOK, place=2)
    assert asked == [1, 0, 0, 0, 2]


def test_what_was_learned_is_forgotten_after_a_minute() -> None:
    now = 0.0
    known = kept.Kept(lambda: now)
    known.learn(LimitElsewhere("", 1, "q", "send"))
    known.learn(LimitElsewhere("", 2, "q", None))
    assert known.server([("q", LOOK), ("q", SEND)]) == 1
    assert known.server([("q", 7)]) == 2
    assert known.server([("q", LOOK), ("other", SEND), ("q", {"job": ["send"]})]) == 2  # its job is no text
    now = kept.FORGET
    assert known.server([("q", SEND)]) is None


def test_the_memory_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST", 3)
    known = kept.Kept()
    for number in range(10):
        known.learn(LimitElsewhere("", 1, "q", f"job {number}"))
        assert len(known._known) <= 3


# --- what demands another server


async def test_a_task_after_one_of_another_server_is_refused(cluster: Any, dbs: Any) -> None:
    first = await cluster.queue("other").put(1, place=1)
    for _ in range(2):  # before and after the cluster has learned it
        with pytest.raises(LimitElsewhere, match=r"server 1 keeps the limit .* this is server 2") as raised:
            await cluster.queue("q").put(SEND, after=first)
        assert (raised.value.server, raised.value.queue, raised.value.job) == (1, "q", "send")
    await cluster.queue("q").put(SEND, after=await cluster.queue("other").put(1, place=0))
    assert counts(dbs) == [2, 1, 0]


async def test_a_batch_of_another_server_refuses_the_task_and_one_of_home_has_it(cluster: Any, dbs: Any) -> None:
    async with cluster.batch(place=1) as batch:
        with pytest.raises(LimitElsewhere):
            await cluster.queue("q").put(SEND, batch=batch)
    async with cluster.home.batch() as batch:
        await cluster.queue("q").put(SEND, batch=batch)
    assert counts(dbs) == [1, 0, 0]


async def test_a_connection_to_another_server_is_refused(cluster: Any, dsns: Any, shell: Any, dbs: Any) -> None:
    home, other = [await shell.connection(dsn) for dsn in dsns[:2]]
    with pytest.raises(LimitElsewhere):
        await cluster.queue("q").put(SEND, conn=other)
    await cluster.queue("q").put(SEND, conn=home)
    await home.commit()
    assert counts(dbs) == [1, 0, 0]


# --- setting it


async def test_set_back_the_tasks_are_spread_at_once(cluster: Any, dbs: Any) -> None:
    await cluster.queue("q").put(SEND, place=1)
    await cluster.limits.set("q", "send", concurrency=2)
    for _ in range(3):
        await cluster.queue("q").put(SEND)
    assert counts(dbs) == [2, 1, 1]
    assert {one.home for one in await cluster.limits.list()} == {None}


async def test_the_limit_of_a_queue_leaves_out_a_job_with_its_own(cluster: Any, dbs: Any) -> None:
    await cluster.limits.set("q", concurrency=2, scope="home")
    await cluster.limits.set("q", "look", concurrency=2)
    for _ in range(3):
        await cluster.queue("q").put("text")
        await cluster.queue("q").put(LOOK)
    assert counts(dbs) == [4, 1, 1]


async def test_a_worker_that_declares_the_limit_of_its_job_leaves_it_at_home(cluster: Any) -> None:
    assert await cluster.limits.declare("q", "send", concurrency=2) == "same"
    assert await cluster.limits.declare("q", "send", concurrency=9) == "kept"
    assert {(one.concurrency, one.home) for one in await cluster.limits.list()} == {(2, 1)}


async def test_a_set_that_failed_at_a_server_names_it(dsns: list[str], shell: Any, dbs: Any) -> None:
    cluster = made(dsns, shell)
    await cluster.home.create_queue("q")
    with pytest.raises(NoQueue) as raised:
        await cluster.limits.set("q", concurrency=2, scope="home")
    assert raised.value.__notes__ == ["This is the answer of server 2; each of the other servers was called too."]


async def test_servers_without_numbers_are_refused(pg_server: Any, lender: Any, shell: Any) -> None:
    with contextlib.ExitStack() as stack:
        cluster = made([pg_server.dsn(stack.enter_context(lender.lent())) for _ in range(2)], shell)
        await cluster.create_queue("q")
        with pytest.raises(ValueError, match="no numbers"):
            await cluster.limits.set("q", concurrency=2, scope="home")
        with pytest.raises(ValueError, match='scope must be "server" or "home"'):
            await cluster.limits.set("q", concurrency=2, scope="cluster")
        for client in unwrapped(cluster).clients:
            closing = client.close()
            if shell.name == "async":
                await closing


@pytest.mark.slow
def test_the_command_sets_it_on_all_servers(dsns: list[str], dbs: Any) -> None:
    command = Commands(dsns[1])
    for db in dbs:
        db.execute("SELECT pgqueue.queue_id('q')")
    command.lines("limit", "set", "q", "-c", "2", "--scope", "home")
    assert [column(db, "SELECT home FROM pgqueue.limits") for db in dbs] == [[1]] * 3
    assert command.lines("limit", "list")[1].split() == ["q", "-", "2", "-", "-", "0", "0", "1", "hand"]
    command.lines("limit", "set", "q", "-c", "2", "--scope", "server")
    assert [column(db, "SELECT home FROM pgqueue.limits") for db in dbs] == [[None]] * 3


# --- servers that join, and tasks that move


@pytest.mark.slow
def test_a_server_that_joins_has_the_limit_before_it_gets_a_task(
    dsns: list[str], dbs: Any, empty_dsn: str, without_password: Callable[[str], str]
) -> None:
    with pgqueue.Cluster.from_server(dsns[0]) as cluster:
        cluster.create_queue("q")
        cluster.limits.set("q", "send", concurrency=2, rate=10, per=60, burst=3, argument="to", scope="home")
        cluster.limits.set("q", concurrency=5)
    number, missed = operating.add(dsns[0], without_password(empty_dsn))
    assert (number, missed) == (4, [])
    with pgqueue.Client(empty_dsn) as client:
        (one,) = client.limits.list()
        assert (one.job, one.concurrency, one.rate, one.per, one.burst) == ("send", 2, 10, 60, 3)
        assert (one.argument, one.home) == ("to", 1)
    assert migrate.status(empty_dsn).state == "up to date"


@pytest.mark.slow
def test_tasks_that_were_there_before_run_beside_and_move_home(dsns: list[str], dbs: Any) -> None:
    with pgqueue.Cluster(dsns) as cluster:
        queue = cluster.create_queue("q")
        for place in (1, 1, 1, 2):
            queue.put(SEND, place=place)
        queue.put(LOOK, place=1)
        cluster.limits.set("q", "send", concurrency=1, scope="home")
        queue.put(SEND)
        taken = queue.take_many(9, 0)
        assert sorted(task.id >> 43 for task in taken if task.data == SEND) == [1, 2, 3]
        cluster.queue("q").release_many(taken)
        for source in (2, 3):
            list(operating.move(dsns[0], source, [], "q", lambda n: None))
        assert value(dbs[0], "SELECT count(*) FROM pgqueue.task WHERE data ->> 'job' = 'send'") == 5
        assert len([task for task in queue.take_many(9, 0) if task.data == SEND]) == 1


# --- with puts under way


@pytest.fixture
def putters(dsns: list[str], start: Callable[..., Program], dbs: Any) -> list[Program]:
    for db in dbs:
        db.execute("SELECT pgqueue.queue_id('q')")
    programs = [start("cluster_putter", "q", "send", *dsns) for _ in range(3)]
    for program in programs:
        program.hear()
    return programs


@pytest.mark.slow
def test_after_the_scope_is_set_under_load_no_new_task_is_elsewhere(
    dsns: list[str], dbs: Any, putters: list[Program]
) -> None:
    eventually(lambda: all(counts(dbs)))  # each server has some
    with pgqueue.Cluster(dsns) as cluster:
        cluster.limits.set("q", "send", concurrency=2, scope="home")
        new = [id for program in putters for id in program.ask("go")["ids"]]
        assert {id >> 43 for id in new} == {1}
        for program in putters:
            assert program.end() == 0
        taken = [task.id >> 43 for task in cluster.queue("q").take_many(1000, 0)]
        assert taken.count(1) == 2
        assert len(taken) == 6  # those that were put before on the other servers run beside


def test_a_put_in_an_open_transaction_is_of_before_and_one_that_begins_later_is_refused(dsns: Any, dbs: Any) -> None:
    for db in dbs:
        db.execute("SELECT pgqueue.queue_id('q')")
    put = partial(value, query="SELECT id FROM pgqueue.put('q', '{\"job\": \"send\"}')")
    with pgqueue.Cluster(dsns) as cluster, psycopg.connect(dsns[1]) as old:
        assert put(old) >> 43 == 2
        cluster.limits.set("q", "send", concurrency=2, scope="home")
        with pytest.raises(psycopg.Error, match="server 1 keeps the limit"), old.transaction():
            put(old)
        old.commit()
        with pytest.raises(psycopg.Error, match="server 1 keeps the limit"):
            put(dbs[1])
    assert counts(dbs) == [0, 1, 0]
