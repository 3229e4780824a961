"""The handlers of `pgqueue worker`. Half of the tasks are acked by the handler, half by the worker; some fail once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pgqueue

from .work import LANES
from .workers import current

(work,) = current
FAILING = 50  # one task of so many fails at its first attempt

functions = work.client()
coroutines = pgqueue.AsyncClient(work.dsn, listen_dsn=work.listen_dsn)


@contextmanager
def _handling(task: pgqueue.Task | pgqueue.AsyncTask) -> Iterator[tuple[str, bool]]:
    """Journal a run. Gives the task's label, and whether the handler is to ack it itself."""
    label = work.took(task)
    number = int(label.rpartition(".")[2])
    by_handler = number % 2 == 0
    try:
        if number % FAILING == 1 and task.attempts == 0:
            raise RuntimeError("the first attempt fails")
        yield label, by_handler
    except Exception:
        work.journal.write("failed", label)
        raise
    if not by_handler:
        work.journal.write("handled", label)


@functions.handler("work")
@functions.handler(LANES)
def handle(data: object, task: pgqueue.Task) -> None:
    with _handling(task) as (label, by_handler):
        time.sleep(work.hold())
        if by_handler:
            with work.acking([label]):
                task.ack()


@coroutines.handler("work-async")
async def handle_async(data: object, task: pgqueue.AsyncTask) -> None:
    with _handling(task) as (label, by_handler):
        await asyncio.sleep(work.hold())
        if by_handler:
            with work.acking([label]):
                await task.ack()
