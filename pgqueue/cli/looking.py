"""`pgqueue list`, `peek-next`, `queues` and `health`: looks that take nothing."""

from __future__ import annotations

import sys
from dataclasses import asdict
from math import isfinite
from typing import get_args

import click

from .._calls.find import Filter, FilterArguments, State
from .._calls.find import tasks as listed
from .._calls.health import Check
from .._calls.health import health as checks
from .._calls.pick import FIRST
from .._calls.queue import QueueInfo
from .._records.task import TaskRecord, from_found
from .._values import printable
from ..terminal import duration, figure
from .connecting import connect
from .filtering import filtered
from .plainly import FAILED, nothing, plainly
from .printing import as_dict, cell, column, cut, echo_all, echo_task, state_column
from .values import QUEUE, json_lines

LIMIT = click.IntRange(1, 1_000_000)
SKIP = click.IntRange(0, 1_000_000)


@click.command("list")
@click.argument("queue", type=QUEUE)
@click.option(
    "-s",
    "--state",
    type=click.Choice(get_args(State)),
    help="Only tasks in this state; done: those that the queue keeps.",
)
@click.option("-n", "--limit", type=LIMIT, default=20, show_default=True, help="The most tasks to list.")
@click.option("--skip", type=SKIP, default=0, help="The number of tasks to skip first.")
@filtered
@json_lines
@click.pass_obj
@plainly
def list_tasks(
    dsn: str | None, queue: str, state: State | None, limit: int, skip: int, which: FilterArguments, as_json: bool
) -> None:
    """List tasks of QUEUE without taking them, in the order of their state; by default one state after another."""
    with connect(dsn) as client:
        client.queue(queue).info()  # fails if there is no such queue
        found = client.shell.run(listed(queue, state, limit, skip, Filter.of(**which)))
        tasks = [from_found(TaskRecord, row) for row in found]
    echo_all(
        tasks,
        as_json,
        as_dict,
        (
            "ID",
            state_column(),
            column("PRIORITY", 3),
            column("ATTEMPTS", 2),
            column("REMARK", 1, folds=True),
            column("DATA", folds=True),
        ),
        lambda t: (t.id, t.state, t.priority, t.attempts, cut(_remark(t)), cut(printable.readable(t.data))),
    )


@click.command("peek-next")
@click.argument("queue", type=QUEUE)
@click.option(
    "-s", "--state", type=click.Choice(FIRST), default=FIRST[0], show_default=True, help="The state of the task."
)
@json_lines
@click.pass_obj
@plainly
def peek_next(dsn: str | None, queue: str, state: str, as_json: bool) -> None:
    """Show the task that will be taken, become ready, or be kicked next. Exit code 3 if there is none."""
    with connect(dsn) as client:
        client.queue(queue).info()
        task = client.queue(queue).peek_next(state)
    if task is None:
        nothing()
    echo_task(task, as_json)


@click.command()
@click.option("--prefix", default="", help="Only queues with names that begin with this.")
@json_lines
@click.pass_obj
@plainly
def queues(dsn: str | None, prefix: str, as_json: bool) -> None:
    """List the queues with their options."""
    with connect(dsn) as client:
        found = client.queues(prefix=prefix)
    columns = (column("QUEUE", folds=True), column("CREATED", 1), column("OPTIONS", folds=True))
    echo_all(found, as_json, QueueInfo.as_dict, columns, lambda q: (q.name, q.created_at, _options(q)))


@click.command()
@json_lines
@click.pass_obj
@plainly
def health(dsn: str | None, as_json: bool) -> None:
    """Show the health checks of the database; exit code 1 if one is bad."""
    with connect(dsn) as client:
        found = client.shell.run(checks())
    echo_all(
        found,
        as_json,
        lambda c: c._asdict() | {"value": c.value if isfinite(c.value) else None},
        (
            column("CHECK", folds=True),
            state_column("STATUS"),
            column("VALUE", plain=_measured, shown=_readable),
            column("DETAIL", folds=True),
        ),
        lambda c: (c.name, c.status, c, c.detail),
    )
    if any(check.status == "bad" for check in found):
        sys.exit(FAILED)


def _measured(check: Check) -> str:
    return f"{check.value:.10g} {check.unit}"


def _readable(check: Check) -> str:
    """The value for people: ages in the units of a clock, and separators of thousands."""
    if check.unit in ("s", "seconds") and isfinite(check.value):
        return duration(check.value)
    return f"{figure(check.value)} {check.unit}" if isfinite(check.value) else _measured(check)


def _options(info: QueueInfo) -> str:
    """The options that differ from those of a queue that a put has created."""
    known = asdict(info)
    del known["name"], known["created_at"], known["role"]
    return " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={cell(value)}"
        for name, value in known.items()
        if value not in (None, False, 0)
    )


def _remark(task: TaskRecord) -> str | None:
    """A remark for a task, by its state."""
    if task.state == "taken":
        return task.holder
    return f"until {cell(task.run_at)}" if task.state == "delayed" else task.error
