"""pgmq: its SQL, which the package brings, installed without the extension, and a loop of read, handle, delete.

pgmq has no worker: what it leaves to the application (retries of a handler that fails, stopping) this loop leaves out.
"""

from __future__ import annotations

from common import Handle, Peer, Ready, main, timed, versions
from pgmq import PGMQueue
from pgmq.install import get_embedded_install_sql, get_embedded_sql_version, install_pgmq_sql

QUEUE, BATCH, POLL = "bench", 100, 10  # messages; milliseconds


def opened(address: str) -> PGMQueue:
    return PGMQueue(conn_string=address, init_extension=False, vt=30)


def setup(address: str) -> None:
    install_pgmq_sql(get_embedded_install_sql(), dsn=address)
    opened(address).create_queue(QUEUE)


def put(address: str, items: list, batch: int) -> float:
    queue = opened(address)
    if batch == 1:
        return timed(lambda some: queue.send(QUEUE, some[0]), items, 1)
    return timed(lambda some: queue.send_batch(QUEUE, some), items, batch)


def work(address: str, handle: Handle, ready: Ready) -> None:
    queue = opened(address)
    queue.list_queues()  # connects
    ready()
    while True:
        messages = queue.read_with_poll(QUEUE, qty=BATCH, max_poll_seconds=5, poll_interval_ms=POLL)
        for message in messages:
            handle(message.message)
        if messages:
            queue.delete_batch(QUEUE, [message.msg_id for message in messages])


main(
    Peer(
        f"read_with_poll of {BATCH}, every {POLL} ms; delete_batch",
        lambda address: "durable: logged tables, with fsync",
        lambda address: f"{versions('pgmq')}, its SQL {get_embedded_sql_version()}, {versions('psycopg')}",
        setup,
        put,
        work,
    )
)
