"""A queue over several servers: where a task is put, who gives it, and what happens when a server is away.

Most servers here are databases of one server: a client cannot tell. A server that is down is a port that nobody serves;
one that goes down and comes back is a private server of the test's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from eventually import PATIENCE, Stopwatch, eventually, soon, soon_enough
from flowing import name
from hurrying import hurry
from proxies import Proxy
from psycopg.conninfo import make_conninfo
from servers import system_binaries
from shells import Awaitable, unwrapped
from statements import column, row, rows, value

import pgqueue
from pgqueue import migrate
from pgqueue._engine import outages
from pgqueue._engine.cluster.servers import Server, Servers
from pgqueue._engine.cluster.takes import Part, PartSignal, Start, Whole
from pgqueue._engine.hub import Hub
from pgqueue._engine.outages import Slow
from pgqueue._engine.steps import Run
from pgqueue.embedded import EmbeddedServer, reaper

pytestmark = pytest.mark.once

PUTTING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%pgqueue.put(%%'"


@pytest.fixture
def dbs(dsns):
    """A connection to each of them."""
    conns = [psycopg.connect(dsn, autocommit=True) for dsn in dsns]
    yield conns
    for conn in conns:
        conn.close()


@pytest.fixture
def down(dsns):
    """The DSN of a server that is down: it refuses connections."""
    with socket.socket() as taken:  # bound and not listening, so nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        yield make_conninfo(dsns[0], host="127.0.0.1", port=taken.getsockname()[1])


@pytest.fixture
def dropping(dsns):
    """The DSN of an address at which each packet of a new connection is dropped. The queue of its listener is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        for _ in range(4):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(address)
        control = stack.enter_context(socket.socket())
        control.settimeout(0.5)
        if control.connect_ex(address) != errno.EAGAIN:  # its time-out
            pytest.skip("this kernel answers while the queue of a listener is full")
        yield make_conninfo(dsns[0], host="127.0.0.1", port=address[1])


@pytest.fixture
def shell(dsns, shell):  # in this order: clients and connections are closed before their databases go
    return shell


@pytest.fixture
async def make(dsns, shell):
    """Makes Cluster of DSNs, over clients that do not poll."""

    def make(dsns, connect_timeout=PATIENCE, **options):
        return shell.cluster([shell.client(dsn, connect_timeout=connect_timeout) for dsn in dsns], **options)

    return make


@pytest.fixture
def queue(make, dsns):
    return make(dsns).queue("q")


def counts(dbs):
    return [value(db, "SELECT count(*) FROM pgqueue.task") for db in dbs]


def column_of(dbs, name):
    """A column of the statistics, of each server."""
    return [value(db, f"SELECT {name} FROM pgqueue.stats WHERE queue = 'q'") for db in dbs]


async def waits_everywhere(queue):
    """Until a take waits at each server."""
    for one in unwrapped(queue)._members.all:
        await soon(lambda one=one: (listener := one.client.shell.core.running_listener) and _armed(listener.hub))


def _armed(hub, takers=1):
    return any(len(channel.waiters) >= takers and channel.armed for channel in hub._channels.values())


async def empty(queue, n):
    """Take and ack so many tasks. Each is waited for: a take that was cut off may have to give it back first."""
    while n:
        tasks = await queue.take_many(n, 5)
        assert tasks
        await queue.ack_many(tasks)
        n -= len(tasks)


# --- where a task goes


def indices(servers, keys):
    """The places in the list of the keys' servers."""
    return [servers.all.index(servers.placed(key)) for key in keys]


def test_a_key_names_a_server_for_all_time():
    servers = Servers([None] * 3, 5.0)
    assert indices(servers, (0, 1, 2, 3, -1, 10**30)) == [0, 1, 2, 0, 2, 1]
    assert indices(servers, ("ann", "bob", b"bob", "ida", "a")) == [0, 1, 1, 1, 2]
    assert servers.placed("\ud800") in servers.all
    assert indices(servers, [None] * 4) == [0, 1, 2, 0]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 19])
def test_few_keys_move_when_a_server_is_added(n):
    keys = [f"user {number}" for number in range(10_000)]
    before, after = (indices(Servers([None] * size, 5.0), keys) for size in (n, n + 1))
    moved = [new for old, new in zip(before, after, strict=True) if new != old]
    assert set(moved) == {n}
    assert len(moved) <= 10_000 * (1 / (n + 1) + 0.05)
    for server in range(n + 1):
        assert after.count(server) == pytest.approx(10_000 / (n + 1), rel=0.15)


@pytest.mark.parametrize("key", [True, 1.0, ("a",), object()])
async def test_other_keys_are_refused(queue, key, dbs):
    with pytest.raises(ValueError, match="place"):
        await queue.put(1, place=key)
    assert counts(dbs) == [0, 0, 0]


async def test_a_put_goes_where_its_key_says(queue, dbs):
    for key in (0, 1, 1, 2, 5):
        await queue.put(key, place=key, priority=key)
    assert counts(dbs) == [1, 2, 2]
    assert column(dbs[2], "SELECT data FROM pgqueue.tasks ORDER BY priority") == [2, 5]


async def test_without_a_key_the_servers_take_turns(queue, dbs):
    for _ in range(6):
        await queue.put("x")
    assert counts(dbs) == [2, 2, 2]


async def test_a_lane_or_a_key_names_a_server(queue, dbs):
    """Else two tasks of a lane would run at once, and a key would be there twice."""
    for n in range(6):
        await queue.put(n, lane="ann")  # of server 0
        await queue.put(n, key="bob")  # of server 1
    assert counts(dbs) == [6, 1, 0]
    assert [task.data for task in await queue.take_many(10, 0)] == [0, 0]


async def test_the_lane_comes_before_the_key_and_the_place_before_both(queue, dbs):
    await queue.put(1, lane="ann", key="bob")
    await queue.put(2, lane="ann", key="bob", place=1)
    assert counts(dbs) == [1, 1, 0]


async def test_data_that_is_unique_needs_a_place(queue, dbs):
    for options in ({"unique_data": True}, {"unique_for": 60}):
        with pytest.raises(ValueError, match="unique by its data needs a place"):
            await queue.put(1, **options)
        for _ in range(3):
            await queue.put(1, place=1, **options)
    await queue.put(2, unique_for=60, key="a")  # of server 2
    assert counts(dbs) == [0, 1, 1]


