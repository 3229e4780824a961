"""A worker over several servers: one set of handlers, and each task settled on its own server.

The servers are databases of one server, with numbers of their own.
"""

from __future__ import annotations

import os
import signal
import threading

import psycopg
import pytest
from commands import run
from eventually import eventually
from running import running
from statements import rows, value

import pgqueue
from pgqueue import migrate
from pgqueue._engine.cluster.servers import Server
from pgqueue.embedded import EmbeddedServer, reaper
from pgqueue.errors import SetupError

pytestmark = pytest.mark.once


@pytest.fixture
def dbs(numbered):
    return numbered


def working(cluster, handlers, **options):
    """A worker in a thread of its own, until the end of the block."""
    return running(pgqueue.Worker(cluster, handlers, **options))


@pytest.fixture
def cluster(dsns, dbs):
    with pgqueue.Cluster(dsns) as made:
        yield made


def left(dbs):
    return [value(db, "SELECT count(*) FROM pgqueue.task") for db in dbs]


def put(db, n, queue="w"):
    db.execute("SELECT pgqueue.put(%s, to_jsonb(i)) FROM generate_series(1, %s) i", (queue, n))


@pytest.mark.slow
def test_the_tasks_of_all_servers_are_handled_and_acked_where_they_are(cluster, dbs):
    handled = []
    for db in dbs:
        put(db, 200)
    with working(cluster, {"w": handled.append}):
        eventually(lambda: left(dbs) == [0, 0, 0])
        assert len(handled) == 600
        for db in dbs:  # a worker that sleeps is woken by each of them
            put(db, 1)
            eventually(lambda: left(dbs) == [0, 0, 0])
    assert len(handled) == 603


@pytest.mark.slow
def test_an_async_handler_gets_the_task_of_its_server(cluster, dbs):
    seen = []

    async def handler(data, task):
        seen.append(task.id >> 43)
        await task.ack()

    for db in dbs:
        put(db, 3)
    with working(cluster, {"w": handler}):
        eventually(lambda: left(dbs) == [0, 0, 0])
    assert sorted(seen) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_a_failed_attempt_is_counted_on_the_server_of_the_task(cluster, dbs):
    def handler(data, task):
        raise RuntimeError("no")

    for db in dbs:
        put(db, 2)
    with working(cluster, {"w": handler}, max_attempts=1):
        eventually(lambda: [value(db, "SELECT buried FROM pgqueue.stats") for db in dbs] == [2, 2, 2])


def test_each_server_has_one_registration_and_one_set_of_runners_serves_them(cluster, dbs):
    release, inside = threading.Event(), []

    def handler(data):
        inside.append(data)
        release.wait(30)

    for db in dbs:
        put(db, 5)
    with working(cluster, {"w": handler}, concurrency=4):
        eventually(lambda: len(inside) == 4)
        eventually(lambda: [value(db, "SELECT count(*) FROM pgqueue.worker") for db in dbs] == [1, 1, 1])
        assert len(inside) == 4
        release.set()
        eventually(lambda: left(dbs) == [0, 0, 0])


def test_a_cancel_reaches_the_handler_at_its_server(cluster, dbs):
    begun, cancelled = threading.Event(), threading.Event()

    def handler(data, task):
        begun.set()
        eventually(lambda: task.cancelled)
        cancelled.set()

    put(dbs[2], 1)
    with working(cluster, {"w": handler}):
        assert begun.wait(30)
        ((id,),) = rows(dbs[2], "SELECT id FROM pgqueue.task")
        dbs[2].execute("SELECT pgqueue.cancel(%s)", (id,))
        assert cancelled.wait(30)


def test_servers_without_numbers_are_refused(dsns):
    with pgqueue.Cluster(dsns) as cluster, pytest.raises(SetupError, match="number"):
        pgqueue.Worker(cluster, {"w": print}).run()


def test_a_cluster_has_the_jobs_of_its_worker(cluster, dbs):
    seen = []

    @cluster.job("jobs")
    def note(n: int) -> None:
        seen.append(n)

    for n in range(9):
        note.put(n)
    assert left(dbs) == [3, 3, 3]
    with working(cluster, None):
        eventually(lambda: left(dbs) == [0, 0, 0])
    assert sorted(seen) == list(range(9))


APP = """
import pgqueue
cluster = pgqueue.Cluster({dsns!r})

@cluster.job("jobs")
def note(n: int) -> None: ...
"""


