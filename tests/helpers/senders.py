"""Transactions of all kinds that put one task each, for the tests of hand-offs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg

import pgqueue

Sender = Callable[[pgqueue.Queue, psycopg.Connection, Any, random.Random], None]
START = 60.0  # seconds until a receiver's process has started: on a machine with much to do that took 5


def pause(chance: random.Random, longest: float = 0.008) -> None:
    """A transaction takes its time; not a wait for something."""
    threading.Event().wait(chance.uniform(0, longest))


# --- kinds of sender; each commits one task with this data


def autocommit(queue: pgqueue.Queue, conn: psycopg.Connection, data: Any, chance: random.Random) -> None:
    queue.put(data)


def in_transaction(queue: pgqueue.Queue, conn: psycopg.Connection, data: Any, chance: random.Random) -> None:
    with conn.transaction():
        queue.put(data, conn=conn)
        pause(chance)


def after_rollback(queue: pgqueue.Queue, conn: psycopg.Connection, data: Any, chance: random.Random) -> None:
    with conn.transaction(force_rollback=True):
        queue.put("never", conn=conn)
        pause(chance)
    in_transaction(queue, conn, data, chance)


def after_savepoint(queue: pgqueue.Queue, conn: psycopg.Connection, data: Any, chance: random.Random) -> None:
    with conn.transaction():
        with conn.transaction(force_rollback=True):
            queue.put("never", conn=conn)
            pause(chance)
        queue.put(data, conn=conn)
        pause(chance)


def with_old_snapshot(queue: pgqueue.Queue, conn: psycopg.Connection, data: Any, chance: random.Random) -> None:
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT count(*) FROM pgqueue.queue")
        pause(chance)
        queue.put(data, conn=conn)
        pause(chance)


SENDERS: list[Sender] = [autocommit, in_transaction, after_rollback, after_savepoint, with_old_snapshot]
WEIGHTS = [4, 3, 1, 1, 1]
