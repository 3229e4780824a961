"""`pgqueue workers` and `pgqueue jobs`: the workers that run, and the outcomes of each job's runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from .._calls.tallies import JobStats
from .connecting import connect
from .plainly import plainly
from .printing import column, echo_all, state_column, when
from .values import json_lines

#: The columns, and when each is left out of a narrow table: the highest number first.
NUMBERS = {"done": 0, "failed": 0, "retried": 3, "timeouts": 4, "cancelled": 8, "taken": 6}
TIMES = {"wait_p50": 5, "wait_p95": 2, "run_p50": 7, "run_p95": 1}


@click.command()
@json_lines
@click.pass_obj
@plainly
def workers(dsn: str | None, as_json: bool) -> None:
    """List the workers that run, with the queues and jobs that each serves."""
    with connect(dsn) as client:
        found = client.workers()
    echo_all(
        found,
        as_json,
        lambda one: one._asdict() | {"started_at": one.started_at.isoformat()},
        (
            column("WORKER", folds=True),
            state_column(),
            column("SINCE", 1, shown=when),
            column("CONCURRENCY", 3),
            column("QUEUES", folds=True),
            column("JOBS", 2, folds=True),
        ),
        lambda one: (one.name, one.state, one.started_at, one.concurrency, ", ".join(one.queues), ", ".join(one.jobs)),
    )


@click.command()
@json_lines
@click.pass_obj
@plainly
def jobs(dsn: str | None, as_json: bool) -> None:
    """Show the runs of each job in the last hour: how they ended, and how long tasks waited and runs took."""
    with connect(dsn) as client:
        found = client.job_stats()
    columns = [
        column("QUEUE", folds=True),
        column("JOB", folds=True),
        *(column(name.upper(), spare, style=_counted(name)) for name, spare in NUMBERS.items()),
        *(column(name.upper(), spare) for name, spare in TIMES.items()),
    ]
    echo_all(found, as_json, JobStats._asdict, columns, _row)


def _counted(name: str) -> Callable[[int], str]:
    style = "red" if name in ("failed", "timeouts") else ""
    return lambda number: style if number else "dim"


def _row(one: JobStats) -> list[Any]:
    return [
        one.queue,
        one.job or "(handler)",
        *(getattr(one, name) for name in NUMBERS),
        *(_seconds(getattr(one, name)) for name in TIMES),
    ]


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g} s"
