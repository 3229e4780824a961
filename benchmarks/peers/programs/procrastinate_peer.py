"""procrastinate: an async task, several at once in one worker; finished jobs are deleted."""

from __future__ import annotations

import asyncio

from common import Handle, Peer, Ready, main, timed, versions
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

CONCURRENCY = 20


def setup(address: str) -> None:
    with App(connector=SyncPsycopgConnector(conninfo=address)).open() as app:
        app.schema_manager.apply_schema()


def put(address: str, items: list, batch: int) -> float:
    app = App(connector=SyncPsycopgConnector(conninfo=address))

    @app.task(name="bench")
    def task(data: dict) -> None: ...

    with app.open():
        app.check_connection()
        if batch == 1:
            return timed(lambda some: task.defer(data=some[0]), items, 1)
        return timed(lambda some: task.batch_defer(*({"data": each} for each in some)), items, batch)


def work(address: str, handle: Handle, ready: Ready) -> None:
    app = App(connector=PsycopgConnector(conninfo=address, min_size=CONCURRENCY + 2, max_size=CONCURRENCY + 2))

    @app.task(name="bench")
    async def task(data: dict) -> None:
        handle(data)

    async def run() -> None:
        async with app.open_async():
            ready()
            await app.run_worker_async(concurrency=CONCURRENCY, delete_jobs="always")

    asyncio.run(run())


main(
    Peer(
        f"concurrency={CONCURRENCY}, an async task, delete_jobs='always', a pool of {CONCURRENCY + 2} connections",
        lambda address: "durable: with fsync",
        lambda address: versions("procrastinate", "psycopg"),
        setup,
        put,
        work,
    )
)
