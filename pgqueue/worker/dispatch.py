"""Jobs in a worker: from the data of a task to a call of the job's function.

A queue of jobs has one dispatching handler. It finds the job by its name, which is at a known place in jsonb's text, so
the text is not decoded for it; the job's codec then reads the arguments from that text in one pass. With three
arguments the call takes 1.0 us if pydantic reads them and 0.7 us if msgspec does; that of a plain handler, for which
msgspec decodes the text, takes 0.3.

A task whose arguments do not fit the job can never run. It is buried at once, under any policy, and its error names the
difference. But a worker with other code may be able to run the task of a job that is unknown here, or of a job that had
another signature where the task was put: the task waits for that worker (newer.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from .._async.task import AsyncTask
from .._calls.take import Taken
from .._engine.shell import ShellBase
from .._records.task import from_taken
from .._sync.task import Task
from .._values import data
from ..errors import BadArguments
from ..jobs.job import Job
from ..jobs.retry import Bury, Newer, Retry, Unrunnable
from .describing import unkept
from .handlers import Noting, insist_on_done
from .homes import AnyHomes
from .means import Means, path
from .runs import Run
from .serving import Finish, Policy, Serving
from .surrounding import Policies, surrounded

T = TypeVar("T")
AnyJob = Job[..., Any]
Jobs = Mapping[str, AnyJob]  # by name, aliases included
One = tuple[str, str, Callable[[Taken], T]]  # of a job: the head of its data, its name, and the function for a row

NO_ONE: One[Any] = ("\0", "", lambda row: None)  # no data begins so
OWN = ', "own": {'  # after the head, in a task with policies of its own
START = '{"job": "'  # of a job's data as jsonb writes it: the shortest key comes first


def serve(homes: AnyHomes, jobs: Jobs, retry: Retry, finish: Finish, means: Means) -> Serving[bool]:
    """The handler of a queue of jobs, in threads. Async jobs run in the loop of the queue's bridge.

    Args:
        retry: the worker's policy, of jobs without one of their own.
        finish: gets the results that are kept.
    """
    policy = _policies(jobs, retry)
    ones = _Ones(jobs, lambda job: _in_thread(homes, job, finish, means, policy))
    return Serving(_dispatch(ones, means.runs.known), policy)


def serve_async(
    homes: AnyHomes, aio: AnyHomes, jobs: Jobs, retry: Retry, finish: Finish, means: Means
) -> Serving[Awaitable[bool]]:
    """The handler of a queue of async jobs, in coroutines. A sync job that was put there has a thread of its own."""
    policy = _policies(jobs, retry)

    def made(job: AnyJob) -> Callable[[Taken], Awaitable[bool]]:
        if job.is_async and not means.isolates(job):
            return means.limited_async(job, _in_loop(aio, job, finish, policy))
        return _beside_loop(homes, job, finish, means, policy)

    return Serving(_dispatch(_Ones(jobs, made), means.runs.known), policy)


class _Ones(dict[str, One[T]], Generic[T]):
    """The functions of the jobs, by all of their names. The job of a registry is looked up when a task has its name."""

    def __init__(self, jobs: Jobs, made: Callable[[AnyJob], Callable[[Taken], T]]) -> None:
        super().__init__()
        self.jobs = jobs
        self._made = made
        for name in jobs:
            self[name]

    def __missing__(self, name: str) -> One[T]:
        job = self.jobs[name]
        found = self[name] = _head(name), job.name, self._made(job)
        return found

    def own(self, row: Taken) -> Callable[[Taken], T] | None:
        """The function for a task with policies of its own; None: it has none. Raises Unrunnable: they are not
        valid."""
        found = _decoded(row.data)
        if not isinstance(own := found.get("own"), dict):
            return None
        try:
            return self._made(self.jobs[found["job"]].varied(own))
        except (ValueError, TypeError) as error:
            raise Unrunnable(f"the task's own policies, {own!r}, are not valid: {error}") from None


def _dispatch(ones: _Ones[T], known: Mapping[int, Run]) -> Callable[[Taken], T]:
    last = next(iter(ones.values()), NO_ONE)  # tasks of one job usually follow each other

    def run(row: Taken) -> T:
        nonlocal last
        head, name, one = last
        as_usual = row.data.startswith(head)
        if not as_usual:
            head, name, one = last = _found(row, ones)
        known[row.id].job = name
        if row.data.startswith(OWN, len(head)) if as_usual else '"own"' in row.data:
            return (ones.own(row) or one)(row)
        return one(row)

    return run


def _in_thread(homes: AnyHomes, job: AnyJob, finish: Finish, means: Means, policy: Policies) -> Callable[[Taken], bool]:
    if means.isolates(job):
        return means.limited(job, _isolated(homes, job, finish, means, policy))
    if not job.is_async:
        return means.limited(job, _blocking(homes, job, finish, policy))

    def in_bridge(row: Taken) -> bool:
        return means.bridges[row.queue].run(
            lambda aio: means.limited_async(job, _in_loop(aio, job, finish, policy))(row), means.runs.of(row)
        )

    return in_bridge


def _beside_loop(
    homes: AnyHomes, job: AnyJob, finish: Finish, means: Means, policy: Policies
) -> Callable[[Taken], Coroutine[Any, Any, bool]]:
    blocking = _in_thread(homes, job, finish, means, policy)
    return lambda row: asyncio.to_thread(blocking, row)


def _isolated(homes: AnyHomes, job: AnyJob, finish: Finish, means: Means, policy: Policies) -> Callable[[Taken], bool]:
    """In a child process, with the middleware around it in this one."""
    load, keep = _loader(job), job.settings.keep_result
    in_child = surrounded(job, policy, partial(means.in_child, job))
    if job.finder is None:
        path(job)  # now, and not at the first task

    def run(row: Taken) -> bool:
        args, home = job.codec.dump(load(row)), Noting(homes.of(row.id))
        result = in_child(row=row, args=args, task=from_taken(Task, row, home))
        if keep and not home.settled:
            if (why := means.runs.of(row).unkept) is not None:
                raise _unkept(job, why)
            finish(row, _encoded(homes.of(row.id), job, result, written=True), keep)  # type: ignore[arg-type]  # seconds by now
            return True
        return home.settled

    return run


def _blocking(homes: AnyHomes, job: AnyJob, finish: Finish, policy: Policies) -> Callable[[Taken], bool]:
    load, function, keep = _loader(job), surrounded(job, policy), job.settings.keep_result

    def without_task(row: Taken) -> bool:
        if (result := function(**load(row))) is not None:
            insist_on_done(result)
        return False

    def with_task(row: Taken) -> bool:
        values, home = load(row), Noting(homes.of(row.id))
        values["task"] = from_taken(Task, row, home)
        insist_on_done(function(**values))
        return home.settled

    def keeping(row: Taken) -> bool:
        values, home = load(row), Noting(homes.of(row.id))
        if job.signature.wants_task:
            values["task"] = from_taken(Task, row, home)
        result = function(**values)
        insist_on_done(result)
        if not home.settled:
            finish(row, _encoded(homes.of(row.id), job, result), keep)  # type: ignore[arg-type]  # seconds by now
        return True

    if keep:
        return keeping
    return with_task if job.signature.wants_task else without_task


def _in_loop(
    homes: AnyHomes, job: AnyJob, finish: Finish, policy: Policies
) -> Callable[[Taken], Coroutine[Any, Any, bool]]:
    load, function, keep = _loader(job), surrounded(job, policy), job.settings.keep_result

    async def without_task(row: Taken) -> bool:
        await function(**load(row))
        return False

    async def with_task(row: Taken) -> bool:
        values, home = load(row), Noting(homes.of(row.id))
        if job.signature.wants_task:
            values["task"] = from_taken(AsyncTask, row, home)
        result = await function(**values)
        if keep and not home.settled:
            finish(row, _encoded(homes.of(row.id), job, result), keep)  # type: ignore[arg-type]
            return True
        return home.settled

    return with_task if keep or job.signature.wants_task else without_task


def _loader(job: AnyJob) -> Callable[[Taken], dict[str, Any]]:
    """Reads the arguments of a row. Raises Unrunnable if they do not fit the job, even after its upgrade; Newer if they
    were put for another signature."""
    codec = job.codec
    load_text = codec.load

    def load(row: Taken) -> dict[str, Any]:
        try:
            return load_text(row.data)
        except ValueError as error:  # BadArguments; or of Python's json
            if job.upgrades is None:
                raise _unfit(job, row, str(error)) from None
        try:
            return codec.load_args(job.upgrades(data.decode(row.data).get("args", {})))
        except BadArguments as error:
            raise _unfit(job, row, f"{error}, after its upgrade") from None
        except Exception as error:
            why = f"the arguments do not fit {job.name}, and its upgrade failed: {error!r}"
            raise _unfit(job, row, why) from error

    return load


def _unfit(job: AnyJob, row: Taken, why: str) -> Unrunnable:
    found = _decoded(row.data)
    version = found.get("sig") if isinstance(found, dict) else None
    return Unrunnable(why) if version in (None, job.version) else Newer(why)


def _head(name: str) -> str:
    """The data of a job as jsonb writes it, up to the end of the name. No head is the beginning of another one."""
    return START[:-1] + json.dumps(name, ensure_ascii=False)


def _found(row: Taken, ones: _Ones[T]) -> One[T]:
    """The function that runs a row. Raises Unrunnable: it is no job's; Newer: it is that of an unknown job."""
    name = _name(row.data)
    if name is None:
        shape = '{"job": "...", "args": {...}}'
        raise Unrunnable(f"{row.queue} is a queue of jobs, and the task's data is not that of a job, {shape}")
    try:
        return ones[name]
    except KeyError:
        known = ", ".join(sorted({job.name for job in ones.jobs.values()}))
        raise Newer(f"there is no job {name!r} in this worker: it has {known}") from None


