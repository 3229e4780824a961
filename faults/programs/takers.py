"""Takers: one by one, many at once, awaiting, of lanes; and one that knows SQL only."""

from __future__ import annotations

import asyncio
import contextlib
import time

import psycopg

import pgqueue

from .work import CALL_FAILED, LANES, PAUSE, TIMEOUT, Work, patience

MANY = 10


def one_by_one(work: Work) -> None:
    _take("shared", work)


def in_lanes(work: Work) -> None:
    _take(LANES, work)


def _take(name: str, work: Work) -> None:
    with work.client() as client:
        queue = client.queue(name)

        def step() -> None:
            work.journal.write("taking")
            task = queue.take(TIMEOUT)
            if task is not None:
                label = work.took(task)
                time.sleep(work.hold())
                work.settle([label], task.ack)

        work.repeat(step)


def many_at_once(work: Work) -> None:
    with work.client() as client:
        queue = client.queue("shared")

        def step() -> None:
            work.journal.write("taking")
            tasks = queue.take_many(MANY, TIMEOUT)
            labels = [work.took(task) for task in tasks]
            if tasks:
                time.sleep(work.hold())
                work.settle(labels, lambda: queue.ack_many(tasks))

        work.repeat(step)


def awaiting(work: Work) -> None:
    asyncio.run(_awaiting(work))


async def _awaiting(work: Work) -> None:
    async with pgqueue.AsyncClient(work.dsn, listen_dsn=work.listen_dsn) as client:
        queue = client.queue("shared")
        while not work.over:
            try:
                work.journal.write("taking")
                task = await queue.take(TIMEOUT)
                if task is not None:
                    await _settle(task, work)
            except CALL_FAILED as error:
                work.failed(error)
                await asyncio.sleep(PAUSE)


async def _settle(task: pgqueue.AsyncTask, work: Work) -> None:
    label = work.took(task)
    await asyncio.sleep(work.hold())
    while True:
        try:
            with work.acking([label]):
                await task.ack()
            return
        except pgqueue.TakeLost:
            return
        except CALL_FAILED as error:
            work.failed(error)
            if work.over:
                return
            await asyncio.sleep(PAUSE)


def in_sql(work: Work) -> None:
    """The functions from a plain connection, as a program in another language calls them. It polls."""
    while not work.over:
        try:
            with work.connect(direct=True) as connection:
                connection.execute("SELECT pgqueue.open_session()")
                while not work.over:
                    with patience(connection):
                        _one_in_sql(connection, work)
        except psycopg.Error as error:
            work.failed(error)
            time.sleep(PAUSE)


def _one_in_sql(connection: psycopg.Connection, work: Work) -> None:
    work.journal.write("taking")
    taken = connection.execute("SELECT id, token, data ->> 'label' FROM pgqueue.take('sql')").fetchone()
    if taken is None:
        time.sleep(0.02)
        return
    id, token, label = taken
    work.journal.write("took", label, id, token)
    time.sleep(work.hold())
    with contextlib.suppress(pgqueue.TakeLost), work.acking([label]):
        answer = connection.execute("SELECT problem FROM pgqueue.ack(%s, %s)", [id, token]).fetchone()
        if answer is None or answer[0] is not None:
            raise pgqueue.TakeLost(f"task {id}: {answer}")
