"""No wake-up is lost between processes, with nothing to fall back on: the clients have `poll=None`.

Each queue is one conversation: a sender puts a task, and the next one only after the receiver told that it has it. So
no later notification makes up for a lost one, and a receiver whose patient wait (5 s) ends with nothing has lost one.
Senders are transactions of all kinds; receivers time out, disarm, unlisten and come back in the middle of all this.

With the drain left out of sql/2_base/wake.sql (`drained := true` in pgqueue.arm) some handoffs in a thousand are lost.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from autopsy import States, autopsy
from eventually import Stopwatch, eventually, in_time
from processes import programs
from senders import SENDERS, START, WEIGHTS, in_transaction, pause
from statements import notifications, put, rows, value

import pgqueue

RECEIVERS = (600.0, 30.0)  # their TICK, since a tick would hide what came without waking anybody; and their patience
PATIENCE = 40.0  # longer than the receivers': it is they who tell a loss


# --- conversations


@dataclass
class Conversation:
    """What one queue's receivers told."""

    name: str
    told: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    arrived: dict[int, float] = field(default_factory=dict)
    twice: list[int] = field(default_factory=list)
    lost: bool = False

    def hear(self, line: dict[str, Any]) -> None:
        if line.get("lost"):
            self.lost = True
        elif line["number"] in self.arrived:
            self.twice.append(line["number"])
        else:
            self.arrived[line["number"]] = line["at"]
        self.told.release()

    def send(self, dsn: str, client: pgqueue.Client, count: int, at_once: int) -> list[float]:
        """Send `count` tasks, `at_once` in a transaction; returns how long each was under way."""
        chance, queue, delays = random.Random(self.name), client.queue(self.name), []
        with psycopg.connect(dsn, autocommit=True) as conn:
            for number in range(0, count, at_once):
                sender = chance.choices(SENDERS, WEIGHTS)[0]
                with ExitStack() as batch:
                    if at_once > 1:
                        batch.enter_context(conn.transaction())
                        for more in range(1, at_once):
                            queue.put(number + more, conn=conn)
                        sender = in_transaction
                    sender(queue, conn, number, chance)
                sent = time.time()
                for _ in range(at_once):
                    patience = PATIENCE if number else START
                    assert self.told.acquire(timeout=patience), f"{self.name}: no answer to {number}"
                assert not self.lost, f"{self.name}: lost the wake-up for {number}, sent by {sender.__name__}"
                if number:  # the first one waited for the receiver's process
                    delays += [self.arrived[number + i] - sent for i in range(at_once)]
                pause(chance, 0.004)
        return delays

    def stop(self, client: pgqueue.Client, receivers: int) -> None:
        client.queue(self.name).put_many([None] * receivers)


def converse(dsn: str, plans: dict[str, tuple[int, int, int]], seed: str, receivers: int) -> dict[str, list[float]]:
    """Hold conversations by name: (tasks, tasks a transaction, takers in each process); returns their delays."""
    conversations, states = {name: Conversation(name) for name in plans}, States()

    @states.sort_out
    def hear(line: dict[str, Any]) -> None:
        conversations[line["queue"]].hear(line)

    with programs() as start, pgqueue.Client(dsn) as client, ThreadPoolExecutor(len(plans)) as threads:
        takers = [name for name, (_, _, each) in plans.items() for _ in range(each)]
        processes = [start("receiver", dsn, f"{seed}{i}", *RECEIVERS, *takers, heard=hear) for i in range(receivers)]
        sending = {
            name: threads.submit(conversations[name].send, dsn, client, count, at_once)
            for name, (count, at_once, _) in plans.items()
        }
        try:
            delays = {name: future.result() for name, future in sending.items()}
        except AssertionError:
            print(autopsy(dsn, states, processes))
            raise
        for name, (_, _, each) in plans.items():
            conversations[name].stop(client, receivers * each)
        assert [process.end() for process in processes] == [0] * receivers
    assert not any(conversation.twice for conversation in conversations.values())
    return delays


