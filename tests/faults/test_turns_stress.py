"""No call is lost when processes churn, stop and die: several processes wait for each queue, and each put is awaited.

The senders and receivers are those of test_handoffs.py. Of three queues two share a bucket, so a process that waits
alone on one is asked to enter the line by those of the other. A put follows only when the last task was told, so no
later put makes up for a lost call. In calm weather nothing else does either: no poll, no tick, no look at the place. In
a storm processes are stopped and killed, and it is the net that calls again.

More than `pytest` does by itself: `pytest tests/faults/test_turns_stress.py --handoffs=50000 --waiting=200`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from autopsy import States, autopsy
from eventually import eventually
from processes import Program, programs
from senders import SENDERS, START, WEIGHTS, Sender, pause
from statements import rows, value

import pgqueue

QUEUES = ("near", "far", "apart")  # near and far share a bucket
SLEEP = 600.0  # between ticks in calm weather, seconds: longer than a receiver's patience
PATIENCE = {"calm": 30.0, "storm": 40.0, "crowd": 40.0}  # of the receivers, seconds
ALIVE = "SELECT count(*) FROM pg_locks WHERE classid = pgqueue._session_lock() AND mode = 'ExclusiveLock' AND granted"
STOPPED = (0.05, 0.8)  # for how long a process is stopped in a storm, seconds


def serializable(queue: pgqueue.Queue, conn: psycopg.Connection, data: Any, chance: random.Random) -> None:
    """Other queues' senders are neighbours here, so it may have to be repeated."""
    while True:
        try:
            with conn.transaction():
                conn.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
                queue.put(data, conn=conn)
                pause(chance)
            return
        except psycopg.errors.SerializationFailure:
            continue


def long(queue: pgqueue.Queue, conn: psycopg.Connection, data: Any, chance: random.Random) -> None:
    """Its receiver gives up, disarms and comes back before the call arrives."""
    with conn.transaction():
        queue.put(data, conn=conn)
        pause(chance, 0.1)


ALL: list[Sender] = [*SENDERS, serializable, long]
SHARES = [*WEIGHTS, 1, 1]


