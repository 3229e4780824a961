"""pgqueue, with its own worker."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))  # a checkout without an installation

from common import Handle, Peer, Ready, main, timed, versions

import pgqueue
from pgqueue.worker import Worker

QUEUE = "bench"


def setup(address: str) -> None:
    with pgqueue.Client(address) as client:
        client.queue(QUEUE).take(0)


def put(address: str, items: list, batch: int) -> float:
    with pgqueue.Client(address) as client:
        queue = client.queue(QUEUE)
        queue.stats()  # connects
        if batch == 1:
            return timed(lambda some: queue.put(some[0]), items, 1)
        return timed(queue.put_many, items, batch)


def work(address: str, handle: Handle, ready: Ready) -> None:
    with pgqueue.Client(address) as client:
        client.queue("another").take(0)  # connects
        worker = Worker(client, {QUEUE: handle})
        ready()
        worker.run()


main(
    Peer(
        "Worker with its defaults",
        lambda address: "durable: a put returns after its commit, with fsync",
        lambda address: "this checkout, " + versions("psycopg"),
        setup,
        put,
        work,
    )
)
