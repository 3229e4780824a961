"""A cluster in place of a client: each verb has a family, and goes to the servers of this family."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import Any

import psycopg
import pytest
from shells import unwrapped
from statements import column, value

import pgqueue
from pgqueue._async.cluster import NOT_HERE
from pgqueue._async.queue import AsyncQueue
from pgqueue._sync.queue import Queue
from pgqueue.types import AsyncClusterQueue, ClusterQueue

pytestmark = pytest.mark.once


def public(kind: type) -> set[str]:
    names = {name for name in dir(kind) if not name.startswith("_")}
    source = inspect.getsource(kind.__init__) if kind is AsyncQueue else ""
    return names | ({"messages"} if "messages" in source else set())


@pytest.fixture
def dsns(pg_server: Any, lender: Any) -> Any:
    """Three servers, with the numbers 1, 2 and 3."""
    with contextlib.ExitStack() as stack:
        names = [pg_server.dsn(stack.enter_context(lender.lent())) for _ in range(3)]
        for number, dsn in enumerate(names, 1):
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("SELECT pgqueue.set_server(%s)", [number])
        yield names


@pytest.fixture
def dbs(dsns: list[str]) -> Any:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(psycopg.connect(dsn, autocommit=True)) for dsn in dsns]


@pytest.fixture
async def cluster(dsns: list[str], shell: Any) -> Any:
    return shell.cluster([shell.client(dsn) for dsn in dsns])


def counts(dbs: list[psycopg.Connection]) -> list[int]:
    return [value(db, "SELECT count(*) FROM pgqueue.task") for db in dbs]


# --- the catalogue


def test_every_verb_of_a_client_has_a_family() -> None:
    attributes = {"audit", "batches", "exchanges", "groups", "limits", "nodes", "privileges", "results", "statuses"}
    missing = (public(pgqueue.AsyncClient) | attributes) - public(pgqueue.AsyncCluster) - {"over"}
    instance = vars(pgqueue.AsyncCluster(["dbname=none"]))
    assert missing - instance.keys() == NOT_HERE.keys() - {"shell"}


def test_every_verb_of_a_queue_has_a_family() -> None:
    assert public(AsyncQueue) - public(AsyncClusterQueue) == {"messages"}


@pytest.mark.parametrize("name", NOT_HERE)
def test_a_verb_of_one_server_says_so(name: str) -> None:
    with pytest.raises(AttributeError, match=r"cluster\.clients\[index\]"):
        getattr(pgqueue.Cluster(["dbname=none"]), name)
    with pytest.raises(AttributeError, match="'Cluster' object has no attribute 'tale'"):
        pgqueue.Cluster(["dbname=none"]).tale  # type: ignore[attr-defined]  # noqa: B018


def test_a_verb_keeps_its_signature_and_says_where_it_goes() -> None:
    for kind, one in ((ClusterQueue, Queue), (pgqueue.Cluster, pgqueue.Client)):
        for name, verb in inspect.getmembers(kind, inspect.isfunction):
            if (single := inspect.getattr_static(verb, "__wrapped__", None)) is not None:
                assert inspect.signature(verb) == inspect.signature(getattr(one, name))
                assert single.__doc__.partition("\n")[0] in verb.__doc__
                assert "On a cluster it " in verb.__doc__


# --- a task's id names its server


async def test_a_task_is_settled_by_its_id_alone(cluster: Any, dbs: list[psycopg.Connection]) -> None:
    queue = cluster.queue("q")
    ids = [(await queue.put(index, place=index)).id for index in range(3)]
    assert [id >> 43 for id in ids] == [1, 2, 3]
    assert [(await queue.peek(id)).data for id in ids] == [0, 1, 2]
    assert [(await queue.take_id(str(id))).data for id in ids] == [0, 1, 2]
    await queue.ack(ids[0])
    await queue.bury(ids[1])
    await queue.release(ids[2])
    assert counts(dbs) == [0, 1, 1]
    assert await queue.kick_task(task=ids[1])
    assert await cluster.cancel(ids[2]) == "cancelled"
    await cluster.delete(ids[1])
    assert counts(dbs) == [0, 0, 0]


@pytest.mark.slow
async def test_results_and_outcomes_are_found_by_id(cluster: Any) -> None:
    queue = cluster.queue("q")
    put = [await queue.put(index, place=index) for index in range(3)]
    for task in await queue.take_many(3, 0):
        await task.finish({"square": task.data**2})
    assert [await cluster.results.get(task.id, 5) for task in put] == [{"square": n} for n in (0, 1, 4)]
    assert [(await cluster.results.outcome(task.id)).state for task in put] == ["done"] * 3


async def test_a_predecessor_by_its_id_selects_the_server(cluster: Any, dbs: list[psycopg.Connection]) -> None:
    queue = cluster.queue("q")
    first = await queue.put("first", place=2)
    assert (await queue.put("then", after=first.id)).state == "waiting"
    assert counts(dbs) == [0, 0, 2]


async def test_many_are_cancelled_on_their_servers(cluster: Any, dbs: list[psycopg.Connection]) -> None:
    queue = cluster.queue("q")
    ids = [(await queue.put(index, place=index)).id for index in range(3)]
    assert await cluster.cancel_many(ids) == dict.fromkeys(ids, "cancelled")
    assert counts(dbs) == [0, 0, 0]


async def test_an_id_of_a_server_that_is_not_in_the_cluster_is_refused(cluster: Any) -> None:
    with pytest.raises(pgqueue.errors.TaskElsewhere, match="is of server 9, and no server of this cluster"):
        await cluster.queue("q").ack(9 << 43 | 1)


# --- all servers


async def test_a_queue_is_made_altered_and_removed_on_every_server(cluster: Any, dbs: list[psycopg.Connection]) -> None:
    queue = await cluster.create_queue("q", capacity=2)
    await queue.alter(priority=7)
    assert [column(db, "SELECT priority FROM pgqueue.queues WHERE name = 'q'") for db in dbs] == [[7]] * 3
    assert [info.name for info in await cluster.queues()] == ["q"]
    assert (await queue.info()).capacity == 2
    for place in range(3):
        await queue.put_many([1, 2], place=place)
    assert (await cluster.stats())["q"]["total"] == (await queue.stats())["total"] == 6
    assert await cluster.delete_queue("q") == 6
    assert [column(db, "SELECT name FROM pgqueue.queues WHERE name = 'q'") for db in dbs] == [[]] * 3


@pytest.mark.slow
async def test_tasks_are_listed_page_by_page_over_all_servers(cluster: Any) -> None:
    queue = cluster.queue("q")
    for place in range(3):
        await queue.put_many([f"{place}.{n}" for n in range(3)], place=place)
    for limit in (1, 2, 3, 4, 9, 10):
        found, marker = [], None
        while True:
            page = await queue.tasks("ready", limit=limit, marker=marker)
            assert len(page.tasks) <= limit
            found += [task.data for task in page.tasks]
            if (marker := page.marker) is None:
                break
        assert found == [f"{place}.{n}" for place in range(3) for n in range(3)]
    with pytest.raises(ValueError, match="a marker comes from the page before"):
        await queue.tasks("ready", marker="9:")


@pytest.mark.slow
async def test_bulk_verbs_act_on_all_servers(cluster: Any, dbs: list[psycopg.Connection]) -> None:
    queue = cluster.queue("q")
    for place in range(3):
        await queue.put_many([1, 2], place=place)
    for task in await queue.take_many(6, 0):
        await task.bury()
    assert await queue.kick(3) == 3
    assert await queue.kick_all() == 3
    assert (await queue.peek_next()).id >> 43 == 1
    assert len(await queue.pop(4)) == 4
    assert await queue.truncate() == 2
    assert counts(dbs) == [0, 0, 0]


async def test_what_is_one_for_the_cluster_is_on_the_home_server(cluster: Any, dbs: list[psycopg.Connection]) -> None:
    async with cluster.lock("the lock"):
        held = [column(db, "SELECT name FROM pgqueue.locks") for db in dbs]
    assert held == [["the lock"], [], []]
    await cluster.statuses.set("key", "value")
    assert [value(db, "SELECT count(*) FROM pgqueue.status") for db in dbs] == [1, 0, 0]
    assert unwrapped(cluster.home) is unwrapped(cluster.clients[0])


async def test_a_verb_for_all_names_the_server_that_failed(cluster: Any, dbs: list[psycopg.Connection]) -> None:
    await cluster.clients[1].create_queue("q")
    with pytest.raises(pgqueue.errors.QueueExists) as raised:
        await cluster.create_queue("q")
    assert raised.value.__notes__ == ["This is the answer of server 2; each of the other servers was called too."]
    assert [column(db, "SELECT name FROM pgqueue.queues") for db in dbs] == [["q"]] * 3


# --- jobs


@pytest.mark.slow
async def test_a_job_of_a_cluster_is_put_in_turn(cluster: Any, dbs: list[psycopg.Connection]) -> None:
    @unwrapped(cluster).job(queue="q")
    def send(to: str) -> None: ...

    for _ in range(3):
        await send.aput(to="ada")
    await asyncio.to_thread(send.put, to="ada")
    assert sorted(counts(dbs)) == [1, 1, 2]