class Talk:
    """The hand-offs of one queue, one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: dict[int, threading.Event] = {}
        self.lost = threading.Event()
        self.delays: list[float] = []

    def hear(self, line: dict[str, Any]) -> None:
        if line.get("lost"):
            self.lost.set()
        elif line["number"] in self.told:
            self.told[line["number"]].set()

    def send(self, dsn: str, client: pgqueue.Client, count: int, patience: float) -> None:
        chance, queue = random.Random(self.name), client.queue(self.name)
        with psycopg.connect(dsn, autocommit=True) as conn:
            for number in range(count):
                self.told[number] = threading.Event()
                sender = chance.choices(ALL, SHARES)[0]
                sender(queue, conn, number, chance)
                sent = time.monotonic()
                while not self.told[number].wait(0.5):
                    what = f"{number} of {self.name}, by {sender.__name__}, after {time.monotonic() - sent:.1f} s"
                    assert not self.lost.is_set(), f"lost the call for {what}"
                    assert time.monotonic() - sent < (2 * patience if number else START), f"no answer to {what}"
                    if not rows(
                        conn, "SELECT FROM pgqueue.tasks WHERE queue = %s AND data = %s::jsonb", self.name, str(number)
                    ):
                        break  # its receiver was killed between its ack and its word
                if number:  # the first one waited for the receivers' processes
                    self.delays.append(time.monotonic() - sent)
                del self.told[number]


class Crowd:
    """The processes that wait for the queues, and what happens to them."""

    def __init__(self, make: Callable[..., Program], dsn: str, hear: Callable[[Any], None], storm: bool) -> None:
        self._make, self._dsn, self._hear = make, dsn, hear
        self._tick, self._patience = 0.25 if storm else SLEEP, PATIENCE["storm" if storm else "calm"]
        self._chance, self._number = random.Random(1), 0
        self.processes: list[Program] = []
        self.stopped = self.killed = 0

    def start(self, *arguments: str, program: str = "receiver", patience: float | None = None) -> None:
        self._number += 1
        weather = (self._tick, patience or self._patience)
        self.processes.append(self._make(program, self._dsn, str(self._number), *weather, *arguments, heard=self._hear))

    def rage(self, over: threading.Event) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            while not over.wait(self._chance.uniform(0, 0.5)):
                if value(conn, ALIVE) == len(self.processes):  # a process takes seconds to start
                    self._strike(over)

    def _strike(self, over: threading.Event) -> None:
        victim = self._chance.choice(self.processes)
        victim.stop()
        over.wait(self._chance.uniform(*STOPPED))
        if self._chance.random() < 0.3:
            self.processes.remove(victim)
            victim.kill()
            self.killed += 1
            self.start(*QUEUES)
        else:
            victim.resume()
            self.stopped += 1


@contextmanager
def crowd(dsn: str, db: psycopg.Connection, storm: bool) -> Iterator[tuple[Crowd, dict[str, Talk], States]]:
    for name in QUEUES:
        if name == "far":
            near = value(db, "SELECT pgqueue.queue_id('near')")
            db.execute(f"ALTER TABLE pgqueue.queue ALTER COLUMN id RESTART WITH {near + 1024}")
        db.execute("SELECT pgqueue.create_queue(%s)", [name])
    talks, states = {name: Talk(name) for name in QUEUES}, States()
    with programs() as make:
        yield Crowd(make, dsn, states.sort_out(lambda line: talks[line["queue"]].hear(line)), storm), talks, states


def talk(
    dsn: str, crowd: Crowd, talks: dict[str, Talk], states: States, each: int, patience: float, storm: bool
) -> list[float]:
    """Hand over `each` tasks in each queue. Returns how long each was under way, sorted."""
    over = threading.Event()
    with pgqueue.Client(dsn) as client, ThreadPoolExecutor(len(talks) + 1) as threads:
        sending = [threads.submit(one.send, dsn, client, each, patience) for one in talks.values()]
        raging: Future[None] | None = threads.submit(crowd.rage, over) if storm else None
        try:
            wait(sending, return_when="FIRST_EXCEPTION")
            if any(future.done() and future.exception() for future in sending):
                print(autopsy(dsn, states, crowd.processes))
                for one in talks.values():
                    one.lost.set()
        finally:
            over.set()
        for future in [*sending, *([raging] if raging else [])]:
            future.result()
    return sorted(delay for one in talks.values() for delay in one.delays)


def tell(record: Callable[[str, object], None], what: str, delays: list[float]) -> None:
    p50, p99 = delays[len(delays) // 2] * 1e3, delays[len(delays) * 99 // 100] * 1e3
    late = sum(delay > 0.5 for delay in delays)
    figures = (
        f"{what}: {len(delays)} hand-offs, p50 {p50:.1f}, p99 {p99:.0f}, max {delays[-1] * 1e3:.0f} ms, late {late}"
    )
    record("handoffs", figures)
    print(figures)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("weather", ["calm", "storm"])
def test_each_put_is_answered(
    dsn: str,
    db: psycopg.Connection,
    size: dict[str, int],
    weather: str,
    record_property: Callable[[str, object], None],
) -> None:
    storm = weather == "storm"
    with crowd(dsn, db, storm) as (people, talks, states):
        for _ in range(3):
            people.start(*QUEUES)
        delays = talk(dsn, people, talks, states, size["handoffs"] // 3, PATIENCE[weather], storm)
        tell(record_property, f"{weather}, {people.stopped} stops, {people.killed} kills", delays)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_processes_wait_for_one_queue(
    dsn: str, db: psycopg.Connection, size: dict[str, int], record_property: Callable[[str, object], None]
) -> None:
    """Clients, of which each has a session and a place of its own."""
    with crowd(dsn, db, storm=False) as (people, talks, states):
        for _ in range(size["waiting"] // 10):
            people.start("apart", "10", program="crowd", patience=PATIENCE["crowd"])
        eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.line") == size["waiting"], within=100)
        only = {"apart": talks["apart"]}
        delays = talk(dsn, people, only, states, size["handoffs"] // 4, PATIENCE["crowd"], storm=False)
        tell(record_property, f"{size['waiting']} waiting", delays)
