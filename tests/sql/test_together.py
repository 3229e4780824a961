"""Everything at once: lanes, keys, a capacity, claims, time and dead letters under several connections.

Nobody waits for luck here. Whatever the threads get to do in the time, the queue never holds more than its capacity,
no lane has two takers, the statistics are those of the same snapshot, nothing deadlocks, and in the end every task can
be taken.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from statements import row, rows

SECONDS, WORKERS, CAPACITY = 3, 6, 8
EXPECTED = {"PQ037", "PQ038", "PQ039"}  # full, the key exists, it is taken

TWO_IN_A_LANE = "SELECT lane FROM pgqueue.take WHERE lane IS NOT NULL GROUP BY queue_id, lane HAVING count(*) > 1"
MISCOUNTED = """
    WITH real AS (
        SELECT q.name, count(t.id) AS total, count(t.id) FILTER (WHERE t.state = 'B') AS buried
          FROM pgqueue.queue q LEFT JOIN pgqueue.task t ON t.queue_id = q.id GROUP BY q.name)
    SELECT s.queue, s.total, real.total, s.buried, real.buried
      FROM pgqueue.stats s JOIN real ON real.name = s.queue
     WHERE (s.total, s.buried) <> (real.total, real.buried)"""


class Worker:
    """A connection that does one thing after another, by chance."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.chance = random.Random(seed)
        self.held: list[tuple[int, int]] = []
        self.actions: list[Callable[[], Any]] = [
            *4 * [self.put],
            *3 * [self.put_many],
            *2 * [self.take],
            self.ack,
            self.hand_on,
            self.release,
            self.bury,
            self.claim,
            self.work_in_a_transaction,
            self.kick,
            self.delete,
            self.tick,
        ]

    def run(self, until: float) -> set[str]:
        """The SQLSTATEs that came."""
        states = set()
        with self.conn:
            while time.monotonic() < until:
                try:
                    self.chance.choice(self.actions)()
                except psycopg.Error as error:
                    states.add(error.sqlstate or str(error))
        return states

    def ask(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        return rows(self.conn, query, *args)

    def put(self) -> None:
        query = """SELECT FROM pgqueue.put('q', '1', priority => %s, delay => %s::interval, ttr => %s::interval,
                                           lane => %s, key => %s, if_exists => %s)"""
        times = self.chance.choice([None, "5 ms"]), self.chance.choice([None, "20 ms", "1 h"])
        names = self.chance.choice([None, "a", "b"]), self.chance.choice([None, "x", "y"])
        self.ask(query, self.chance.randint(-1, 1), *times, *names, self.chance.choice(["ignore", "replace", "error"]))

    def put_many(self) -> None:
        n = self.chance.randint(1, 4)
        keys = [self.chance.choice([None, "x", "y", "z"]) for _ in range(n)]
        query = "SELECT pgqueue.put_many('q', %s::jsonb, lanes => %s, keys => %s, if_exists => %s)"
        self.ask(
            query, str([1] * n), [self.chance.choice([None, "a", "b"])], keys, self.chance.choice(["ignore", "replace"])
        )

    def take(self) -> None:
        self.held += self.ask(
            "SELECT id, token FROM pgqueue.take_many(ARRAY ['q', 'dead'], %s)", self.chance.randint(1, 3)
        )

    def settle(self, call: str) -> None:
        if self.held:
            self.ask(f"SELECT FROM pgqueue.{call}", *self.held.pop())

    def ack(self) -> None:
        self.settle("ack(%s, %s)")

    def hand_on(self) -> None:
        self.settle("""ack(%s, %s, puts => '[{"queue": "q", "data": 1, "lane": "b"}]')""")

    def release(self) -> None:
        self.settle("release(%s, %s, error => 'it failed')")

    def bury(self) -> None:
        self.settle("bury(%s, %s)")

    def claim(self) -> None:
        """Claim, delete a message of it, and leave the others to time or give them back."""
        if claimed := self.ask("SELECT claim, id FROM pgqueue.claim_messages('q', 3, ttl => '30 ms')"):
            self.ask("SELECT pgqueue.delete_message('q', %s, %s)", claimed[0][1], claimed[0][0])
            if self.chance.random() < 0.5:
                self.ask("SELECT pgqueue.release_claim('q', %s)", claimed[0][0])

    def work_in_a_transaction(self) -> None:
        with self.conn.transaction():
            self.ask("SELECT FROM pgqueue.put('q', '2', lane => %s)", self.chance.choice(["a", None]))
            for taken in self.ask("SELECT id, token FROM pgqueue.take('q')"):
                self.ask("SELECT FROM pgqueue.ack(%s, %s)", *taken)
            if self.chance.random() < 0.3:
                raise psycopg.Rollback

    def kick(self) -> None:
        self.ask("SELECT pgqueue.kick('q', 2), pgqueue.kick('dead', 2)")

    def delete(self) -> None:
        for (id,) in self.ask("SELECT id FROM pgqueue.tasks ORDER BY random() LIMIT 1"):
            self.ask("SELECT pgqueue.delete(%s)", id)

    def tick(self) -> None:
        self.ask("SELECT pgqueue.promote_all(), pgqueue._check_all_lanes(), pgqueue._fold_deltas(at_once => true)")


def watch(dsn: str, until: float) -> list[Any]:
    """What was wrong at any time."""
    wrong: list[Any] = []
    with psycopg.connect(dsn, autocommit=True) as conn:
        while time.monotonic() < until and not wrong:
            (length,) = row(conn, "SELECT total FROM pgqueue.stats WHERE queue = 'q'") or (0,)
            wrong += [f"it holds {length}"] if length > CAPACITY else []
            wrong += rows(conn, TWO_IN_A_LANE) + rows(conn, MISCOUNTED)
    return wrong


def drain(conn: psycopg.Connection) -> None:
    """Take and ack whatever is there, or becomes takeable as time passes."""
    while rows(conn, "SELECT FROM pgqueue.tasks LIMIT 1"):
        conn.execute("SELECT pgqueue.promote_all(), pgqueue.kick('q', 100), pgqueue.kick('dead', 100)")
        taken = rows(conn, "SELECT id, token FROM pgqueue.take_many(ARRAY ['q', 'dead'], 100)")
        conn.execute(
            "SELECT FROM pgqueue.ack_many(%s::bigint[], %s::bigint[])", [[n[0] for n in taken], [n[1] for n in taken]]
        )


@pytest.mark.slow
def test_everything_at_once(db: psycopg.Connection, dsn: str) -> None:
    options = "capacity => %s, max_takes => 3, dead_letter => '', dead_letter_key => 'dead'"
    db.execute(f"SELECT pgqueue.create_queue('q', {options}), pgqueue.allow_lanes('q')", [CAPACITY])
    until = time.monotonic() + SECONDS
    workers = [Worker(dsn, seed) for seed in range(WORKERS)]
    with ThreadPoolExecutor(WORKERS + 1) as threads:
        watching = threads.submit(watch, dsn, until)
        states = set().union(*threads.map(lambda worker: worker.run(until), workers))
    assert watching.result() == []
    assert states <= EXPECTED
    db.execute("SELECT pgqueue.release_all('q'), pgqueue.release_all('dead')")  # of the workers, which have gone
    drain(db)
    assert rows(db, "SELECT total, taken, blocked FROM pgqueue.stats") == [(0, 0, 0), (0, 0, 0)]
    assert rows(db, "SELECT FROM pgqueue.take") == []
