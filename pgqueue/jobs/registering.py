"""The decorator that makes a function a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from .._async.task import AsyncTask
from .._sync.task import Task
from .job import Home, Job, JobWithTask
from .limits import LIMIT
from .options import JobPolicies, Policies, Settings
from .registry import Registry, caller_names, default_name

P = ParamSpec("P")
R = TypeVar("R")
Result = TypeVar("Result", covariant=True)


class RegistryHome(Home, Protocol):
    """A home of jobs that new ones can be added to."""

    @property
    def jobs(self) -> Registry: ...


class WithTask(Protocol[P, Result]):
    """A function whose first parameter is `task: Task`. The checkers compare the parameter's name too."""

    def __call__(self, task: Task, *args: P.args, **kwargs: P.kwargs) -> Result: ...


class WithAsyncTask(Protocol[P, Result]):
    """A function whose first parameter is `task: AsyncTask`."""

    def __call__(self, task: AsyncTask, *args: P.args, **kwargs: P.kwargs) -> Result: ...


class Register(Protocol):
    """The decorator that client.job() returns. To the checkers a Task that is the first parameter is no argument."""

    @overload
    def __call__(self, function: WithTask[P, R], /) -> JobWithTask[P, R]: ...
    @overload
    def __call__(self, function: WithAsyncTask[P, R], /) -> JobWithTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Job[P, R]: ...


def registering(
    home: RegistryHome, queue: str | None, name: str | None, aliases: Sequence[str], policies: JobPolicies
) -> Register:
    """The decorator of Client.job, for jobs with this home. Raises ValueError, as Client.job."""
    if callable(queue):
        raise ValueError(
            f"write @client.job() above {queue.__qualname__}: the first argument of job() is the name of a queue"
        )
    rest: dict[str, Any] = dict(policies)
    limit = {option: rest.pop(option, None) for option in LIMIT}
    own = Settings.of("job()", queue, cast(Policies, rest))

    def register(function: Callable[..., Any], /) -> Job[..., Any]:
        found = default_name(function) if name is None else name
        job: Job[..., Any] = Job(home, function, found, own, tuple(aliases), caller_names(1), limit)
        home.jobs.add(job)
        return job

    return cast(Register, register)