@pytest.mark.parametrize("options", [{"lane": "ida"}, {"key": "ida"}])
async def test_a_lane_or_a_key_goes_to_no_other_server(make, dsns, dbs, down, options):
    queue = make([dsns[0], down, dsns[2]], connect_timeout=1).queue("q")
    for _ in range(2):
        with pytest.raises(pgqueue.ServerError):
            await queue.put(1, **options)
    assert counts(dbs) == [0, 0, 0]


async def test_a_task_goes_to_the_server_of_those_that_it_waits_for(queue, dbs):
    first = unwrapped(await queue.put("first", place=1))
    for after in (first, [first], (first,)):
        waiting = await queue.put("then", after=after)
        assert waiting.state == "waiting"
    assert counts(dbs) == [0, 4, 0]


async def test_a_task_waits_for_no_task_of_another_server(queue, dbs):
    """It waited for the unrelated task with that number, and ran while the other one was not done."""
    first = unwrapped(await queue.put("first", place=0))
    second = unwrapped(await queue.put("second", place=1))
    assert first.id == second.id
    for options in ({"after": first, "place": 1}, {"after": [first, second]}):
        with pytest.raises(
            ValueError, match="after, batch and place name server 0 of the list and server 1 of the list"
        ):
            await queue.put("then", **options)
    assert counts(dbs) == [1, 1, 0]


async def test_an_id_without_a_number_needs_a_place(queue, dbs):
    first = await queue.put("first", place=1)
    for after in (first.id, str(first.id), [first.id]):
        with pytest.raises(ValueError, match=f"id {first.id} has no number of a server"):
            await queue.put("then", after=after)
    assert (await queue.put("then", after=first.id, place=1)).state == "waiting"
    assert counts(dbs) == [0, 2, 0]


async def test_an_id_of_another_numbered_server_is_refused(queue, dbs):
    for number, db in enumerate(dbs, 1):
        db.execute("SELECT pgqueue.set_server(%s)", [number])
    first = await queue.put("first", place=0)
    with pytest.raises(ValueError, match=f"task {first.id} belongs to server 1, this is server 2"):
        await queue.put("then", after=first.id, place=1)
    assert counts(dbs) == [1, 0, 0]


async def test_a_task_goes_to_the_server_of_its_batch(make, dsns, dbs):
    cluster = make(dsns)
    queue = cluster.queue("q")
    async with cluster.clients[2].batch() as batch:
        await queue.put(1, batch=batch)
        with pytest.raises(ValueError, match="name server 0 of the list and server 2 of the list"):
            await queue.put(2, batch=batch, place=0)
    assert counts(dbs) == [0, 0, 1]


async def test_a_task_or_batch_of_a_stranger_is_refused(queue, client, dbs):
    stranger = await client.queue("q").put(1)
    with pytest.raises(ValueError, match="from none of these servers"):
        await queue.put(2, after=stranger)
    assert counts(dbs) == [0, 0, 0]


async def test_a_connection_decides_the_server(shell, queue, dsns, dbs):
    conn = await shell.connection(dsns[1])
    await queue.put("rolled back", conn=conn)
    await conn.rollback()
    await queue.put("put", conn=conn)
    await queue.put("put", place=1, conn=conn)
    await queue.put_many(["put", "put"], conn=conn)
    await conn.commit()
    assert counts(dbs) == [0, 4, 0]
    assert [task.data for task in await queue.pop(9, conn=conn)] == ["put"] * 4
    await conn.rollback()
    assert counts(dbs) == [0, 4, 0]


@pytest.mark.parametrize("options", [{"place": 0}, {"lane": "a"}, {"key": "a"}, {"place": "a", "lane": "bob"}])
async def test_a_connection_to_another_server_than_that_of_the_place_is_refused(shell, queue, dsns, dbs, options):
    conn = await shell.connection(dsns[1])
    with pytest.raises(ValueError, match=r"the connection leads to server 1 of the list, and the \w+ .* names server"):
        await queue.put(1, conn=conn, **options)
    assert counts(dbs) == [0, 0, 0]


@pytest.mark.slow
async def test_a_connection_counts_also_while_another_server_is_down(shell, make, dsns, dbs, down):
    queue = make([down, dsns[1]], connect_timeout=1).queue("q")
    conn = await shell.connection(dsns[1])
    await queue.put("put", conn=conn)
    await conn.commit()
    assert counts(dbs) == [0, 1, 0]


async def test_a_connection_to_no_server_of_the_cluster_is_refused(queue, transaction, dbs):
    with pytest.raises(ValueError, match="leads to none of the servers"):
        await queue.put(1, conn=transaction)
    assert counts(dbs) == [0, 0, 0]


async def test_a_server_that_is_named_twice_is_refused(make, dsns, dbs):
    """By whatever address. Its tasks would count twice, and a place would name it twice."""
    again = make_conninfo(dsns[0], application_name="again")
    for call in (lambda queue: queue.stats(), lambda queue: queue.take(0)):
        with pytest.raises(ValueError, match="servers 0 and 2 of the list are the same database"):
            await call(make([dsns[0], dsns[1], again], connect_timeout=1).queue("q"))
    queue = make([dsns[0], dsns[1], again], connect_timeout=1).queue("q")
    await queue.put(1, place=0)
    for _ in range(2):
        with pytest.raises(ValueError, match="servers 0 and 2 of the list are the same database"):
            await queue.put(1, place=2)
    assert counts(dbs) == [1, 0, 0]


async def test_servers_with_one_number_are_refused(make, dsns, dbs):
    for db in dbs[:2]:
        db.execute("SELECT pgqueue.set_server(7)")
    with pytest.raises(ValueError, match="servers 0 and 1 of the list both have the number 7"):
        await make(dsns).queue("q").stats()


async def test_the_client_of_a_key(make, dsns):
    cluster = make(dsns)
    assert unwrapped(cluster.client(4)) is unwrapped(cluster.clients[1])


# --- taking


@pytest.mark.slow
async def test_servers_serve_in_turn(queue):
    for n in range(9):
        await queue.put(n, place=n % 3)
    taken = [(await queue.take(0)).data for _ in range(9)]
    assert [data % 3 for data in taken] in ([0, 1, 2] * 3, [1, 2, 0] * 3, [2, 0, 1] * 3)
    assert [data for data in taken if data % 3 == 0] == [0, 3, 6]
    assert await queue.take(0) is None


