"""Moving tasks between servers: which tasks go and how they arrive, which stay, and what a crash in each window does.

Most servers are databases of one server. Those that are killed are private servers of the test's own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from typing import Any

import psycopg
import pytest
from eventually import eventually
from statements import column, rows, value

import pgqueue
from pgqueue import migrate
from pgqueue._engine.cluster.moving import Mover
from pgqueue.embedded import EmbeddedServer, reaper

pytestmark = pytest.mark.once


def first(name: str) -> int:
    return 0


@pytest.fixture
def dsns(pg_server, pg_template):
    """Three numbered servers."""
    with contextlib.ExitStack() as stack:
        found = []
        for number in (1, 2, 3):
            name = pg_server.create(pg_template)
            stack.callback(pg_server.drop, name)
            found.append(pg_server.dsn(name))
            with psycopg.connect(found[-1], autocommit=True) as db:
                db.execute("SELECT pgqueue.set_server(%s)", [number])
        yield found


@pytest.fixture
def dbs(dsns):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(psycopg.connect(dsn, autocommit=True)) for dsn in dsns]


def move(dsns: list[str], queue: str = "q", home: Any = first) -> Any:
    with Mover(dsns[0], dsns[1:], home) as mover:
        return mover.move(queue)


def found(db: psycopg.Connection[Any]) -> list[Any]:
    return column(db, "SELECT data FROM pgqueue.task ORDER BY id")


def test_tasks_arrive_as_they_were(dsns, dbs):
    source, target, _ = dbs
    source.execute("SELECT pgqueue.put('q', '1.10', priority => 5, ttr => '1 min', ttl => '1 h', lane => 'l')")
    source.execute("SELECT pgqueue.put('q', '\"later\"', delay => '1 h', key => 'k')")
    source.execute("SELECT pgqueue.put('q', '\"bad\"')")
    with pgqueue.Client(dsns[0]) as client:
        bad = client.queue("q").take(timeout=5)
        assert bad.data == "bad"
        bad.bury()
    fields = (
        "SELECT data::text, priority, ttr, lane, key, state, created_at, expires_at, run_at, buried_at, attempts,"
        " buries, error FROM pgqueue.task ORDER BY data::text"
    )
    before = rows(source, fields)
    done = move(dsns[:2])
    assert (done.copied, done.met, done.staying) == (3, 0, {})
    assert rows(target, fields) == before
    assert found(source) == []
    assert column(target, "SELECT id >> 43 FROM pgqueue.task") == [2, 2, 2]
    for db, counted in ((source, (0, 0, 0)), (target, (1, 1, 1))):
        counts = (
            "SELECT coalesce(sum(ready), 0), coalesce(sum(delayed), 0), coalesce(sum(buried), 0) FROM pgqueue.stats"
        )
        assert rows(db, counts) == [counted]


def test_those_whose_id_others_know_stay(dsns, dbs):
    _, target, _ = dbs
    with pgqueue.Client(dsns[0]) as client:
        queue = client.queue("q")
        for data in ("taken", "taken in a lane", "behind it"):
            queue.put(data, lane=None if data == "taken" else "l")
        held = queue.take_many(5, timeout=5)
        assert [task.data for task in held] == ["taken", "taken in a lane"]
        one = queue.put("one")
        queue.put("after it", after=one)
        queue.put("goes")
        done = move(dsns[:2])
        assert (done.copied, done.staying) == (1, {"flow": 2, "taken": 2, "lane": 1})
        assert found(target) == ["goes"]
        queue.ack_many(held)
        for _ in ("behind it", "one", "after it"):
            queue.take(30).ack()  # the last one is ready when a claim or a tick has seen that "one" has ended
    assert move(dsns[:2]).staying == {}


def test_an_awaited_task_stays(dsns, dbs):
    with pgqueue.Client(dsns[0]) as client:
        task = client.queue("q").put("awaited")
        waiter = threading.Thread(target=lambda: client.results.get(task.id, timeout=20))
        waiter.start()
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = pgqueue._awaiting_lock()::oid"
        eventually(lambda: value(dbs[0], locks) == 1)
        assert move(dsns[:2]).staying == {"awaited": 1}
        client.queue("q").take(timeout=5).finish(1)
        waiter.join()


@pytest.mark.slow
def test_a_lane_goes_whole_and_before_what_was_put_there_since(dsns, dbs):
    source, target, _ = dbs
    source.execute("SELECT pgqueue.put('q', to_jsonb(n), lane => 'l') FROM generate_series(1, 2500) n")
    target.execute("SELECT pgqueue.put('q', to_jsonb(n), lane => 'l') FROM generate_series(2501, 2503) n")
    assert move(dsns[:2]).copied == 2500
    assert found(target) == list(range(1, 2504))
    assert value(target, "SELECT count(*) FROM pgqueue.task WHERE state = 'R'") >= 1
    popped = [value(target, "SELECT data FROM pgqueue.pop('q')") for _ in range(5)]
    assert popped == [1, 2, 3, 4, 5]


def test_older_tasks_of_the_lane_there_stay_in_front(dsns, dbs):
    source, target, _ = dbs
    target.execute("SELECT pgqueue.put('q', '1', lane => 'l')")
    source.execute("SELECT pgqueue.put('q', '2', lane => 'l')")
    move(dsns[:2])
    assert found(target) == [1, 2]


def test_names_choose_the_target(dsns, dbs):
    dbs[0].execute(
        "SELECT pgqueue.put('q', to_jsonb(n), lane => CASE WHEN n % 2 = 0 THEN 'l' || n % 10 END,"
        " key => CASE WHEN n % 2 = 1 THEN 'k' || n END) FROM generate_series(1, 100) n"
    )
    assert move(dsns, home=lambda name: int(name[-1]) % 3 % 2).copied == 100
    assert all(n % 10 % 3 % 2 == 0 for n in found(dbs[1]))
    assert all(n % 10 % 3 % 2 == 1 for n in found(dbs[2]))
    assert len(found(dbs[1])) + len(found(dbs[2])) == 100


def test_tasks_that_are_not_in_their_lane_go_to_its_target(dsns, dbs):
    """By the lane as a put, and not by the key, in turn, or to the server that keeps their limit."""
    source, of_lane, other = dbs
    source.execute("SELECT pgqueue.put('q', '\"in\"', lane => 'l2')")
    source.execute(
        "SELECT pgqueue.put('q', to_jsonb(n), lane => 'l2', key => CASE WHEN n < 5 THEN 'k3-' || n END, delay => '1 h')"
        " FROM generate_series(1, 9) n"
    )
    source.execute("SELECT pgqueue.bury(max(id)) FROM pgqueue.task")
    source.execute("SELECT pgqueue.put('q', '\"limited\"')")
    source.execute("SELECT pgqueue.set_limit('q', concurrency => 9, home => 3)")
    with Mover(dsns[0], dsns[1:], lambda name: int(name[1]) - 2, (2, 3)) as mover:
        done = mover.move("q")
    assert (done.copied, done.staying) == (11, {})
    assert sorted(found(of_lane), key=str) == [*range(1, 10), "in"]
    assert found(other) == ["limited"]


def test_a_key_meets_the_task_that_has_it(dsns, dbs):
    source, target, _ = dbs
    source.execute("SELECT pgqueue.put('q', '\"source\"', key => k) FROM unnest('{live,expired}'::text[]) k")
    target.execute("SELECT pgqueue.put('q', '\"live\"', key => 'live')")
    target.execute("SELECT pgqueue.put('q', '\"expired\"', key => 'expired', ttl => '1 ms')")
    done = move(dsns[:2])
    assert (done.copied, done.met) == (1, 1)
    assert sorted(column(target, "SELECT data FROM pgqueue.task")) == ["live", "source"]


MOVER = """
import sys
from pgqueue._engine.cluster.moving import Mover
with Mover(sys.argv[1], sys.argv[2:], lambda name: 0) as mover:
    mover.move("q", lambda moved: print(moved, flush=True))
