"""`pgqueue changes`: each change of a queue's tasks."""

from __future__ import annotations

import itertools
import queue as queues
from dataclasses import asdict

import click

from .._calls.changes import Change
from .connecting import connect
from .plainly import nothing, plainly
from .printing import cell, echo
from .values import COUNT, QUEUE, json_lines, timeout


@click.command()
@click.argument("queue", type=QUEUE)
@click.option("-n", "--count", type=COUNT, help="End after this number of changes.")
@timeout
@json_lines
@click.pass_obj
@plainly
def changes(dsn: str | None, queue: str, count: int | None, timeout: float | None, as_json: bool) -> None:
    """Print each change of a task of QUEUE from now on, one a line. Exit code 3 if there was none in time."""
    told: queues.SimpleQueue[Change] = queues.SimpleQueue()
    with connect(dsn) as client:
        watched = client.queue(queue)
        watched.info()  # fails if there is no such queue
        watched.on_task_change(told.put)
        for _ in itertools.count() if count is None else range(count):
            try:
                change = told.get(timeout=timeout) if timeout != 0 else told.get_nowait()
            except queues.Empty:
                nothing()
            echo(asdict(change), f"{cell(change.at)} {change.op} {change.task_id}", as_json)