async def test_a_batch_is_gathered_server_by_server(queue):
    for n in range(9):
        await queue.put(n, place=n % 3)
    first = [task.data for task in await queue.take_many(7, 0)]
    assert len(first) == 7
    assert [data % 3 for data in first[:3]] == [first[0] % 3] * 3
    for server in range(3):
        there = [data for data in first if data % 3 == server]
        assert there == sorted(there)
    assert len(await queue.take_many(7, 0)) == 2
    assert await queue.take_many(7, 0) == []


@pytest.mark.parametrize("server", range(3))
async def test_a_take_waits_at_all_servers(queue, server):
    taking = asyncio.ensure_future(queue.take(20))
    await waits_everywhere(queue)
    await queue.queues[server].put("x")
    task = await taking
    assert task.data == "x"
    await task.ack()
    await soon(
        lambda: not any(_armed(one.client.shell.core.running_listener.hub) for one in unwrapped(queue)._members.all)
    )


async def test_a_take_ends_in_time(queue):
    assert await queue.take(0) is None

    async def take() -> float:
        watch = Stopwatch()
        assert await queue.take(0.3) is None
        assert watch() >= 0.3
        return watch()

    await soon_enough(take, within=0.5)


@pytest.mark.slow
async def test_what_more_than_one_server_gave_goes_back(queue, dbs):
    """All three servers serve one waiting take of one task."""
    for _ in range(10):
        taking = asyncio.ensure_future(queue.take(20))
        await waits_everywhere(queue)
        for one in queue.queues:
            await one.put("x")
        await (await taking).ack()
        assert sum(counts(dbs)) == 2
        await empty(queue, 2)
        assert counts(dbs) == [0, 0, 0]


@pytest.mark.slow
async def test_a_waiting_batch_is_gathered_too(queue, dbs):
    """Nothing is lost and nothing comes twice, whoever comes first."""
    for _ in range(10):
        taking = asyncio.ensure_future(queue.take_many(2, 20))
        await waits_everywhere(queue)
        for one in queue.queues:
            await one.put("x")
        tasks = await taking
        assert 1 <= len(tasks) <= 2
        await queue.ack_many(tasks)
        await empty(queue, 3 - len(tasks))
        assert counts(dbs) == [0, 0, 0]


@pytest.mark.slow
async def test_twenty_takers_are_all_served(queue):
    """No wake-up is lost among them: a loser that was woken has to wake the next."""
    takers = [asyncio.ensure_future(queue.take(20)) for _ in range(20)]
    await waits_everywhere(queue)
    for n in range(20):
        await queue.put(n, place=n)
    assert sorted([task.data for task in await asyncio.gather(*takers)]) == list(range(20))


@pytest.mark.slow
async def test_a_take_that_is_cancelled_leaves_all_ready(dsns, dbs):
    clients = [pgqueue.AsyncClient(dsn, poll=None) for dsn in dsns]
    queue = pgqueue.AsyncCluster(clients).queue("q")
    for turn in range(20):
        taking = asyncio.ensure_future(queue.take(20))
        await waits_everywhere(queue)
        for n in range(3):
            dbs[n].execute("SELECT pgqueue.put('q', '1')")
        for _ in range(turn % 5):
            await asyncio.sleep(0)
        taking.cancel()
        (done,) = await asyncio.gather(taking, return_exceptions=True)
        kept = 0 if isinstance(done, asyncio.CancelledError) else 1
        await soon(lambda kept=kept: sum(column_of(dbs, "ready")) == 3 - kept)
        for db in dbs:
            db.execute("DELETE FROM pgqueue.task")
    for client in clients:
        await client.close()


def test_ctrl_c_leaves_all_ready(dsns, dbs):
    clients = [pgqueue.Client(dsn, poll=None) for dsn in dsns]
    queue = pgqueue.Cluster(clients).queue("q")

    def interrupt():
        for client in clients:
            eventually(lambda client=client: (at := client.shell.core.running_listener) and _armed(at.hub))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        queue.take(20)
    thread.join()
    eventually(lambda: not any(_armed(client.shell.core.running_listener.hub) for client in clients))
    for db in dbs:
        db.execute("SELECT pgqueue.put('q', '1')")
    assert column_of(dbs, "ready") == [1, 1, 1]
    for client in clients:
        client.close()


@pytest.fixture
def runs(monkeypatch):
    """The number of calls of takes from all servers, by the server's index."""
    counted = Counter()

    def performed(self, step):
        counted[self.server.client] += not isinstance(step, Start)
        return original(self, step)

    original = Part._performed
    monkeypatch.setattr(Part, "_performed", performed)
    return counted


@pytest.fixture
def last_looks(monkeypatch):
    """The clients of the servers at which a take has had its last look before it sleeps."""
    looked = set()

    def performed(self, step):
        answer = yield from original(self, step)
        if isinstance(step, Run) and name(step) == "next_due":
            looked.add(self.server.client)
        return answer

    original = Part._performed
    monkeypatch.setattr(Part, "_performed", performed)
    return looked


async def test_a_take_that_waits_looks_where_it_is_woken_and_nowhere_else(queue, runs, last_looks):
    taking = asyncio.ensure_future(queue.take(30))
    await waits_everywhere(queue)
    clients = [one.client for one in unwrapped(queue)._members.all]
    await soon(lambda: last_looks == set(clients))
    before = Counter(runs)
    await queue.queues[1].put("x")
    await (await taking).ack()
    assert {client for client in clients if runs[client] != before[client]} == {clients[1]}


@pytest.mark.parametrize("looks", [0, 1, 2])
async def test_a_program_that_puts_each_task_and_then_takes_it_asks_one_server(queue, runs, looks):
    """The take begins behind the server of the last one, as the put does, whatever came before."""
    for _ in range(looks):
        assert await queue.take(0) is None
    for _ in range(len(queue.queues)):  # after which each server was asked where it is
        await queue.put("x")
        await (await queue.take(0)).ack()
    before = runs.total()
    for _ in range(9):
        await queue.put("x")
        await (await queue.take(0)).ack()
    assert runs.total() - before == 9