@pytest.mark.slow
def test_the_command_serves_some_servers_of_a_cluster(dsns, tmp_path):
    (tmp_path / "app.py").write_text(APP.format(dsns=dsns))
    done = run("worker", "app:cluster", "--spread", "2", "--check", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("would work on jobs (app.note); on 2 of ")
    done = run("worker", "app:cluster", "--spread", "0", "--check", cwd=tmp_path)
    assert done.returncode == 2
    assert "--spread" in done.stderr


@pytest.mark.slow
def test_the_command_serves_a_cluster(dsns, dbs, tmp_path):
    (tmp_path / "app.py").write_text(APP.format(dsns=dsns))
    done = run("job", "put", "app:cluster", "app.note", '{"n": 1}', cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sum(left(dbs)) == 1
    done = run("worker", "app:cluster", "--check", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("would work on jobs (app.note); on ")
    with psycopg.connect(dsns[1]) as other:
        assert f"dbname={other.info.dbname}" in done.stdout


@pytest.mark.slow
def test_a_server_that_is_killed_holds_up_no_other_one(dsns, dbs, own_bindir):
    """Its tasks under way begin again once it is back, and are acked there once."""
    handled, hold = [], threading.Event()

    def handler(data):
        handled.append(data)
        if data == "under way":
            hold.wait(60)

    with EmbeddedServer(durable=True, ephemeral=True, bindir=own_bindir) as server:
        migrate.up(server.dsn(), server=9)
        with (
            pgqueue.Cluster([dsns[0], server.dsn()], connect_timeout=1, retry=0.5) as cluster,
            working(cluster, {"w": handler}),
        ):
            cluster.clients[1].queue("w").put("under way")
            eventually(lambda: handled == ["under way"])
            postmaster = reaper.find(server.root).pid
            os.kill(postmaster, signal.SIGKILL)
            eventually(lambda: not reaper.is_postgres(postmaster))
            put(dbs[0], 20)
            eventually(lambda: left(dbs)[0] == 0)
            hold.set()
            server.start()
            eventually(lambda: handled.count("under way") == 2)
            eventually(lambda: cluster.clients[1].queue("w").stats()["total"] == 0)


# --- a list that changes


@pytest.fixture
def listed(dsns, dbs, without_password):
    """The DSNs as the table of servers has them; the first two servers are a cluster by it."""
    found = [without_password(dsn) for dsn in dsns]
    for number, dsn in enumerate(found[:2], 1):
        dbs[0].execute("SELECT pgqueue.add_server(%s, %s)", (number, dsn))
    return found


@pytest.mark.slow
def test_a_worker_goes_on_with_the_servers_that_its_cluster_has_by_now(dbs, listed):
    handled, begun, release = [], threading.Event(), threading.Event()
    home = dbs[0]

    def handler(data, task):
        if data == "hold":
            begun.set()
            release.wait(30)
        handled.append(task.id >> 43)

    with pgqueue.Cluster.from_server(listed[0], retry=0.2) as cluster, working(cluster, {"w": handler}) as worker:
        put(dbs[1], 3)
        eventually(lambda: handled == [2, 2, 2])
        with_two = worker._present
        home.execute("SELECT pgqueue.add_server(3, %s)", (listed[2],))
        put(dbs[2], 3)
        eventually(lambda: handled == [2, 2, 2, 3, 3, 3])
        with_three = eventually(lambda: (now := worker._present) is not with_two and now)
        dbs[1].execute("SELECT pgqueue.put('w', '\"hold\"')")
        assert begun.wait(30)
        home.execute("SELECT pgqueue.set_server_state(2, 'draining')")
        eventually(lambda: [server.listed.state for server in cluster._members.all] == ["active", "draining", "active"])
        assert worker._present is with_three  # the same servers
        home.execute("SELECT pgqueue.remove_server(2)")
        eventually(lambda: worker._present is not with_three)
        release.set()  # the task under way is acked at the server that is gone
        eventually(lambda: left(dbs) == [0, 0, 0])
        put(home, 2)
        eventually(lambda: handled.count(1) == 2)
        eventually(lambda: [value(db, "SELECT count(*) FROM pgqueue.worker") for db in dbs] == [1, 0, 1])
    assert handled.count(2) == 4


def test_new_servers_that_do_not_answer_are_tried_again_and_the_old_ones_served_meanwhile(
    dbs, listed, monkeypatch, caplog
):
    monkeypatch.setattr("pgqueue.worker.AGAIN", 0.05)
    handled = []
    with (
        pgqueue.Client("host=127.0.0.1 port=1", connect_timeout=0.2) as down,
        pgqueue.Cluster.from_server(listed[0], retry=0.2) as cluster,
        working(cluster, {"w": handled.append}) as worker,
    ):
        members, old = cluster._members, eventually(lambda: worker._present)
        both = members.all
        members.replace([Server(down, 0.2)])
        eventually(lambda: caplog.text.count("the new ones are tried again soon") > 1)
        put(dbs[1], 1)
        eventually(lambda: handled == [1])
        assert worker._present is old
        members.replace(both[:1])
        eventually(lambda: worker._present is not old)
        put(dbs[0], 1)
        eventually(lambda: handled == [1, 1])
        members.replace(both)  # from one server to two
        put(dbs[1], 1)
        eventually(lambda: handled == [1, 1, 1])
