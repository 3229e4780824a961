"""The rate limiter backend of Dramatiq: its counters under concurrency, limiters and barriers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier as Start
from typing import Any

import psycopg
import pytest
from dramatiq.rate_limits import Barrier, BucketRateLimiter, ConcurrentRateLimiter, WindowRateLimiter
from eventually import eventually
from statements import column, rows, value

import pgqueue
from pgqueue.contrib.dramatiq import PgqueueRateLimiterBackend, statements

pytestmark = pytest.mark.once

THREADS = 8
MINUTE = 60_000  # milliseconds
WAITING = """
    SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
    WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"""


@pytest.fixture
def backend(dsn: str) -> Iterator[PgqueueRateLimiterBackend]:
    with pgqueue.Client(dsn, poll=None) as client:
        yield PgqueueRateLimiterBackend(client=client)


def at_once(call: Any, each: int = 1) -> list[Any]:
    """The results of calls that THREADS threads begin together: `each` calls of every thread, with their numbers."""
    start = Start(THREADS)

    def work(thread: int) -> list[Any]:
        start.wait(30)
        return [call(thread * each + n) for n in range(each)]

    with ThreadPoolExecutor(THREADS) as pool:
        return [result for results in pool.map(work, range(THREADS)) for result in results]


def counter(db: psycopg.Connection, key: str) -> int:
    return int(value(db, "SELECT value::int FROM pgqueue.statuses WHERE key = %s", f"dramatiq-limits:{key}"))


def test_add_sets_what_does_not_exist(backend: PgqueueRateLimiterBackend, db: psycopg.Connection) -> None:
    assert [backend.add("k", value, MINUTE) for value in (5, 6)] == [True, False]
    seen = "SELECT key, value::int, extract(epoch FROM expires_at - updated_at) FROM pgqueue.statuses"
    assert rows(db, seen) == [("dramatiq-limits:k", 5, 60)]


def test_incr_stops_at_the_maximum(backend: PgqueueRateLimiterBackend, db: psycopg.Connection) -> None:
    assert [backend.incr("k", 2, 5, MINUTE) for _ in range(3)] == [True, True, False]
    assert counter(db, "k") == 4


def test_decr_stops_at_the_minimum(backend: PgqueueRateLimiterBackend, db: psycopg.Connection) -> None:
    backend.add("k", 5, MINUTE)
    assert [backend.decr("k", 2, 1, MINUTE) for _ in range(3)] == [True, True, False]
    assert counter(db, "k") == 1
    assert not backend.decr("absent", 1, 1, MINUTE)
    assert column(db, "SELECT key FROM pgqueue.statuses") == ["dramatiq-limits:k"]


def test_a_counter_ends_with_its_time(backend: PgqueueRateLimiterBackend) -> None:
    backend.add("k", 5, 1)
    eventually(lambda: backend.add("k", 6, MINUTE))


def test_a_sum_stops_at_the_maximum(backend: PgqueueRateLimiterBackend, db: psycopg.Connection) -> None:
    keys = ["w@3", "w@2", "w@1"]
    for key in keys[1:]:
        backend.incr(key, 2, 9, MINUTE)
    assert [backend.incr_and_sum("w@3", lambda: keys, 1, 6, MINUTE) for _ in range(3)] == [True, True, False]
    assert counter(db, "w@3") == 2
    assert not backend.incr_and_sum("w@3", list, 5, 6, MINUTE), "the counter itself would be over it"


def test_a_long_key_is_a_key(backend: PgqueueRateLimiterBackend) -> None:
    assert [backend.add("k" * 300, 1, MINUTE) for _ in range(2)] == [True, False]


# --- at the same time


def test_of_concurrent_adds_one_wins(backend: PgqueueRateLimiterBackend) -> None:
    assert sorted(at_once(lambda n: backend.add("k", n, MINUTE))) == [False] * (THREADS - 1) + [True]


def test_concurrent_changes_are_all_counted(backend: PgqueueRateLimiterBackend, db: psycopg.Connection) -> None:
    """Half of the calls add 3, half take 1 away: a lost update shows in the sum."""
    backend.add("k", 1000, MINUTE)
    done = at_once(lambda n: backend.incr("k", 3, 9999, MINUTE) if n % 2 else backend.decr("k", 1, 0, MINUTE), 20)
    assert all(done)
    assert counter(db, "k") == 1000 + 80 * 3 - 80


def test_concurrent_increments_stop_at_the_maximum(backend: PgqueueRateLimiterBackend, db: psycopg.Connection) -> None:
    assert sum(at_once(lambda _: backend.incr("k", 1, 50, MINUTE), 20)) == 50
    assert counter(db, "k") == 50


def test_concurrent_sums_over_different_keys_stop_at_the_maximum(backend: PgqueueRateLimiterBackend) -> None:
    """As at the turn of a second: each call writes another key, and reads all of them."""
    keys = [f"w@{n}" for n in range(THREADS)]
    assert sum(at_once(lambda n: backend.incr_and_sum(keys[n % THREADS], lambda: keys, 1, 5, MINUTE), 5)) == 5


def test_a_sum_has_what_was_added_for_the_next_second(
    backend: PgqueueRateLimiterBackend, db: psycopg.Connection, threads: ThreadPoolExecutor
) -> None:
    """T1 waits for the lock while the second ends, and T2 adds to the next one."""
    lock, seconds = statements.lock(["dramatiq-limits:w"]), [1]
    with db.transaction():  # T2
        db.execute(lock.sql, lock.args)
        admitted = threads.submit(backend.incr_and_sum, "w@1", lambda: [f"w@{n}" for n in seconds], 1, 3, MINUTE)
        eventually(lambda: value(db, WAITING) == 1)
        db.execute("SELECT pgqueue.set_status('dramatiq-limits:w@2', '3')")
        seconds.append(2)
    assert not admitted.result(30)


def test_sums_over_several_limiters_do_not_wait_for_each_other(backend: PgqueueRateLimiterBackend) -> None:
    """Their locks are taken in one order, whatever that of the keys is."""
    orders = [["a", "b", "c"], ["c", "b", "a"]]
    done = at_once(lambda n: backend.incr_and_sum(orders[n % 2][0], lambda: orders[n % 2], 1, 999, MINUTE), 10)
    assert all(done)


# --- limiters and barriers


def test_a_mutex(backend: PgqueueRateLimiterBackend) -> None:
    mutex, holders, most = ConcurrentRateLimiter(backend, "m", limit=2), [], []

    def work(n: int) -> bool:
        with mutex.acquire(raise_on_failure=False) as acquired:
            if acquired:
                holders.append(n)
                most.append(len(holders))
                holders.remove(n)
            return bool(acquired)

    assert any(at_once(work, 10))
    assert max(most) <= 2


@pytest.mark.slow
def test_limiters_of_rates(backend: PgqueueRateLimiterBackend) -> None:
    window = WindowRateLimiter(backend, "w", limit=3, window=3600)
    bucket = BucketRateLimiter(backend, "b", limit=3, bucket=365 * 86_400_000)
    for limiter in (window, bucket):

        def work(_: int, limiter: Any = limiter) -> bool:
            with limiter.acquire(raise_on_failure=False) as acquired:
                return bool(acquired)

        assert sum(at_once(work, 2)) == 3


def test_a_barrier_is_passed_by_all_at_once(backend: PgqueueRateLimiterBackend) -> None:
    barrier = Barrier(backend, "b", ttl=MINUTE)
    assert barrier.create(parties=THREADS)
    assert not barrier.create(parties=1)
    assert at_once(lambda _: barrier.wait(timeout=30_000)) == [True] * THREADS


def test_a_barrier_without_its_last_party(backend: PgqueueRateLimiterBackend) -> None:
    barrier = Barrier(backend, "b", ttl=MINUTE)
    barrier.create(parties=3)
    assert not barrier.wait(block=False)
    assert not barrier.wait(timeout=10)
    assert barrier.wait(block=False)
    assert backend.wait("b@events", None), "a wait that comes late is over at once"