def _name(text: str) -> str | None:
    """The name of the job in a task's data; None if there is none."""
    if text.startswith(START):
        name = text[len(START) : text.find('"', len(START))]
        if "\\" not in name:
            return name
    decoded = _decoded(text)
    found = decoded.get("job") if isinstance(decoded, dict) else None
    return found if isinstance(found, str) else None


def _decoded(text: str) -> Any:
    """None for JSON that Python does not read, for example a number of 5,000 digits."""
    try:
        return data.decode(text)
    except (ValueError, RecursionError):
        return None


def _policies(jobs: Jobs, retry: Retry) -> Callable[[Taken], Policy]:
    def policy(row: Taken) -> Policy:
        found = _decoded(row.data)
        job = jobs.get(found["job"]) if isinstance(found, dict) and isinstance(found.get("job"), str) else None
        if job is None:
            return Policy(retry)
        with suppress(ValueError, TypeError):  # then the run has raised the same
            job = job.varied(found.get("own") or {})
        own = job.settings.retry or retry
        attempts = found.get("attempts")
        if isinstance(attempts, int) and attempts >= 1:
            own = replace(own, attempts=attempts)
        return Policy(own, job.settings.keep_result or None, job.name)  # type: ignore[arg-type]

    return policy


def _encoded(shell: ShellBase, job: AnyJob, result: object, *, written: bool = False) -> str:
    """The result as JSON. Raises Bury: another run of the job would give the same.

    Args:
        written: whether the codec has made JSON values of it, in a child process.
    """
    try:
        return shell.encode(result if written else job.codec.result(result))
    except Exception as error:
        raise _unkept(job, unkept(error)) from None


def _unkept(job: AnyJob, why: str) -> Bury:
    return Bury(f"job {job.name} has run, and its result cannot be kept: {why}")
