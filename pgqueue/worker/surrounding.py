"""The middleware around a job's function: its view of the run, from the runner's own record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._calls.take import Taken
from .._values import data
from ..jobs.job import Job
from ..jobs.middleware import Running, around_arun, around_run
from .failures import Failure, failure
from .runs import OVER, STOPPED, Run, current
from .serving import Policy

Policies = Callable[[Taken], Policy]


def surrounded(job: Job[..., Any], policy: Policies, instead: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """The job's function, within its middleware as it is now. Without middleware: the function itself.

    Args:
        instead: a blocking function that is called in place of the job's.
    """
    function, middleware = instead or job.function, job.middleware
    if not middleware:
        return function

    def call(**values: Any) -> Any:
        return around_run(middleware, _running(job, policy), lambda: function(**values))

    async def call_async(**values: Any) -> Any:
        return await around_arun(middleware, _running(job, policy), lambda: function(**values))

    return call_async if job.is_async and instead is None else call


def _running(job: Job[..., Any], policy: Policies) -> Running:
    run = current.get()
    assert run is not None  # set by the runner or the dispatcher; other threads and loops of the worker inherit it
    row, whole = run.task, data.decode(run.task.data)
    return Running(
        job=job.name,
        queue=row.queue,
        id=row.id,
        attempt=row.attempts + 1,
        waited=max(0.0, row.waited + (run.began - row.arrived if row.arrived else 0.0)),
        args=whole.get("args") or {},
        headers=_strings(whole.get("headers")),
        buries=lambda error: (failed := _failure(run, policy, error)) is not None and failed.delay is None,
        fails=lambda error: (failed := _failure(run, policy, error)) is not None and failed.counts,
        given_up=lambda: run.written_off or run.cut is OVER,
    )


def _failure(run: Run, policy: Policies, error: BaseException) -> Failure | None:
    """What an exception of a handler does to its task; None: it is cancelled or given back, or has been given up."""
    if run.cancelled or run.written_off or run.cut is STOPPED or run.cut is OVER:
        return None
    return failure(run.task, run.failed_by(error), policy(run.task).retry, run.began)


def _strings(headers: Any) -> dict[str, str]:
    """The strings among a task's headers: SQL may put other values, which middleware does not expect."""
    return {name: one for name, one in headers.items() if isinstance(one, str)} if isinstance(headers, dict) else {}