def test_a_take_that_waits_has_no_thread_of_its_own(dsns):
    clients = [pgqueue.Client(dsn) for dsn in dsns]
    queue = pgqueue.Cluster(clients).queue("q")
    assert queue.take(0) is None  # which starts the listeners
    before = set(threading.enumerate())
    takers = [threading.Thread(target=queue.take, args=(30,)) for _ in range(5)]
    for taker in takers:
        taker.start()
    for client in clients:
        eventually(lambda client=client: _armed(client.shell.core.running_listener.hub, takers=5))
    assert set(threading.enumerate()) - before == set(takers)
    for client in clients:
        client.close()
    for taker in takers:
        taker.join()


async def test_a_put_between_the_look_and_the_wait_is_found(queue, dbs, monkeypatch):
    """It sees no waiter and notifies nobody. The look at the newly armed server finds it."""
    enter = Hub.enter

    def put_and_enter(self, waiter):
        if waiter.names == ("q",) and not puts:
            puts.append(self)
            dbs[1].execute("SELECT pgqueue.put('q', '1')")
        return enter(self, waiter)

    puts = []
    assert await queue.take(0) is None
    monkeypatch.setattr(Hub, "enter", put_and_enter)
    assert (await queue.take(20)).data == 1


async def test_a_wake_up_between_two_sleeps_is_not_lost(queue, dbs, runs, monkeypatch):
    """It sets the signal just before that is replaced."""
    renew = Whole.renew

    def put_and_renew(self):
        wholes.append(self)
        if asleep and not puts:
            puts.append(self)
            dbs[2].execute("SELECT pgqueue.put('q', '1')")
            hub = unwrapped(queue)._members.all[2].client.shell.core.running_listener.hub
            eventually(lambda: not any(channel.waiters for channel in hub._channels.values()))
        renew(self)

    wholes, puts, asleep = [], [], []
    monkeypatch.setattr(Whole, "renew", put_and_renew)
    taking = asyncio.ensure_future(queue.take(20))
    await waits_everywhere(queue)
    await soon(lambda: len(set(runs.values())) == 1)  # each server has had its last look
    asleep.append(True)
    wholes[-1].signal.set()
    assert (await taking).data == 1


async def test_a_wake_up_before_the_last_look_is_not_lost(queue, dbs, monkeypatch):
    """It sets both signals of its waiter, and only the second one is awaited after the look."""
    enter = Hub.enter

    def enter_and_wake(self, waiter):
        poke = enter(self, waiter)
        if waiter.names == ("q",) and self not in woken:
            woken.append(self)
            self.signal(waiter.queues)
        return poke

    woken = []
    assert await queue.take(0) is None
    monkeypatch.setattr(Hub, "enter", enter_and_wake)
    taking = asyncio.ensure_future(queue.take(20))
    await waits_everywhere(queue)
    assert len(woken) == 3
    dbs[1].execute("SELECT pgqueue.put('q', '1')")
    assert (await taking).data == 1


async def test_a_take_that_is_cancelled_passes_on_its_wake_up(dsns, monkeypatch):
    clients = [pgqueue.AsyncClient(dsn, poll=None) for dsn in dsns]
    queue = pgqueue.AsyncCluster(clients).queue("q")
    first = asyncio.ensure_future(queue.take(20))
    await waits_everywhere(queue)
    second = asyncio.ensure_future(clients[0].queue("q").take(20))
    hub = clients[0].shell.core.running_listener.hub
    await soon(lambda: [len(channel.waiters) for channel in hub._channels.values()] == [2])
    loop, wake = asyncio.get_running_loop(), PartSignal.set

    def cancel_and_wake(self):
        loop.call_soon_threadsafe(first.cancel)
        wake(self)

    monkeypatch.setattr(PartSignal, "set", cancel_and_wake)
    await clients[0].queue("q").put("x")
    assert (await second).data == "x"
    with pytest.raises(asyncio.CancelledError):
        await first
    for client in clients:
        await client.close()


async def test_a_listener_that_is_cut_off_looks_again(queue, dbs):
    """The put comes while its server has no listener to notify."""
    taking = asyncio.ensure_future(queue.take(30))
    await waits_everywhere(queue)
    dbs[1].execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    dbs[1].execute("SELECT pgqueue.put('q', '1')")
    await (await taking).ack()


@pytest.mark.slow
async def test_a_take_follows_the_list_of_servers(queue, dbs):
    members = unwrapped(queue)._members
    first, second, third = members.all
    members.replace([first, second])
    taking = asyncio.ensure_future(queue.take(30))
    for one in (first, second):
        await soon(lambda one=one: (at := one.client.shell.core.running_listener) and _armed(at.hub))
    members.replace([first, third])
    await soon(lambda: (at := third.client.shell.core.running_listener) and _armed(at.hub))
    await soon(lambda: not _armed(second.client.shell.core.running_listener.hub))
    dbs[2].execute("SELECT pgqueue.put('q', '1')")
    assert (await taking).data == 1


async def test_a_client_that_closes_ends_the_wait(make, dsns):
    cluster = make(dsns)
    queue = cluster.queue("q")
    taking = asyncio.ensure_future(queue.take(20))
    await waits_everywhere(queue)
    for client in unwrapped(cluster).clients:
        await asyncio.to_thread(client.shell.core.close)
    assert await taking is None
    with pytest.raises(pgqueue.ClosedError):
        await queue.take(0)


@pytest.mark.parametrize("n", [0, -1, True, 1.5])
async def test_a_bad_number(queue, n):
    with pytest.raises(ValueError, match="n must be"):
        await queue.take_many(n)


# --- settling


async def test_a_task_is_acked_where_it_came_from(queue, dbs):
    """Their ids are the same."""
    for one in queue.queues:
        await one.put("x")
    tasks = await queue.take_many(3, 0)
    assert len({task.id for task in tasks}) == 1
    await tasks[1].ack()
    assert sorted(counts(dbs)) == [0, 1, 1]
    await tasks[0].release()
    await queue.ack_many(tasks[2:])
    assert sum(counts(dbs)) == 1


async def test_ack_many_asks_all_servers(queue, dbs):
    for one in queue.queues:
        await one.put_many(range(2))
    tasks = await queue.take_many(6, 0)
    lost = tasks[0]
    await lost.release()
    with pytest.raises(pgqueue.TaskNotTaken) as caught:
        await queue.ack_many(tasks)
    assert caught.value.task_id == lost.id
    assert sum(counts(dbs)) == 1


async def test_a_task_of_another_server_is_refused(queue, shell, dsn):
    other = shell.client(dsn).queue("q")
    await other.put("x")
    with pytest.raises(ValueError, match="none of these servers"):
        await queue.ack_many([await other.take(0)])
    assert (await other.stats())["taken"] == 1