"""


@pytest.fixture
def servers():
    """Two numbered servers of the test's own, which it may kill."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(EmbeddedServer(ephemeral=True)) for _ in range(2)]
        for number, server in enumerate(found, 1):
            migrate.up(server.dsn(), server=number)
        yield found


@pytest.fixture
def mover():
    started = []

    def start(*dsns: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", MOVER, *dsns]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["mover", "source", "target"])
def test_no_kill_loses_a_task(servers, mover, victim):
    """Killed during a step, four times in a row. Tasks may be copied twice, but not those with keys."""
    n, kills = 15000, 4
    with psycopg.connect(servers[0].dsn(), autocommit=True) as db:
        db.execute(
            "SELECT pgqueue.put('q', to_jsonb(n), lane => CASE WHEN n %% 3 = 0 THEN 'l' || n %% 40 END,"
            " key => CASE WHEN n %% 3 = 1 THEN 'k' || n END) FROM generate_series(1, %s) n",
            [n],
        )
    for kill in range(kills):
        dsns = [server.start().dsn() for server in servers]
        process = mover(*dsns)
        assert process.stdout is not None
        for _ in range(kill % 2 + 1):
            process.stdout.readline()
        if victim == "mover":
            process.kill()
        else:
            os.kill(servers[victim == "target"].pid, signal.SIGKILL)
        process.wait(60)
        assert process.returncode != 0
    dsns = [server.start().dsn() for server in servers]
    move(dsns)
    with psycopg.connect(dsns[0], autocommit=True) as source, psycopg.connect(dsns[1], autocommit=True) as target:
        assert found(source) == []
        there = Counter(found(target))
        assert set(there) == set(range(1, n + 1))
        assert {data for data, copies in there.items() if copies > 1 and data % 3 == 1} == set()
        for lane in column(target, "SELECT DISTINCT lane FROM pgqueue.task WHERE lane IS NOT NULL"):
            order = column(target, "SELECT data FROM pgqueue.task WHERE lane = %s ORDER BY id", lane)
            assert list(dict.fromkeys(order)) == sorted(set(order))


@pytest.mark.slow
def test_a_copy_whose_deletion_is_lost_comes_twice(servers):
    """The only window with two copies: after the commit of the target, and before that of the source."""
    dsns = [server.dsn() for server in servers]
    with psycopg.connect(dsns[0], autocommit=True) as source:
        source.execute("SELECT pgqueue.put('q', '\"keyed\"', key => 'k'), pgqueue.put('q', '\"plain\"')")
    source = psycopg.connect(dsns[0])
    with contextlib.closing(source), psycopg.connect(dsns[1]) as target:
        tasks = value(source, "SELECT tasks::text[] FROM pgqueue.move_out('q')")
        assert value(target, "SELECT pgqueue.move_in('q', %s::text[]::jsonb[])", tasks) == 2
        target.commit()
        killed = servers[0].pid
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: not reaper.is_postgres(killed))
    done = move([servers[0].start().dsn(), dsns[1]])
    assert (done.copied, done.met) == (1, 1)
    with psycopg.connect(dsns[1], autocommit=True) as target:
        assert sorted(found(target)) == ["keyed", "plain", "plain"]