def report(record: Callable[[str, object], None], delays: dict[str, list[float]]) -> None:
    known = sorted(delay for each in delays.values() for delay in each)
    p50, p99 = known[len(known) // 2] * 1e3, known[len(known) * 99 // 100] * 1e3
    figures = f"{len(known)} handoffs, p50 {p50:.2f} ms, p99 {p99:.1f} ms, max {known[-1] * 1e3:.0f} ms"
    record("handoffs", figures)
    print(figures)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_wake_up_is_lost(dsn: str, size: dict[str, int], record_property: Callable[[str, object], None]) -> None:
    """One taker a queue: nobody else hears what it missed."""
    queues = 5
    plans = {f"single {i}": (size["handoffs"] // queues, 1, 1) for i in range(queues)}
    report(record_property, converse(dsn, plans, "single", receivers=1))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_notification_for_many_tasks_is_passed_on(
    dsn: str, size: dict[str, int], record_property: Callable[[str, object], None]
) -> None:
    """Four takers in two processes, and one NOTIFY for four tasks: each served taker wakes the next."""
    plans = {f"many {i}": (size["handoffs"] // 4 // 4 * 4, 4, 2) for i in range(2)}
    report(record_property, converse(dsn, plans, "many", receivers=2))


# --- silence


@pytest.fixture
def ear(dsn: str) -> Any:
    """A raw connection that listens to the channels of the queues `a` and `b`."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for name in ("a", "b"):
            conn.execute(f'LISTEN "pgqueue:{value(conn, "SELECT pgqueue.queue_id(%s)", name)}"')
        yield conn


def test_puts_that_nobody_waits_for_send_no_notify(db: psycopg.Connection, ear: psycopg.Connection) -> None:
    for name in ("a", "b"):
        put(db, name)
        put(db, name, delay="1 h")
        rows(db, "SELECT pgqueue.put_many(%s, '[1, 2, 3]')", name)
    assert notifications(ear, db) == []


def test_only_the_queue_that_is_waited_for_is_notified_and_once(
    dsn: str, db: psycopg.Connection, ear: psycopg.Connection, blocking: Callable[..., pgqueue.Client]
) -> None:
    with ThreadPoolExecutor(1) as thread:
        taken = thread.submit(blocking().queue("a").take_many, 3, 10)
        eventually(lambda: hears(db))  # a process that is just arming when the put calls would go into the line
        with db.transaction():
            for _ in range(3):
                put(db, "a")
                put(db, "b")
        assert len(taken.result()) == 3
    heard = notifications(ear, db)
    assert heard == [f"pgqueue:{value(db, 'SELECT pgqueue.queue_id(%s)', 'a')}"]


@pytest.mark.slow
def test_a_rolled_back_put_notifies_nobody(
    db: psycopg.Connection, ear: psycopg.Connection, blocking: Callable[..., pgqueue.Client]
) -> None:
    with ThreadPoolExecutor(1) as thread:
        taken = thread.submit(blocking().queue("a").take, 1)
        eventually(lambda: armed(db))
        with db.transaction(force_rollback=True):
            put(db, "a")
        assert taken.result() is None
    assert notifications(ear, db) == []


def test_producers_are_silent_again_soon_after_the_last_taker(
    db: psycopg.Connection, ear: psycopg.Connection, blocking: Callable[..., pgqueue.Client]
) -> None:
    """The taker waits until a put comes: a wait of a short time may be over before its listener arms the queue."""
    queue = blocking().queue("a")

    def attempt() -> float:
        with ThreadPoolExecutor(1) as thread:
            taken = thread.submit(queue.take, 30)
            eventually(lambda: armed(db))
            put(db, "a")
            taken.result().ack()
        watch = Stopwatch()
        eventually(lambda: not armed(db))
        return watch()

    in_time(attempt, within=1.0)
    notifications(ear, db)
    put(db, "a")
    assert notifications(ear, db) == []


def hears(conn: psycopg.Connection) -> bool:
    """A process has armed, and hears every put."""
    query = """
        SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
                        WHERE l.classid = pgqueue._hearing_lock() AND l.granted AND a.state = 'idle')"""
    return bool(value(conn, query))


def armed(conn: psycopg.Connection) -> bool:
    """Somebody holds a WAITER lock."""
    query = "SELECT EXISTS (SELECT FROM pg_locks WHERE classid = pgqueue._waiter_lock() AND granted)"
    return bool(value(conn, query))