async def test_stats(queue):
    for n in range(4):
        await queue.put(n, place=n)
    await queue.take(0)
    stats = await queue.stats()
    assert (stats["total"], stats["ready"], stats["taken"]) == (4, 3, 1)
    assert [one["total"] for one in await queue.stats_by_server()] == [2, 1, 1]


# --- when a server is away


@pytest.mark.slow
async def test_the_next_live_server_gets_what_is_put(make, dsns, dbs, down):
    queue = make([down, *dsns[1:]], connect_timeout=1).queue("q")
    for n in range(6):
        await queue.put(n, place=n)
    assert counts(dbs) == [0, 4, 2]
    assert sorted(task.data for task in await queue.take_many(10, 0)) == list(range(6))
    last = make([*dsns[1:], down], connect_timeout=1).queue("q")
    await last.put("x", place=2)
    assert counts(dbs) == [0, 5, 2]


async def test_a_put_that_may_move_does_not_wait_for_a_server_that_refuses(make, dsns, dbs, down):
    queue = make([down, *dsns[1:]], connect_timeout=60).queue("q")
    await asyncio.wait_for(queue.put("x", place=0), 30)
    assert counts(dbs) == [0, 1, 0]


@pytest.mark.slow
async def test_a_put_and_a_take_that_may_move_do_not_wait_while_packets_are_lost(hasty, make, dsns, dbs, dropping):
    queue = make([dropping, dsns[1]], connect_timeout=60).queue("q")
    await asyncio.wait_for(queue.put("x", place=0), 30)
    assert counts(dbs) == [0, 1, 0]
    assert (await asyncio.wait_for(queue.take(0), 30)).data == "x"


async def test_a_put_in_a_lane_does_not_wait_for_a_server_that_refuses(make, dsns, down):
    queue = make([down, *dsns[1:]], connect_timeout=60).queue("q")
    with pytest.raises(pgqueue.ServerError, match="refused"):
        await asyncio.wait_for(queue.put("x", lane="ann"), 30)  # of server 0


@pytest.mark.slow
async def test_a_put_in_a_lane_does_not_wait_for_a_server_that_refuses_since_a_moment_ago(make, dsns):
    with contextlib.closing(Proxy(dsns[0])) as proxy:
        queue = make([proxy.dsn, dsns[1]], connect_timeout=60).queue("q")
        await queue.put("x", lane="ann")
        with proxy.away(), pytest.raises(pgqueue.ServerError):
            await asyncio.wait_for(queue.put("y", lane="ann"), 30)


@pytest.mark.slow
async def test_a_put_in_a_lane_that_waits_for_room_waits_for_its_server_too(make, dsns, dbs, monkeypatch):
    monkeypatch.setattr(outages, "MOVES_ON", 0.01)
    with contextlib.closing(Proxy(dsns[0])) as proxy:
        queue = make([proxy.dsn, dsns[1]], connect_timeout=60).queue("q")
        with proxy.away():
            putting = asyncio.ensure_future(queue.put("x", lane="ann", timeout=60))
            await soon(lambda: proxy.attempts >= 5)  # it would give up before the second one
            assert not putting.done()
        await putting
    assert counts(dbs) == [1, 0, 0]


async def test_a_put_in_a_lane_of_the_only_server_waits_for_connect_timeout_and_no_longer(make, down):
    async def seconds(connect_timeout):
        queue, watch = make([down], connect_timeout=connect_timeout).queue("q"), Stopwatch()
        with pytest.raises(pgqueue.ServerError, match="refused"):
            await queue.put("x", lane="ann")
        return watch()

    async def longer() -> float:
        control, took = await seconds(0.01), await seconds(0.4)
        assert took >= 0.4
        return took - control

    await soon_enough(longer, within=1.4)


async def test_a_put_in_a_lane_waits_for_a_server_that_does_not_answer(make, silent, dsns, dbs, monkeypatch):
    """It may only be slow, and no other server may have the task."""
    monkeypatch.setattr(outages, "MOVES_ON", 0.01)
    queue = make([silent.dsn, dsns[1]], connect_timeout=60).queue("q")
    putting = asyncio.ensure_future(queue.put("x", lane="ann"))
    await asyncio.sleep(0.2)  # in which it would give up twenty times
    assert not putting.done()
    silent.go_on()
    await putting
    assert counts(dbs) == [1, 0, 0]


async def test_a_put_in_a_lane_of_a_server_that_rests_fails_at_once(make, dsns, down):
    queue = make([down, *dsns[1:]], connect_timeout=60, retry=60).queue("q")
    await asyncio.wait_for(queue.put("x", place=0), 30)  # which finds the server down
    with pytest.raises(pgqueue.ServerError, match="refused"):
        await asyncio.wait_for(queue.put("x", lane="ann"), 30)


@pytest.fixture
def silent(dsns):
    """A proxy before the first server, which answers nothing until it goes on. An attempt would last a minute."""
    with contextlib.closing(Proxy(dsns[0])) as proxy:
        proxy.dsn = make_conninfo(proxy.dsn, connect_timeout=60)
        with proxy.black_hole():
            yield proxy


@pytest.mark.slow
async def test_a_put_that_may_move_does_not_wait_for_a_server_that_does_not_answer(
    hasty, make, silent, dsns, dbs, monkeypatch
):
    cluster = make([silent.dsn, dsns[1]], connect_timeout=60)
    await asyncio.wait_for(cluster.queue("q").put("x", place=0), 30)
    await asyncio.wait_for(cluster.queue("q").put_many(["y"], place=0), 30)
    assert counts(dbs) == [0, 2, 0]
    slow = unwrapped(cluster)._members.all[0]
    assert not slow.failed
    silent.go_on()
    await soon(lambda: slow.client.shell.core._conninfo)  # the first attempt went on
    await soon(lambda: not slow.is_slow())
    monkeypatch.setattr(outages, "MOVES_ON", PATIENCE)
    await cluster.queue("q").put("z", place=0)
    assert counts(dbs) == [1, 2, 0]


