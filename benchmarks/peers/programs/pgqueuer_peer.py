"""PgQueuer: asyncpg and uvloop as in its own benchmark, autovacuum and batch size as in its performance guide."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta

import asyncpg
import uvloop
from common import Handle, Peer, Ready, batches, main, versions
from pgqueuer.core.qm import QueueManager
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries
from psycopg.conninfo import conninfo_to_dict

BATCH = 100
ENTRYPOINT = "bench"


async def connected(address: str) -> asyncpg.Connection:
    found = conninfo_to_dict(address)
    return await asyncpg.connect(
        host=found["host"], port=int(found.get("port", 5432)), user=found["user"], database=found["dbname"]
    )


def setup(address: str) -> None:
    async def install() -> None:
        queries = Queries(AsyncpgDriver(await connected(address)))
        await queries.install()
        await queries.optimize_autovacuum()

    uvloop.run(install())


def put(address: str, items: list, batch: int) -> float:
    async def run() -> float:
        queries = Queries(AsyncpgDriver(await connected(address)))
        began = time.perf_counter()
        for some in batches(items, batch):
            payloads = [json.dumps(each, separators=(",", ":")).encode() for each in some]
            if batch == 1:
                await queries.enqueue(ENTRYPOINT, payloads[0])
            else:
                await queries.enqueue([ENTRYPOINT] * len(some), payloads, [0] * len(some))
        return time.perf_counter() - began

    return uvloop.run(run())


def work(address: str, handle: Handle, ready: Ready) -> None:
    async def run() -> None:
        manager = QueueManager(Queries(AsyncpgDriver(await connected(address))))

        @manager.entrypoint(ENTRYPOINT)
        async def task(job) -> None:
            handle(json.loads(job.payload))

        ready()
        await manager.run(dequeue_timeout=timedelta(seconds=30), batch_size=BATCH)

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(run())


main(
    Peer(
        f"asyncpg, uvloop, batch_size={BATCH}, an async handler, optimize_autovacuum()",
        lambda address: "durable: all tables logged, with fsync",
        lambda address: versions("pgqueuer", "asyncpg", "uvloop"),
        setup,
        put,
        work,
    )
)
