"""`pgqueue workers` and `pgqueue jobs`: which workers run, and how the runs of each job went."""

from __future__ import annotations

from typing import Any

import click

from .. import Client
from .._calls.tallies import JobStats
from .plainly import plainly
from .printing import echo_all
from .values import json_lines

NUMBERS = ("done", "failed", "retried", "timeouts", "cancelled", "taken")
TIMES = ("wait_p50", "wait_p95", "run_p50", "run_p95")


@click.command()
@json_lines
@click.pass_obj
@plainly
def workers(dsn: str | None, as_json: bool) -> None:
    """List the workers that run, with the queues and jobs that each serves."""
    with Client(dsn) as client:
        found = client.workers()
    echo_all(
        found,
        as_json,
        lambda one: one._asdict() | {"started_at": one.started_at.isoformat()},
        ("WORKER", "STATE", "SINCE", "CONCURRENCY", "QUEUES", "JOBS"),
        lambda one: (one.name, one.state, one.started_at, one.concurrency, ", ".join(one.queues), ", ".join(one.jobs)),
    )


@click.command()
@json_lines
@click.pass_obj
@plainly
def jobs(dsn: str | None, as_json: bool) -> None:
    """Show the runs of each job in the last hour: how they ended, and how long tasks waited and runs took."""
    with Client(dsn) as client:
        found = client.job_stats()
    headings = ["QUEUE", "JOB", *map(str.upper, NUMBERS), *map(str.upper, TIMES)]
    echo_all(found, as_json, JobStats._asdict, headings, _row)


def _row(one: JobStats) -> list[Any]:
    return [
        one.queue,
        one.job or "(handler)",
        *(getattr(one, name) for name in NUMBERS),
        *(_seconds(getattr(one, name)) for name in TIMES),
    ]


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g} s"
