"""Calls of 6_families/tallies.sql: the statistics of jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple, TypedDict

from .call import Call, call, query, scalar

#: As run_bounds() in SQL; a test compares.
BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0),
)
MOST = 1000  # jobs in a call


class Runs(TypedDict):
    """The counts of one job since a worker's last call."""

    queue: str
    job: str
    done: int
    failed: int
    retried: int
    timeouts: int
    cancelled: int
    waited: float
    ran: float
    waits: list[int]
    runs: list[int]


class JobRuns(NamedTuple):
    """A row of job_runs. Times in seconds."""

    queue: str
    job: str
    done: int
    failed: int
    retried: int
    timeouts: int
    cancelled: int
    waited: float
    ran: float
    waits: list[int]
    runs: list[int]


class JobStats(NamedTuple):
    """A row of the view pgqueue.job_stats. Times in seconds."""

    queue: str
    job: str
    done: int
    failed: int
    retried: int
    timeouts: int
    cancelled: int
    taken: int
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None


def count_runs(writer: int, batch: int, runs: Sequence[Runs]) -> Call[int]:
    return call("count_runs", None, scalar, writer=writer, batch=batch, runs=json.dumps(runs))


def job_stats() -> Call[list[JobStats]]:
    return query(
        "SELECT queue, job, done, failed, retried, timeouts, cancelled, taken, wait_p50, wait_p95, run_p50, run_p95"
        " FROM pgqueue.job_stats ORDER BY queue, job",
        (),
        lambda rows: [JobStats(*row) for row in rows],
    )
