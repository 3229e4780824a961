"""Workers that each serve some of a cluster's servers: all are served, whichever workers and servers come and go.

The servers are databases of one server, with numbers of their own, in a table of servers.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading

import psycopg
import pytest
import roles
from eventually import Stopwatch, eventually, in_time
from lending import NOT_THE_LENDERS
from processes import programs
from psycopg.types.json import Jsonb
from running import running
from statements import rows, value

import pgqueue
from pgqueue import migrate
from pgqueue.embedded import EmbeddedServer, reaper
from pgqueue.errors import NotAllowed
from pgqueue.worker.spread import Spread

pytestmark = pytest.mark.once


@pytest.fixture
def dbs(dsns, numbered):
    """A connection to each of the servers, all three in the table of servers. The first is the home server."""
    for number, dsn in enumerate(dsns, 1):
        numbered[0].execute("SELECT pgqueue.add_server(%s, %s)", (number, dsn))
    return numbered


@pytest.fixture
def program():
    with programs() as make:
        yield make


@contextlib.contextmanager
def working(dsn, handler=lambda data: None, **options):
    """A worker with a cluster of its own, in a thread, until the end of the block."""
    with (
        pgqueue.Cluster.from_server(dsn, connect_timeout=5, retry=0.2) as cluster,
        running(pgqueue.Worker(cluster, {"w": handler}, **options)) as worker,
    ):
        yield worker


def put(db, n, queue="w"):
    db.execute("SELECT pgqueue.put(%s, to_jsonb(i)) FROM generate_series(1, %s) i", (queue, n))


def left(dbs):
    return [value(db, "SELECT count(*) FROM pgqueue.task") for db in dbs]


def workers(dbs):
    """The processes that serve each server, as it knows them."""
    return [[pid for (pid,) in rows(db, "SELECT pid FROM pgqueue.workers")] for db in dbs]


def loads(dbs):
    return [len(one) for one in workers(dbs)]


def shared(dbs, expected, *workers):
    """Whether the servers have so many workers each, in any order, and these workers serve no others any more."""
    serve = sum(len(worker._front.cores) for worker in workers if worker._present)
    return sorted(loads(dbs)) == sorted(expected) and serve == sum(expected)


def connections(dbs):
    """To each of the databases, by process; without those of the test."""
    return [
        value(
            db,
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            f" AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND {NOT_THE_LENDERS}",
        )
        for db in dbs
    ]


def listeners(dbs):
    """The listeners at each server: each worker has one wherever it serves, and at the home server.

    A pool may have more connections than it needs for minutes.
    """
    found = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
    return [value(db, found, "pgqueue listener") for db in dbs]


@pytest.mark.slow
def test_each_serves_so_many_servers_and_all_are_served(dsns, dbs, program):
    """... and connects to those and to the home server only."""
    made = [program("spread_worker", dsns[0], 1) for _ in range(3)]
    eventually(lambda: sorted(workers(dbs)) == sorted([one.pid] for one in made))  # the first may have served all
    for db in dbs:
        put(db, 100)
    eventually(lambda: left(dbs) == [0, 0, 0])
    eventually(lambda: listeners(dbs) == [3, 1, 1])
    served = dict(zip([one[0] for one in workers(dbs)], (1, 2, 3), strict=True))
    for one in made:
        assert one.end() == 0
        handled = [one.hear() for _ in range(100)]
        assert {number for number, _ in handled} == {served[one.pid]}
        assert sorted(data for _, data in handled) == list(range(1, 101))
    assert loads(dbs) == [0, 0, 0]


@pytest.mark.slow
def test_the_servers_of_a_killed_worker_are_served_again_and_no_task_is_lost(dsns, dbs, program):
    handled = []

    def attempt():
        made = [program("spread_worker", dsns[0], 1, heard=handled.append) for _ in range(3)]
        eventually(lambda: sorted(workers(dbs)) == sorted([one.pid] for one in made))
        handled.clear()
        for db in dbs:
            put(db, 2000)
        eventually(lambda: {number for number, _ in handled} == {1, 2, 3})
        made[0].kill()
        watch, alive = Stopwatch(), {one.pid for one in made[1:]}
        eventually(lambda: all(served and {*served} <= alive for served in workers(dbs)))
        took = watch()
        eventually(lambda: left(dbs) == [0, 0, 0])
        for one in made[1:]:
            one.end()
        eventually(lambda: {tuple(one) for one in handled} == {(s, n) for s in (1, 2, 3) for n in range(1, 2001)})
        eventually(lambda: loads(dbs) == [0, 0, 0])
        return took

    in_time(attempt, 6)


@pytest.mark.slow
def test_servers_that_are_added_drained_and_removed_are_followed(dsns, numbered):
    home, dbs = numbered[0], numbered
    handled = []

    def handler(data, task):
        handled.append(task.id >> 43)

    for number in (1, 2):
        home.execute("SELECT pgqueue.add_server(%s, %s)", (number, dsns[number - 1]))
    with working(dsns[0], handler, spread=1) as one, working(dsns[0], handler, spread=1) as other:
        eventually(lambda: loads(dbs) == [1, 1, 0])
        home.execute("SELECT pgqueue.add_server(3, %s)", (dsns[2],))
        eventually(lambda: shared(dbs, [1, 1, 2], one, other))  # each serves two
        put(dbs[2], 5)
        eventually(lambda: handled.count(3) == 5)
        before = one._present, other._present
        home.execute("SELECT pgqueue.set_server_state(2, 'draining')")
        put(dbs[1], 5)
        eventually(lambda: handled.count(2) == 5)
        assert (one._present, other._present) == before
        home.execute("SELECT pgqueue.remove_server(2)")
        eventually(lambda: loads(dbs) == [1, 0, 1])
        eventually(lambda: connections(dbs)[1] == 0)
        for db in (dbs[0], dbs[2]):
            put(db, 5)
        eventually(lambda: (handled.count(1), handled.count(3)) == (5, 10))


@pytest.mark.slow
def test_a_task_under_way_is_acked_at_a_server_that_is_left_and_then_its_connections_end(dsns, dbs):
    handled, begun, release = [], threading.Semaphore(0), threading.Event()

    def handler(data, task):
        begun.release()
        release.wait(30)
        handled.append(task.id)

    with working(dsns[0], handler, spread=1) as one:
        eventually(lambda: loads(dbs) == [1, 1, 1])  # a worker alone serves all
        for db in dbs:
            put(db, 1)
        assert all(begun.acquire(timeout=30) for _ in dbs)
        with working(dsns[0], spread=1), working(dsns[0], spread=1):
            eventually(lambda: loads(dbs) == [1, 1, 1] and len(one._front.cores) == 1)
            assert left(dbs) == [1, 1, 1]
            release.set()
            eventually(lambda: left(dbs) == [0, 0, 0])
            assert len(handled) == len(set(handled)) == 3
            eventually(lambda: listeners(dbs) == [3, 1, 1])


def members(home):
    return {path for (path,) in rows(home, "SELECT path FROM pgqueue.nodes WHERE parent LIKE '/groups/spread-%%'")}


@pytest.mark.slow
def test_a_lost_connection_to_the_home_server_changes_nothing(dsns, dbs):
    """... and the members find each other again: the next worker is noticed."""
    home = dbs[0]
    with working(dsns[0], spread=1) as one, working(dsns[0], spread=1) as other:
        eventually(lambda: shared(dbs, [1, 1, 2], one, other))
        before = one._present, other._present
        had = members(home)
        home.execute(
            "SELECT pg_terminate_backend(pid::int) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        eventually(lambda: len(members(home)) == 2)
        assert (one._present, other._present) == before
        assert {path.rpartition("/")[2].partition(".")[0] for path in had} == {
            path.rpartition("/")[2].partition(".")[0] for path in members(home)
        }
        with working(dsns[0], spread=1):
            eventually(lambda: loads(dbs) == [1, 1, 1])


@pytest.mark.slow
def test_a_member_that_was_deleted_joins_again(dsns, dbs):
    home = dbs[0]
    with working(dsns[0], spread=1):
        eventually(lambda: loads(dbs) == [1, 1, 1])
        (path,) = members(home)
        home.execute("SELECT pgqueue.delete_node(%s)", (path,))
        eventually(lambda: members(home) == {path})


@pytest.mark.slow
def test_a_worker_whose_thread_was_ended_follows_the_others_again(dsns, dbs, caplog):
    with working(dsns[0], spread=1), working(dsns[0], spread=1):
        eventually(lambda: sorted(loads(dbs)) == [1, 1, 2])  # each serves two
        threads = [one for one in threading.enumerate() if one.name == "pgqueue-spread"]
        for one in threads:  # a thread sees it when it wakes: when the third worker joins
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(one.ident), ctypes.py_object(GeneratorExit))
        with working(dsns[0], spread=1):
            eventually(lambda: loads(dbs) == [1, 1, 1])
        said = [message for message in caplog.messages if "pgqueue-spread was ended by an error" in message]
        assert len(said) == len(threads) == 2


@pytest.mark.slow
def test_many_changes_at_once_are_read_once(dsns, dbs, monkeypatch):
    home, reads = dbs[0], []
    read = Spread._read
    monkeypatch.setattr(Spread, "_read", lambda self, *given: (reads.append(given), read(self, *given)))
    with working(dsns[0], spread=1) as worker:
        eventually(lambda: loads(dbs) == [1, 1, 1])
        before = len(reads)
        (path,) = members(home)
        group = path.split("/")[2]
        with home.transaction():
            for n in range(100):
                home.execute("SELECT pgqueue.join_group(%s, member => %s)", (group, f"other{n}.1.1"))
        eventually(lambda: len(worker._front.cores) == 1)
        assert len(reads) == before + 1


@pytest.mark.slow
def test_one_of_the_workers_that_serve_the_home_server_fires_schedules(dsns, dbs):
    with working(dsns[0], spread=1) as one, working(dsns[0], spread=1) as two, working(dsns[0], spread=1) as three:
        eventually(lambda: shared(dbs, [1, 1, 1], one, two, three))
        fire = [w._present._scheduling is not None for w in (one, two, three)]
        assert fire == [w._front.serves_home for w in (one, two, three)]
        assert sum(fire) == 1


@pytest.mark.slow
def test_workers_of_other_queues_share_the_servers_among_themselves(dsns, dbs):
    with working(dsns[0], spread=1) as one, working(dsns[0], spread=1) as other:
        eventually(lambda: sorted(loads(dbs)) == [1, 1, 2])
        with pgqueue.Cluster.from_server(dsns[0]) as cluster:
            apart = pgqueue.Worker(cluster, {"another": print}, spread=1)
            thread = threading.Thread(target=apart.run)
            thread.start()
            eventually(lambda: sorted(loads(dbs)) == [2, 2, 3])  # it serves all three
            assert (len(one._front.cores), len(other._front.cores)) == (2, 2)
            apart.stop()
            thread.join(30)


@pytest.mark.slow
def test_a_reload_keeps_the_servers(dsns, dbs):
    with working(dsns[0], spread=1) as one, working(dsns[0], spread=1) as other:
        eventually(lambda: shared(dbs, [1, 1, 2], one, other))
        before, cores = one._present, one._front.cores
        one.reload()
        eventually(lambda: one._present is not before)
        assert one._front.cores == cores
        eventually(lambda: len(members(dbs[0])) == 2)
        for db in dbs:
            put(db, 3)
        eventually(lambda: left(dbs) == [0, 0, 0])


@pytest.mark.slow
def test_as_many_as_there_are_servers_is_all_of_them(dsns, dbs):
    with working(dsns[0], spread=3) as one, working(dsns[0], spread=5) as other:
        eventually(lambda: loads(dbs) == [2, 2, 2])
        assert len(one._front.cores) == len(other._front.cores) == 3


@pytest.mark.slow
def test_a_stop_before_the_servers_are_chosen_ends_the_worker_and_a_closed_cluster_too(dsns, dbs):
    with working(dsns[0], spread=1) as worker:
        worker.stop()
    assert members(dbs[0]) == set()
    with pgqueue.Cluster.from_server(dsns[0]) as cluster:
        thread = threading.Thread(target=pgqueue.Worker(cluster, {"w": print}, spread=1).run)
        thread.start()
        eventually(lambda: loads(dbs) == [1, 1, 1])
        cluster.close()
        thread.join(30)
        assert not thread.is_alive()
        eventually(lambda: loads(dbs) == [0, 0, 0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pgqueue.Cluster, pgqueue.AsyncCluster])
def test_a_list_of_servers_without_a_table_has_the_option(dsns, numbered, kind):
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(3):
            cluster = kind(dsns)
            made.append(pgqueue.Worker(cluster, {"w": print}, spread=1))
            thread = threading.Thread(target=made[-1].run)
            thread.start()
            for client in cluster.clients:
                stack.callback(client.shell.core.close)
            stack.callback(thread.join, 30)
            stack.callback(made[-1].stop)
        eventually(lambda: loads(numbered) == [1, 1, 1])


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2"])
def test_a_spread_that_is_not_a_number_of_servers_is_refused(dsns, wrong):
    with pgqueue.Cluster(dsns) as cluster, pytest.raises(ValueError, match="spread"):
        pgqueue.Worker(cluster, {"w": print}, spread=wrong)


def test_a_spread_for_one_server_is_refused(dsns):
    with pgqueue.Client(dsns[0]) as client, pytest.raises(ValueError, match="spread is for a worker of a Cluster"):
        pgqueue.Worker(client, {"w": print}, spread=2)


def test_a_role_that_may_not_share_is_told_at_the_start(dsns, dbs):
    with roles.made(dsns[0], dbs[0]) as make:
        role = make("take")
        with pgqueue.Cluster([make.dsn(role), *dsns[1:]]) as cluster, pytest.raises(NotAllowed, match="watch_node"):
            pgqueue.Worker(cluster, {"w": print}, spread=1).run()


@pytest.mark.slow
def test_without_the_home_server_the_others_are_served_as_before(dsns, numbered, own_bindir):
    """A worker that starts then serves servers of its own choice, until the home server is back."""
    handled, dbs = [], numbered[1:]
    with EmbeddedServer(durable=True, ephemeral=True, bindir=own_bindir) as server:
        migrate.up(server.dsn(), server=9)
        with psycopg.connect(server.dsn(), autocommit=True) as home:
            for number, dsn in ((9, server.dsn()), (2, dsns[1]), (3, dsns[2])):
                home.execute("SELECT pgqueue.add_server(%s, %s)", (number, dsn))
            for db in dbs:  # as `pgqueue cluster add` does
                copy = "SELECT cluster, version, jsonb_agg(s) FROM pgqueue.servers() s GROUP BY cluster, version"
                db.execute("SELECT pgqueue.copy_servers(%s, %s, %s)", [*map(adapted, rows(home, copy)[0])])
        given = [server.dsn(), dsns[1]]
        with working(given, handled.append, spread=1) as one, working(given, handled.append, spread=1) as other:
            eventually(lambda: sum(loads(dbs)) + len(pids(server)) == 4)
            before = one._present, other._present
            postmaster = reaper.find(server.root).pid
            os.kill(postmaster, signal.SIGKILL)
            eventually(lambda: not reaper.is_postgres(postmaster))
            for db in dbs:
                put(db, 5)
            eventually(lambda: left(dbs) == [0, 0])
            assert (one._present, other._present) == before
            with working(given, handled.append, spread=1) as third:
                eventually(lambda: third._present is not None)
                assert len(third._front.cores) == 1
                server.start()
                eventually(lambda: loads(dbs) == [1, 1] and len(pids(server)) == 1)


def adapted(given):
    return Jsonb(given) if isinstance(given, list) else given


def pids(server):
    with psycopg.connect(server.dsn(), autocommit=True) as home:
        return rows(home, "SELECT pid FROM pgqueue.workers")