async def test_a_take_goes_on_without_a_server_that_does_not_answer(hasty, make, silent, dsns, dbs):
    queue = make([silent.dsn, dsns[1]], connect_timeout=60).queue("q")
    value(dbs[0], "SELECT id FROM pgqueue.put('q', '\"of the silent one\"')")
    await asyncio.wait_for(asyncio.gather(queue.take(0), queue.take(0)), 30)
    value(dbs[1], "SELECT id FROM pgqueue.put('q', '\"of the other\"')")
    assert (await asyncio.wait_for(queue.take(60), 30)).data == "of the other"
    taking = asyncio.ensure_future(queue.take(60))
    silent.go_on()
    assert (await taking).data == "of the silent one"


async def test_the_last_server_is_waited_for_if_it_is_slow(make, silent, dbs, monkeypatch):
    monkeypatch.setattr(outages, "MOVES_ON", 0.01)
    queue = make([silent.dsn], connect_timeout=60).queue("q")
    putting, taking = asyncio.ensure_future(queue.put("x")), asyncio.ensure_future(queue.take(60))
    await asyncio.sleep(0.2)  # in which it would give up twenty times
    assert not putting.done()
    silent.go_on()
    await putting
    assert (await taking).data == "x"


async def test_slow_servers_are_waited_for_if_all_are(make, silent, dsns, dbs, monkeypatch):
    monkeypatch.setattr(outages, "MOVES_ON", 0.01)
    with contextlib.closing(Proxy(dsns[1])) as other:
        other.swallow()
        dsn = make_conninfo(other.dsn, connect_timeout=60)
        queue = make([silent.dsn, dsn], connect_timeout=60).queue("q")
        putting = asyncio.ensure_future(queue.put("x", place=0))
        await asyncio.sleep(0.2)
        assert not putting.done()
        other.go_on()
        await putting
        assert counts(dbs) == [0, 1, 0]
        silent.go_on()


async def test_a_call_waits_for_connect_timeout_if_all_servers_are_silent(make, silent, dsns, monkeypatch):
    """An attempt to connect would last a minute."""
    monkeypatch.setattr(outages, "MOVES_ON", 0.01)
    with contextlib.closing(Proxy(dsns[1])) as other, other.black_hole():
        dsn = make_conninfo(other.dsn, connect_timeout=60)
        queue = make([silent.dsn, dsn], connect_timeout=0.3).queue("q")
        for call in (queue.put("x"), queue.take(0)):
            with pytest.raises(pgqueue.ServerError, match="none of the 2 servers"):
                await asyncio.wait_for(call, 30)


@pytest.mark.parametrize("order", [1, -1])
async def test_a_slow_server_is_waited_for_if_the_others_refuse(make, silent, down, dbs, monkeypatch, order):
    """Whichever comes first: the call moves on from the slow one, and the other one is away."""
    monkeypatch.setattr(outages, "MOVES_ON", 0.01)
    queue = make([silent.dsn, down][::order], connect_timeout=60).queue("q")
    putting, taking = asyncio.ensure_future(queue.put("x", place=0)), asyncio.ensure_future(queue.take(0))
    await asyncio.sleep(0.2)  # in which it would give up twenty times
    assert not putting.done()
    assert not taking.done()
    silent.go_on()
    await putting
    assert counts(dbs) == [1, 0, 0]
    await taking


@pytest.mark.slow
async def test_a_server_that_stays_silent_rests(hasty, make, dsns, dbs):
    """Its first attempt to connect fails after two seconds, and then it is known to be away."""
    with contextlib.closing(Proxy(dsns[0])) as proxy, proxy.black_hole():
        cluster = make([proxy.dsn, dsns[1]], connect_timeout=60, retry=60)
        server = unwrapped(cluster)._members.all[0]
        n = 0
        while not server.failed:
            await asyncio.wait_for(cluster.queue("q").put(n, place=0), 30)
            n += 1
        assert counts(dbs) == [0, n, 0]


@pytest.mark.slow
async def test_a_put_that_was_sent_is_not_put_elsewhere(make, dsns, dbs, monkeypatch):
    """The server accepts connections before, and then nothing more comes: whether the task was put is unknown."""
    with contextlib.closing(Proxy(dsns[0])) as proxy:
        clients = make([proxy.dsn, dsns[1]])
        await clients.queue("q").put("before", place=0)
        monkeypatch.setattr(outages, "MOVES_ON", 0.3)
        for client in unwrapped(clients).clients:
            hurry(client, call_timeout=1.0)
        with proxy.black_hole():
            with pytest.raises(pgqueue.ConnectionLost):
                await clients.queue("q").put("sent", place=0)
            assert counts(dbs)[1:] == [0, 0]
            await clients.queue("q").put("after", place=0)
        assert counts(dbs)[1:] == [1, 0]


@pytest.mark.slow
async def test_the_last_server_is_waited_for(make, down):
    watch = Stopwatch()
    with pytest.raises(pgqueue.ServerError):
        await make([down], connect_timeout=1).queue("q").put("x")
    assert watch() >= 1


def test_a_put_that_may_move_waits_for_a_connection_that_is_in_use(dsns, dbs, monkeypatch):
    """The server is there, although an earlier attempt to connect had failed."""
    with (
        pgqueue.Client(dsns[0], pool_size=1) as busy,
        pgqueue.Client(dsns[1]) as other,
        pgqueue.Cluster([busy, other]) as cluster,
        ThreadPoolExecutor(2) as threads,
    ):
        cluster.queue("q").put(0, place=0)
        monkeypatch.setattr(outages, "MOVES_ON", 0.01)  # since then: that put may take longer to connect
        dbs[0].execute("BEGIN")
        dbs[0].execute("SELECT pgqueue.put('q', '0', key => 'k')")
        pool = busy.shell.connections._pools[False]
        pool._attempts.failure = psycopg.OperationalError("it was away")
        holding = threads.submit(busy.queue("q").put, 1, key="k")
        eventually(lambda: row(dbs[1], PUTTING))
        moving = threads.submit(cluster.queue("q").put, 2, place=0)
        eventually(lambda: pool.front._waiting)
        time.sleep(0.1)  # in which it would give up ten times
        dbs[0].execute("ROLLBACK")
        holding.result(30)
        moving.result(30)
        assert counts(dbs) == [3, 0, 0]


async def test_the_others_are_taken_from_and_counted(make, dsns, down):
    queue = make([dsns[0], down], connect_timeout=1).queue("q")
    taking = asyncio.ensure_future(queue.take(20))
    await soon(
        lambda: (found := unwrapped(queue)._members.all[0].client.shell.core.running_listener) and _armed(found.hub)
    )
    await queue.put("x", place=0)
    await (await taking).ack()
    assert await queue.take(0) is None
    assert await queue.take(0.05) is None
    assert [one and one["total"] for one in await queue.stats_by_server()] == [0, None]
    assert (await queue.stats())["total"] == 0