@pytest.mark.slow
def test_takers_of_both_servers_keep_the_order_of_lanes(dsns, dbs):
    """Takers work on both servers while the lanes move: each lane's tasks are handled in their order, once."""
    n, lanes = 3000, 20
    dbs[0].execute(
        "SELECT pgqueue.put('q', to_jsonb(n), lane => 'l' || n %% %s) FROM generate_series(1, %s) n", [lanes, n]
    )
    handled: list[int] = []
    over = threading.Event()

    def take(dsn: str) -> None:
        with pgqueue.Client(dsn) as client:
            queue = client.queue("q")
            while not over.is_set():
                for task in queue.take_many(10, timeout=0.2):
                    handled.append(task.data)
                    task.ack()

    takers = [threading.Thread(target=take, args=[dsn]) for dsn in dsns[:2] for _ in range(2)]
    for taker in takers:
        taker.start()
    try:
        eventually(lambda: len(handled) > 20)
        while move(dsns[:2]).staying:
            pass
        eventually(lambda: len(handled) >= n, within=120)
    finally:
        over.set()
        for taker in takers:
            taker.join()
    assert sorted(handled) == list(range(1, n + 1))
    for lane in range(lanes):
        order = [data for data in handled if data % lanes == lane]
        assert order == sorted(order)
