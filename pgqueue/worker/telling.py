"""The lines of a worker about itself: at its start, when it stops, and to an orchestrator that asks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._engine import dsn
from .._engine.core import Core
from ..jobs.job import Job
from ..jobs.retry import Retry
from .health import Report
from .limiting import shown
from .means import is_isolated
from .overdue import Limits
from .runs import Run
from .served import Served

HANGS = 10.0  # seconds without a look of the watch after which a worker does not count as alive
SHOWN = 5  # handlers in a line


def banner(
    cores: Sequence[Core],
    spread: int | None,
    served: Served,
    concurrency: int,
    shares: Mapping[str, int],
    policy: Retry,
    limits: Limits,
    grace: float | None,
) -> str:
    """The queues that a worker serves, the database and the limits. Without secrets. Does not connect.

    Args:
        spread: how many of the servers it will serve; None: all.
    """
    jobs = served.jobs.by_queue()
    queues = ", ".join(
        f"{queue} ({_jobs(jobs.get(queue, []))})" if queue in served.queues else queue for queue in served.names
    )
    few = "" if spread is None or spread >= len(cores) else f"{spread} of "
    places = few + " and ".join(dsn.describe(core.address()) for core in cores)
    rest = ", ".join([*_places(concurrency, shares), *_limits(policy, limits, grace)])
    return f"{queues}; on {places}; {rest}"


def _jobs(jobs: Sequence[Job[..., Any]]) -> str:
    return ", ".join(map(_job, jobs)) or "any job"


def _job(job: Job[..., Any]) -> str:
    limit = shown(job.limit)
    return f"{job.name}{' in a process' if is_isolated(job) else ''}{f', {limit}' if limit else ''}"


def _places(concurrency: int, shares: Mapping[str, int]) -> Iterator[str]:
    yield f"{concurrency} at once of each kind"
    for queue, share in shares.items():
        yield f"{share} of {queue}"


def _limits(policy: Retry, limits: Limits, grace: float | None) -> Iterator[str]:
    yield "any number of attempts" if policy.attempts is None else f"{policy.attempts} attempts"
    yield "no time limit" if limits.hard is None else f"time limit {limits.hard:g} s"
    if limits.soft is not None:
        yield f"soft time limit {limits.soft:g} s"
    yield "unlimited grace" if grace is None else f"grace {grace:g} s"


def report(cores: Sequence[Core], ended_thread: str | None, looked_at: float, neglected: str | None) -> Report:
    """Whether a worker that has begun is alive and ready.

    Args:
        ended_thread: a thread of its shift that has ended and should not have.
        looked_at: the monotonic time of the last look of its watch.
        neglected: the tasks that wait although runners are idle.
    """
    if ended_thread is not None:
        return Report(live=False, ready=False, why=f"its thread {ended_thread} has ended")
    if time.monotonic() - looked_at > HANGS:
        return Report(live=False, ready=False, why="its threads do not go on")
    if not any((listener := core.running_listener) and listener.session is not None for core in cores):
        return Report(live=True, ready=False, why="it has no session in the database")  # the log says why
    return Report(live=True, ready=neglected is None, why=neglected)


def farewell(runs: Sequence[Run], grace: float | None) -> str:
    """The handlers for which a stop waits."""
    if not runs:
        return "no handler is under way"
    left = "without limit" if grace is None else f"for {grace:g} s at most"
    return f"{len(runs)} handler{'s' if len(runs) > 1 else ''} may finish, {left}: {under_way(runs)}"


def under_way(runs: Sequence[Run]) -> str:
    """The handlers under way, the longest first."""
    now, oldest = time.monotonic(), sorted(runs, key=lambda run: run.began)
    shown = [f"task {run.task.id} of {run.task.queue} ({max(0.0, now - run.began):.1f} s)" for run in oldest[:SHOWN]]
    return ", ".join(shown + [f"and {len(runs) - SHOWN} more"] * (len(runs) > SHOWN))
