"""Producers: one by one, many at once, in the caller's transaction, awaiting, and into lanes."""

from __future__ import annotations

import asyncio
from itertools import cycle

import psycopg

import pgqueue

from .work import CALL_FAILED, LANES, PAUSE, QUEUES, TTR, Work, patience

MANY = 5
N_LANES = 3


def one_by_one(work: Work) -> None:
    with work.client() as client:
        queues = cycle([client.queue(name) for name in QUEUES])

        def step() -> None:
            queue, labels = next(queues), work.labels()
            with work.putting(queue.name, labels) as ids:
                ids.append(queue.put({"label": labels[0]}, ttr=TTR).id)
            work.rest()

        work.repeat(step)


def many_at_once(work: Work) -> None:
    with work.client() as client:
        queues = cycle([client.queue(name) for name in QUEUES])

        def step() -> None:
            queue, labels = next(queues), work.labels(MANY)
            with work.putting(queue.name, labels) as ids:
                ids += queue.put_many([{"label": label} for label in labels], ttr=TTR)
            for _ in labels:
                work.rest()

        work.repeat(step)


def in_transaction(work: Work) -> None:
    """Two puts in one transaction of the caller's: both or none."""
    with work.client() as client:
        queues = cycle([client.queue(name) for name in QUEUES])
        connections: list[psycopg.Connection] = []

        def step() -> None:
            while connections and (connections[0].closed or connections[0].broken):
                connections.pop().close()
            if not connections:
                connections.append(work.connect())
            queue, labels = next(queues), work.labels(2)
            own = connections[0]
            with work.putting(queue.name, labels) as ids, patience(own), own.transaction():
                for label in labels:
                    ids.append(queue.put({"label": label}, ttr=TTR, conn=own).id)
            for _ in labels:
                work.rest()

        work.repeat(step)
        for connection in connections:
            connection.close()


def awaiting(work: Work) -> None:
    asyncio.run(_awaiting(work))


async def _awaiting(work: Work) -> None:
    async with pgqueue.AsyncClient(work.dsn, listen_dsn=work.listen_dsn) as client:
        queues = cycle([client.queue(name) for name in QUEUES])
        while not work.over:
            queue, labels = next(queues), work.labels()
            try:
                with work.putting(queue.name, labels) as ids:
                    ids.append((await queue.put({"label": labels[0]}, ttr=TTR)).id)
            except CALL_FAILED as error:
                work.failed(error)
                await asyncio.sleep(PAUSE)
            await asyncio.sleep(work.pause * work.random.uniform(0.5, 1.5))


def in_lanes(work: Work) -> None:
    with work.client() as client:
        queue, lanes = client.queue(LANES), cycle([f"lane {n}" for n in range(N_LANES)])

        def step() -> None:
            lane, labels = next(lanes), work.labels()
            with work.putting(queue.name, labels, lane) as ids:
                ids.append(queue.put({"label": labels[0]}, ttr=TTR, lane=lane).id)
            work.rest()

        work.repeat(step)