async def test_a_take_that_waits_at_one_server_in_vain_does_not_fail_for_another_one(make, dsns, down, monkeypatch):
    """The time is over while the server that is down is tried, and before the other one's take looks at its own."""
    queue = make([dsns[0], down], connect_timeout=1, retry=60).queue("q")
    assert await queue.take(0) is None

    def check(server):
        time.sleep(0.5)
        raise pgqueue.ServerError("down")

    monkeypatch.setattr(Server, "check", check)
    assert await queue.take(0.2) is None


@pytest.mark.slow
async def test_all_are_down(make, down):
    queue = make([down, down], connect_timeout=1).queue("q")
    for call in (queue.put("x", place=1), queue.take(0), queue.take(0.1), queue.take(), queue.stats()):
        with pytest.raises(pgqueue.ServerError, match="none of the 2 servers"):
            await call


async def test_a_put_of_which_nobody_knows_is_not_repeated(make, dsns, dbs):
    """It waits for a transaction that has its key; then the server ends the connection."""
    queue = make(dsns).queue("q")
    with psycopg.connect(dsns[0]) as other:
        other.execute("SELECT pgqueue.put('q', '0', key => 'k')")
        putting = asyncio.ensure_future(queue.put(1, place=0, key="k"))
        pid = await soon(lambda: row(dbs[0], PUTTING))
        rows(dbs[0], "SELECT pg_terminate_backend(%s::int)", *pid)
        with pytest.raises(pgqueue.ConnectionLost):
            await putting
        other.rollback()
    assert counts(dbs) == [0, 0, 0]
    await queue.put(1, place=0, key="k")
    assert counts(dbs) == [0, 1, 0]


async def test_another_error_is_the_callers(queue, dbs):
    await queue.put(1, place=0, key="k")
    with pytest.raises(pgqueue.KeyExists):
        await queue.put(2, place=0, key="k", if_exists="error")
    with pytest.raises(pgqueue.BadData):
        await queue.put({1}, place=0)
    assert counts(dbs) == [1, 0, 0]


class Down:
    """Makes a server fail its calls, and counts them."""

    def __init__(self, server):
        self.server = server
        self.calls = 0

    def call(self):
        with self.server.asked():
            self.calls += 1
            raise pgqueue.ServerError("down")


class Named(str):
    """As a client whose calls wait for a minute."""

    shell = SimpleNamespace(settings=SimpleNamespace(patience=60.0))


def test_who_failed_rests_and_is_tried_by_one_call():
    now = 0.0
    servers: Servers[Any] = Servers([None] * 3, 5.0)
    servers.all[:] = [Server[Any](Named(name), 5.0, lambda: now) for name in "abc"]

    def asked(first):
        """The servers of the first round."""
        turns = servers.to_ask(servers.all[first])
        return "".join(server.client for server, _ in itertools.takewhile(lambda turn: not turn[1], turns))

    assert [asked(first) for first in range(3)] == ["abc", "bca", "cab"]
    with pytest.raises(pgqueue.ServerError):
        Down(servers.all[1]).call()
    assert [asked(first) for first in range(3)] == ["ac", "ca", "ca"]
    now = 4.9
    assert asked(0) == "ac"
    now = 5.0
    assert next(servers.to_ask(servers.all[0]))[0].client == "a"  # and no more: the try of b is not used up
    assert asked(0) == "abc"
    assert asked(0) == "ac"  # b is being tried
    now = 10.0
    assert asked(0) == "abc"
    for server in (servers.all[0], servers.all[2]):
        with pytest.raises(pgqueue.ServerError):
            Down(server).call()
    assert asked(2) == "cab"  # when all rest, all are asked


def turns(servers: Servers[Any], answers: dict[str, list[Exception | None]]) -> str:
    """The servers that a call asks in vain. `answers`: how each turn of a server ends."""
    asked = ""
    for server, _ in servers.to_ask(servers.all[0]):
        asked += server.client
        server.ended(answers[server.client].pop(0))
    return asked


def test_a_slow_server_is_asked_behind_the_others_until_it_fails():
    servers: Servers[Any] = Servers([], 5.0)
    servers.replace([Server[Any](Named(name), 5.0, lambda: 0.0) for name in "abcd"])
    slow, away = Slow("one more time"), pgqueue.ServerError("away")
    servers.all[1].ended(slow)  # of another call
    servers.all[3].ended(away)
    assert turns(servers, {"a": [slow, away], "b": [slow, slow, away], "c": [slow, away]}) == "ac" + "abc" + "b" + "b"


def test_a_server_that_another_thread_reaches_is_asked_again_by_a_call_for_which_it_was_slow():
    servers: Servers[Any] = Servers([], 5.0)
    servers.replace([Server[Any](Named(name), 5.0, lambda: 0.0) for name in "ab"])
    a, b = servers.all
    asked = servers.to_ask(a)
    assert next(asked) == (a, False)
    a.ended(Slow("of this call"))
    a.ended(None)  # of the other thread's
    assert next(asked) == (b, False)
    b.ended(pgqueue.ServerError("down"))
    assert next(asked) == (a, True)


async def test_the_clients_that_were_given_stay_open(dsns, shell):
    given = shell.client(dsns[0])
    kind = pgqueue.AsyncCluster if shell.name == "async" else pgqueue.Cluster
    cluster: Any = kind([unwrapped(given), dsns[1]], connect_timeout=1.5)
    async with cluster if shell.name == "async" else Awaitable(cluster, shell._threads) as inside:
        await inside.queue("q").put("x", place=1)
        assert inside.clients[1].shell.core.settings.connect_timeout == 1.5
    await given.queue("q").put("x")
    with pytest.raises(pgqueue.ClosedError):
        cluster.clients[1].shell.core.conninfo()


@pytest.mark.parametrize(
    ("servers", "options"),
    [
        ([], {}),
        ("postgresql://one", {}),
        ([7], {}),
        ([None], {}),
        (["postgresql://one"], {"retry": 0}),
        (["postgresql://one"], {"retry": None}),
        (["postgresql://one"], {"connect_timeout": -1}),
    ],
)
@pytest.mark.parametrize("kind", [pgqueue.Cluster, pgqueue.AsyncCluster])
def test_what_cannot_be_a_cluster(kind, servers, options):
    with pytest.raises(ValueError, match=r"list|DSN|retry|connect_timeout"):
        kind(servers, **options)


