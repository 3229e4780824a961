"""The servers of a cluster by their table: the members, their changes, and servers that are not what they should be.

The servers are databases of one server; one that is killed is a private server of the test's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest
from eventually import eventually, soon
from members import change, copy
from psycopg.conninfo import make_conninfo
from statements import value
from waiters import hears

import pgqueue
from pgqueue import migrate
from pgqueue._calls.server import Whereabouts
from pgqueue._engine.cluster.members import Listed
from pgqueue._engine.cluster.servers import Server, Servers
from pgqueue.embedded import EmbeddedServer, reaper
from pgqueue.errors import ClusterError, ServerError

pytestmark = pytest.mark.once


@pytest.fixture
def dsns(pg_server, lender, without_password):
    """Four numbered servers."""
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(1, 5):
            dsn = without_password(pg_server.dsn(stack.enter_context(lender.lent())))
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("SELECT pgqueue.set_server(%s)", [number])
            found.append(dsn)
        yield found


@pytest.fixture
def dbs(dsns):
    """Connections to the servers of a cluster of three, and to the fourth server."""
    conns = [psycopg.connect(dsn, autocommit=True) for dsn in dsns]
    for number, dsn in enumerate(dsns[:3], 1):
        change(conns[:1], "add_server", number, dsn)
    for conn in conns[1:3]:
        copy(conns[0], conn)
    yield conns
    for conn in conns:
        conn.close()


@pytest.fixture
def cluster(dsns, dbs) -> Iterator[pgqueue.Cluster]:
    with pgqueue.Cluster.from_server(dsns[1], retry=0.2) as cluster:
        yield cluster


def numbers(cluster):
    return [server.listed.number for server in cluster._members.all]


def counts(dbs):
    return [value(db, "SELECT count(*) FROM pgqueue.task") for db in dbs]


# --- members


@pytest.mark.slow
def test_any_server_tells_the_members_and_the_home_server_is_first(cluster, dbs):
    assert numbers(cluster) == [1, 2, 3]
    queue = cluster.queue("q")
    tasks = [queue.put(n) for n in range(6)]
    assert sorted(task.id >> 43 for task in tasks) == [1, 1, 2, 2, 3, 3]
    assert counts(dbs) == [2, 2, 2, 0]


@pytest.mark.slow
def test_the_first_server_of_a_list_that_answers_is_asked(dsns, dbs):
    down = make_conninfo(dsns[0], host="127.0.0.1", port="1")
    with pgqueue.Cluster.from_server([down, dsns[2]], connect_timeout=1) as cluster:
        assert numbers(cluster) == [1, 2, 3]
    with pytest.raises(ServerError, match="none of the servers that were given") as error:
        pgqueue.Cluster.from_server([down, down], connect_timeout=0.2)
    assert str(error.value).count("port=1 ") == 2


async def test_awaiting_clients_have_the_same_members(dsns, dbs):
    async with await pgqueue.AsyncCluster.from_server(dsns[0]) as cluster:
        assert numbers(cluster) == [1, 2, 3]
        task = await cluster.queue("q").put(1, place="ann")
        assert task.id >> 43 in (1, 2, 3)


def test_a_server_without_a_cluster_is_refused_by_its_name(dsns):
    with pytest.raises(ClusterError, match=r"dbname=\S+ .*belongs to no cluster: `pgqueue cluster add`"):
        pgqueue.Cluster.from_server(dsns[0])


def test_a_catalogue_that_is_not_there_is_told(dsns):
    with psycopg.connect(dsns[0]) as conn:
        conn.execute("DROP EXTENSION IF EXISTS citus CASCADE")
    with pytest.raises(ClusterError, match=r"cannot be read from .*pg_dist_node"):
        pgqueue.Cluster.from_citus(dsns[0])


# --- changes


@pytest.mark.slow
def test_a_new_server_gets_puts_and_is_taken_from(cluster, dsns, dbs):
    change(dbs, "add_server", 4, dsns[3])
    eventually(lambda: numbers(cluster) == [1, 2, 3, 4])
    for n in range(4):
        cluster.queue("q").put(n)
    assert counts(dbs) == [1, 1, 1, 1]
    assert len(cluster.queue("q").take_many(4, 5)) == 4


@pytest.mark.slow
def test_a_take_that_waits_takes_from_a_server_that_joins(cluster, dsns, dbs):
    found = []
    thread = threading.Thread(target=lambda: found.append(cluster.queue("q").take(30)))
    thread.start()
    change(dbs, "add_server", 4, dsns[3])
    eventually(lambda: numbers(cluster) == [1, 2, 3, 4])
    value(dbs[3], "SELECT id FROM pgqueue.put('q', '1')")
    thread.join(30)
    assert found[0].id >> 43 == 4


@pytest.mark.slow
def test_a_draining_server_gets_no_puts_that_may_be_elsewhere_and_is_taken_from(cluster, dbs):
    queue = cluster.queue("q")
    before = [queue.put(n, place=f"user {n}") for n in range(30)]
    change(dbs[:3], "set_server_state", 2, "draining")
    eventually(lambda: [server.is_active for server in cluster._members.all] == [True, False, True])
    after = [queue.put(n, place=f"user {n}") for n in range(30)] + [queue.put(n) for n in range(5)]
    assert {task.id >> 43 for task in before} == {1, 2, 3}
    assert {task.id >> 43 for task in after} == {1, 3}
    stayed = [(old.id >> 43, new.id >> 43) for old, new in zip(before, after, strict=False) if old.id >> 43 != 2]
    assert all(old == new for old, new in stayed)
    assert len(queue.take_many(100, 5)) == 65


@pytest.mark.slow
def test_a_server_that_is_gone_is_left_and_its_tasks_are_settled_there(cluster, dbs):
    queue = cluster.queue("q")
    for n in range(3):
        queue.put(n)
    tasks = queue.take_many(3, 5)
    change(dbs[:3], "set_server_state", 3, "draining")
    change(dbs[:3], "remove_server", 3)
    eventually(lambda: numbers(cluster) == [1, 2])
    queue.ack_many(tasks)
    assert counts(dbs) == [0, 0, 0, 0]
    with pgqueue.Cluster.from_server(cluster.clients[0].dsn()) as later:
        assert numbers(later) == [1, 2]


@pytest.mark.slow
def test_a_change_while_the_notification_was_lost_is_seen_with_the_next_connection(cluster, dsns, dbs):
    home = cluster.clients[0].shell.core
    eventually(lambda: home.running_listener and home.running_listener.session)
    eventually(lambda: hears(cluster.clients[0], "pgqueue:servers"))
    dbs[0].execute("BEGIN")
    dbs[0].execute("SELECT pgqueue.add_server(4, %s)", [dsns[3]])
    dbs[0].execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'pgqueue listener' AND datname = current_database()"
    )
    dbs[0].execute("COMMIT")
    eventually(lambda: numbers(cluster) == [1, 2, 3, 4])


def test_an_older_copy_and_one_of_another_cluster_change_nothing(cluster, dbs):
    following = cluster._following
    listing = following._listing
    following._adopt(type(listing)(listing.servers[:1], listing.version - 1, listing.cluster))
    following._adopt(type(listing)(listing.servers[:1], listing.version + 1, uuid4()))
    assert numbers(cluster) == [1, 2, 3]
    following._adopt(type(listing)(listing.servers[:1], listing.version + 1, listing.cluster))
    assert numbers(cluster) == [1]


def test_an_idle_cluster_reads_the_table_only_after_changes(cluster, dbs, monkeypatch):
    """The look for another server to hear, every TICK seconds, sends nothing."""
    eventually(lambda: cluster._following._ears)
    eventually(lambda: cluster._following._told.empty())
    asked = []
    listener = next(iter(cluster._following._ears))
    monkeypatch.setattr(listener, "ask", lambda call, done: asked.append(call) or done.set())
    for _ in range(3):
        list(cluster._following._read(cluster._following._listeners()))
    assert asked == []


# --- servers that are not what they should be


@pytest.mark.slow
def test_a_server_with_another_number_rests_and_the_others_go_on(dsns, dbs, caplog):
    change(dbs[:3], "add_server", 2, dsns[3])  # the DSN of server 4
    with caplog.at_level(logging.WARNING), pgqueue.Cluster.from_server(dsns[0]) as cluster:
        queue = cluster.queue("q")
        assert {queue.put(n).id >> 43 for n in range(6)} == {1, 3}
        assert len(queue.take_many(10, 5)) == 6
        with pytest.raises(ServerError, match=r"server 2 \(.*\) has the number 4 in its database"):
            put_at(cluster, 2)
    assert counts(dbs)[3] == 0
    assert "server 2 (" in caplog.text
    assert "rests for 5 s" in caplog.text


def put_at(cluster, number):
    """A put that may be on this server only."""
    lane = next(f"lane {n}" for n in range(1000) if at(cluster, f"lane {n}") == number)
    cluster.queue("q").put(1, lane=lane)


def at(cluster, place):
    return cluster._members.placed(place).listed.number


@pytest.mark.slow
def test_a_server_with_another_schema_version_rests_and_is_named(dsns, dbs, caplog):
    dbs[2].execute("UPDATE pgqueue.schema_version SET version_num = '9999'")
    with caplog.at_level(logging.WARNING), pgqueue.Cluster.from_server(dsns[0]) as cluster:
        assert {cluster.queue("q").put(n).id >> 43 for n in range(6)} == {1, 2}
        assert len(cluster.queue("q").take_many(10, 5)) == 6
    dbs[2].execute(
        "UPDATE pgqueue.schema_version SET version_num = %s", [value(dbs[0], "TABLE pgqueue.schema_version")]
    )
    assert "server 3 (" in caplog.text
    assert "9999" in caplog.text


def test_a_server_that_is_down_at_the_start_rests_and_is_named(dsns, dbs, caplog):
    change(dbs[:3], "add_server", 2, make_conninfo(dsns[1], host="127.0.0.1", port="1"))
    with caplog.at_level(logging.WARNING), pgqueue.Cluster.from_server(dsns[0]) as cluster:
        assert {cluster.queue("q").put(n).id >> 43 for n in range(6)} == {1, 3}
    assert "server 2 (host=127.0.0.1 port=1" in caplog.text


def found(number=2, timeline=1, system=7):
    """Where a connection led, for Server.expect."""
    return Whereabouts(system, datetime.now(UTC), 5, number, timeline)


def test_a_standby_and_an_old_primary_are_refused_by_their_timeline():
    with pgqueue.Client("service=db2") as client:
        server = Server(client, 5.0, listed=Listed(2, 2, "service=db2"))
        with pytest.raises(ServerError, match=r"server 2 .* is a standby"):
            server.expect(found(timeline=None))
        server.expect(found())
        server.whereabouts = found(timeline=2)
        with pytest.raises(ServerError, match=r"server 2 .* is an old primary: it is at timeline 1"):
            server.expect(found(timeline=1))
        server.expect(found(timeline=1, system=8))  # restored from a dump


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 7, 19])
def test_few_places_move_when_a_server_joins_or_drains(n):
    def servers(states):
        made = Servers([], 5.0)
        made.replace([Server(None, 5.0, listed=Listed(k, k, "", state=state)) for k, state in enumerate(states, 1)])
        return made

    def number(servers, key):
        return servers.placed(key).listed.number

    keys = [*range(5_000), *(f"user {number}" for number in range(5_000))]
    before, after = servers(["active"] * n), servers(["active"] * (n + 1))
    moved = [key for key in keys if number(before, key) != number(after, key)]
    assert {number(after, key) for key in moved} == {n + 1}
    assert len(moved) <= 10_000 * (1 / (n + 1) + 0.05)
    drained = servers(["active"] * n + ["draining"])
    assert [number(drained, key) for key in keys] == [number(before, key) for key in keys]


@pytest.mark.parametrize("kind", [pgqueue.Cluster, pgqueue.AsyncCluster])
async def test_a_lane_has_one_server_in_both_shells_also_after_a_change(dsns, dbs, kind):
    """Else a job that is put by `put` and by `aput` has its lane twice."""
    if kind is pgqueue.Cluster:
        made = await asyncio.to_thread(kind.from_server, dsns[0])
        other = made.aio
    else:
        made = await kind.from_server(dsns[0])
        other = made._blocking

    def numbers(cluster):
        return [at(cluster, f"lane {n}") for n in range(100)]

    assert numbers(made) == numbers(other)
    assert set(numbers(other)) == {1, 2, 3}
    change(dbs[:3], "set_server_state", 3, "draining")
    await soon(lambda: set(numbers(other)) == {1, 2})
    assert numbers(made) == numbers(other)
    await (made.aio if kind is pgqueue.Cluster else made).close()
    assert all(client.shell.core.closed for client in made.clients)


@pytest.fixture
def fourth(dsns, dbs):
    """A private server, number 9, in the cluster beside the three."""
    with EmbeddedServer(durable=True, ephemeral=True) as server:
        migrate.up(server.dsn(), server=9)
        change(dbs[:3], "add_server", 9, server.dsn())
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            copy(dbs[0], conn)
        yield server


@pytest.mark.slow
def test_a_killed_server_rests_and_works_again_after_its_restart(fourth, dsns):
    """kill -9, while puts and takes go on at the others; then what it had is taken."""
    with pgqueue.Cluster.from_server(dsns[0], retry=0.2, connect_timeout=1) as cluster:
        queue = cluster.queue("q")
        assert {queue.put(n).id >> 43 for n in range(4)} == {1, 2, 3, 9}
        postmaster = reaper.find(fourth.root)
        os.kill(postmaster.pid, signal.SIGKILL)
        eventually(lambda: not reaper.is_postgres(postmaster.pid))
        assert {put_until_placed(queue, n).id >> 43 for n in range(20)} == {1, 2, 3}
        taken = queue.take_many(100, 5)
        assert {task.id >> 43 for task in taken} == {1, 2, 3}
        fourth.start()
        eventually(lambda: cluster._members.all[3].whereabouts and 9 in {queue.put(1).id >> 43 for _ in range(4)})
        taken += eventually(lambda: [task for task in queue.take_many(100, 1) if task.id >> 43 == 9])
        queue.ack_many([task for task in taken if task.id >> 43 != 9])


def put_until_placed(queue, data):
    """A put; the first one after a kill may lose its connection, and is then put again."""
    try:
        return queue.put(data)
    except pgqueue.ConnectionLost:
        return queue.put(data)
