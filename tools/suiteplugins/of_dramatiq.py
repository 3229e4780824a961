"""A plugin of pytest for Dramatiq's tests, which has the broker and backends of SUITE_URL in the place of all others.

They are pgqueue's, or Redis's if the URL is one. Its fixtures are those of Dramatiq's conftest.py, which is not loaded.
`join` of Dramatiq's broker in memory raises the error of a dead letter, and so does that of its stand-in.
"""

from __future__ import annotations

import os

import dramatiq
import pytest
from dramatiq.middleware import Middleware

URL = os.environ["SUITE_URL"]

if URL.startswith("redis"):
    import redis
    from dramatiq.brokers.redis import RedisBroker as Broker
    from dramatiq.rate_limits.backends import RedisBackend as Limits
    from dramatiq.results.backends import RedisBackend as Results

    def empty():
        redis.Redis.from_url(URL).flushall()
else:
    import psycopg

    from pgqueue.contrib.dramatiq import PgqueueBroker as Broker
    from pgqueue.contrib.dramatiq import PgqueueRateLimiterBackend as Limits
    from pgqueue.contrib.dramatiq import PgqueueResultBackend as Results

    def empty():
        with psycopg.connect(URL) as conn:
            conn.execute("DELETE FROM pgqueue.status")
            conn.execute("SELECT pgqueue.delete_queue(name => name, force => true) FROM pgqueue.queues")


class Dead(Middleware):
    def __init__(self):
        self.errors, self.messages = [], []

    def before_nack(self, broker, message):
        self.errors.append(message._exception or Exception("rejected"))
        self.messages.append(message)


@pytest.fixture
def broker():
    empty()
    broker = Broker(url=URL)
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.close()


@pytest.fixture
def redis_broker(broker):
    return broker


@pytest.fixture
def rabbitmq_broker(broker):
    join = broker.join
    broker.join = lambda queue_name, *successes, timeout=None, **idle: join(queue_name, timeout=timeout)
    return broker


@pytest.fixture
def stub_broker(broker, request):
    dead, join = Dead(), broker.join
    if "leak" not in request.node.name:  # such a test counts the errors that are held
        broker.add_middleware(dead)
    broker.dead_letters = dead.messages

    def joined(queue_name, *, timeout=None, fail_fast=True):
        join(queue_name, interval=10, timeout=timeout or 60_000)
        if fail_fast and dead.errors:
            raise dead.errors[0] from None

    broker.join = joined
    return broker


def working(broker, **options):
    worker = dramatiq.Worker(broker, worker_threads=32, **options)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture
def redis_worker(redis_broker):
    yield from working(redis_broker)


@pytest.fixture
def rabbitmq_worker(rabbitmq_broker):
    yield from working(rabbitmq_broker)


@pytest.fixture
def stub_worker(stub_broker):
    yield from working(stub_broker, worker_timeout=100)


@pytest.fixture
def result_backend():
    empty()
    return Results(url=URL)


@pytest.fixture
def result_backends(result_backend):
    return {"redis": result_backend, "stub": result_backend}


@pytest.fixture
def rate_limiter_backend():
    empty()
    return Limits(url=URL)


@pytest.fixture
def rate_limiter_backends(rate_limiter_backend):
    return {"redis": rate_limiter_backend, "stub": rate_limiter_backend}


redis_result_backend = stub_result_backend = result_backend
redis_rate_limiter_backend = stub_rate_limiter_backend = rate_limiter_backend