# --- a server that goes and comes back


class Stoppable:
    """A durable server of the test's own."""

    def __init__(self, root, bindir):
        self._root = root
        self._server = EmbeddedServer(root, durable=True, ephemeral=True, bindir=bindir).start()
        self.dsn = self._server.dsn()
        migrate.up(self.dsn)

    def go_down(self):
        postmaster = reaper.find(self._root)
        os.kill(postmaster.pid, signal.SIGINT)
        eventually(lambda: not reaper.is_postgres(postmaster.pid))

    def processes(self):
        """Its postmaster, and the children of that."""
        postmaster = reaper.find(self._root).pid
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        return [postmaster, *map(int, children)]

    def kill(self):
        pids = self.processes()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # the death of the postmaster ends the others
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(map(reaper.is_postgres, pids)))

    @contextlib.contextmanager
    def stopped(self):
        """It does not answer, and keeps its connections."""
        pids = self.processes()
        try:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # one of autovacuum that has ended since
                    os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # one that the postmaster has ended in the meantime
                    os.kill(pid, signal.SIGCONT)

    def come_back(self):
        self._server.start()

    def stop(self):
        self._server.stop()


@pytest.fixture
def private(pg_server, request):
    bindir = None
    if pg_server.kind == "system":
        _, _, given = request.config.getoption("--pg").partition(":")
        bindir = Path(given) if given else system_binaries()[0]
    elif pg_server.kind != "embedded":
        pytest.skip(f"a server of kind {pg_server.kind} is not ours to stop")
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # it tells of each broken connection
    root = Path(tempfile.mkdtemp(prefix="pgqueue-cluster-"))
    root.chmod(0o711)  # for the account that the server runs as
    server = Stoppable(root, bindir)
    try:
        yield server
    finally:
        server.stop()
        logging.getLogger("psycopg.pool").setLevel(logging.NOTSET)


@pytest.mark.slow
async def test_tasks_of_a_dead_server_wait_for_it(make, private, dsns, dbs):
    """What it holds comes when it is back; what is put meanwhile goes elsewhere and is taken; then it serves again."""
    queue = make([private.dsn, dsns[1]], connect_timeout=1, retry=0.5).queue("q")
    await queue.put("before", place=0)
    first = await queue.take(0)
    await first.forward("q", "handed on")  # an acked handover is as durable as any put
    await queue.put("too", place=0)
    await asyncio.to_thread(private.go_down)

    assert (await queue.put("meanwhile", place=0)).data == "meanwhile"
    assert counts(dbs) == [0, 1, 0]
    task = await queue.take(5)
    assert task.data == "meanwhile"
    await task.ack()
    assert [one and one["total"] for one in await queue.stats_by_server()] == [None, 0]

    taking = asyncio.ensure_future(queue.take_many(2, 60))
    await soon(lambda: _armed(unwrapped(queue)._members.all[1].client.shell.core.running_listener.hub))
    await asyncio.to_thread(private.come_back)
    tasks = await taking
    tasks += await queue.take_many(2, 60) if len(tasks) == 1 else []
    assert [task.data for task in tasks] == ["handed on", "too"]
    await queue.ack_many(tasks)
    task = await queue.put("after", place=0)
    assert [one["total"] for one in await queue.stats_by_server()] == [1, 0]
    assert (await task.peek()).data == "after"


@pytest.mark.slow
async def test_a_connection_counts_also_after_a_restart_of_its_server(shell, make, private, dsns):
    """A restart that no call has noticed: where the server was is not where it is."""
    queue = make([dsns[0], private.dsn], connect_timeout=1).queue("q")
    await queue.put("before", place=1)
    await asyncio.to_thread(private.go_down)
    await asyncio.to_thread(private.come_back)
    conn = await shell.connection(private.dsn)
    await queue.put("after", conn=conn)
    await conn.commit()
    assert [one["total"] for one in await queue.stats_by_server()] == [0, 2]


@pytest.mark.slow
async def test_a_take_waits_on_while_a_server_is_killed(make, private, dsns, dbs):
    queue = make([private.dsn, dsns[1]], connect_timeout=1).queue("q")
    first, second = (asyncio.ensure_future(queue.take(60)) for _ in range(2))
    await waits_everywhere(queue)
    await asyncio.to_thread(private.kill)
    await queue.queues[1].put("of the other")
    (done,), (waiting,) = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
    assert (await done).data == "of the other"
    await asyncio.to_thread(private.come_back)
    with psycopg.connect(private.dsn, autocommit=True) as db:
        db.execute("SELECT pgqueue.put('q', '\"of the one that came back\"')")
    assert (await waiting).data == "of the one that came back"


@pytest.mark.slow
async def test_a_put_moves_on_from_a_stopped_server(hasty, make, private, dsns, dbs):
    """Its socket accepts connections, and it starts no process for them."""
    cluster = make([make_conninfo(private.dsn, connect_timeout=60), dsns[1]], connect_timeout=60)
    with private.stopped():
        await asyncio.wait_for(cluster.queue("q").put("x", place=0), 30)
        await asyncio.wait_for(cluster.queue("q").take(0), 30)
    assert counts(dbs) == [0, 1, 0]


@pytest.mark.slow
async def test_a_silent_server_holds_up_one_take(make, private, dsns):
    """It keeps its connections and answers nothing. It rests, and its tasks come once it answers again."""
    queue = make([private.dsn, dsns[1]], connect_timeout=1, retry=3).queue("q")
    await queue.put("of the silent one", place=0)
    await (await queue.take(0)).release()
    for n in range(20):
        await queue.put(n, place=1)
    with private.stopped():
        watch = Stopwatch()
        tasks = [await queue.take(0) for _ in range(20)]
        assert sorted(task.data for task in tasks) == list(range(20))
        assert watch() < 1 + 3  # the client's connect_timeout, and less than one for each take
        await queue.ack_many(tasks)
        taking = asyncio.ensure_future(queue.take(60))
        await asyncio.sleep(0.1)
        await queue.queues[1].put("of the other")
        assert (await taking).data == "of the other"
        taking = asyncio.ensure_future(queue.take(60))
        await asyncio.sleep(0.1)
    assert (await taking).data == "of the silent one"
