"""Celery, over Redis and over RabbitMQ: the address says which.

The worker's settings are those that Celery's guide on optimizing names for many short tasks: a large prefetch, no
results, no events. The pool `solo` runs the tasks in the worker's own process.
"""

from __future__ import annotations

import time

import redis
from celery import Celery, signals
from common import Handle, Peer, Ready, main, timed, versions
from kombu import Exchange, Queue

PREFETCH = 128


def application(address: str) -> Celery:
    """For an address with the queue's name as its fragment."""
    url, _, queue = address.partition("#")
    app = Celery("bench", broker=url)
    app.conf.update(
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_queues=[Queue(queue, Exchange(queue), routing_key=queue)],
        task_default_queue=queue,
        task_default_exchange=queue,
        task_default_routing_key=queue,
        worker_prefetch_multiplier=PREFETCH,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,  # `up` is for the process that started this one
        broker_connection_retry_on_startup=False,
        broker_transport_options={"global_keyprefix": f"{queue}:"}
        if url.startswith("redis")
        else {"confirm_publish": True},
    )
    return app


def store_of(address: str) -> redis.Redis:
    return redis.Redis.from_url(address.partition("#")[0])


def described(address: str) -> str:
    if address.startswith("redis"):
        return f"{versions('celery', 'redis')}, Redis {store_of(address).info('server')['redis_version']}"
    with application(address).connection_for_write() as connection:
        return f"{versions('celery', 'amqp')}, RabbitMQ {connection.connection.server_properties['version']}"


def durability(address: str) -> str:
    if not address.startswith("redis"):
        return "durable: persistent messages, a put returns when RabbitMQ has confirmed it"
    found = store_of(address).config_get("append*")
    if found["appendonly"] == "no":
        return "not durable: Redis without an append-only file loses the tasks in a crash"
    fsync = found["appendfsync"]
    return f"append-only file, fsync {fsync}" + (
        "" if fsync == "always" else ": the last second may be lost in a crash"
    )


def setup(address: str) -> None:
    with application(address).connection_for_write() as connection:
        connection.ensure_connection(max_retries=0, timeout=2)


def clear(address: str) -> None:
    name = address.partition("#")[2]
    if address.startswith("redis"):
        for key in store_of(address).scan_iter(f"{name}:*"):
            store_of(address).delete(key)
        return
    with application(address).connection_for_write() as connection:
        channel = connection.default_channel
        Queue(name, channel=channel).delete()
        Exchange(name, channel=channel).delete()


def put(address: str, items: list, batch: int) -> float:
    """Celery has no call for many tasks: they are put one by one over one connection."""
    app = application(address)

    @app.task(name="bench")
    def task(data: dict) -> None: ...

    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        return timed(lambda some: [task.apply_async((each,), producer=producer) for each in some], items, batch)


def work(address: str, handle: Handle, ready: Ready) -> None:
    app = application(address)

    @app.task(name="bench")
    def task(data: dict) -> None:
        handle(data)

    signals.worker_ready.connect(lambda **about: ready(), weak=False)
    worker = app.Worker(
        pool="solo",
        concurrency=1,
        hostname=f"bench-{time.monotonic_ns()}@%h",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel="ERROR",
        quiet=True,
    )
    worker.start()


main(
    Peer(
        f"pool solo, worker_prefetch_multiplier={PREFETCH}, no results, no events, early acks (the default)",
        durability,
        described,
        setup,
        put,
        work,
        clear,
    )
)
