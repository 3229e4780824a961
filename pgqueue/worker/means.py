"""The means of a shift's jobs beside threads and loops: time limits of their own, and child processes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from .._calls.results import Outcome
from .._calls.take import Taken
from .._records.task import TaskRecord
from .._sync import steps
from ..jobs.job import Job
from ..jobs.signature import place
from .bridge import Bridge
from .children import Children
from .overdue import Limits
from .remote import VERBS, Failed, resolved, tell_error, tell_outcome
from .runs import Run, Runs
from .soft import softened, steered

AnyJob = Job[..., Any]
Blocking = Callable[[Taken], bool]
Awaiting = Callable[[Taken], Coroutine[Any, Any, bool]]


class Means:
    """Of one shift.

    Attributes:
        runs: of the shift.
        bridges: the loops for async jobs of mixed queues, by queue.
        children: the processes for jobs with isolation="process"; None: these run in this process.
    """

    def __init__(self, runs: Runs, limits: Limits, bridges: Mapping[str, Bridge], children: Children | None) -> None:
        self.runs = runs
        self.bridges = bridges
        self.children = children
        self._limits = limits

    def isolates(self, job: AnyJob) -> bool:
        """Whether the job runs in a process of its own."""
        return self.children is not None and is_isolated(job)

    def limited(self, job: AnyJob, one: Blocking) -> Blocking:
        """With the job's time limits; in a thread."""
        limit, soft, of = job.settings.timeout, job.settings.soft_timeout, self.runs.of
        if limit is None and soft is None:
            return one

        def run(row: Taken) -> bool:
            _set(of(row), job)
            return one(row)

        return run

    def limited_async(self, job: AnyJob, one: Awaiting) -> Awaiting:
        """The same, in a loop."""
        limit, soft, of = job.settings.timeout, job.settings.soft_timeout, self.runs.of
        if soft is None:
            soft = self._limits.soft
        if limit is None and soft is None:
            return one

        async def run(row: Taken) -> bool:
            its = of(row)
            _set(its, job)
            return await (one(row) if soft is None else steered(one(row), softened(its)))

        return run

    def softly(self, one: Awaiting) -> Awaiting:
        """With the worker's soft time limit, for a plain handler in a loop."""
        if self._limits.soft is None:
            return one
        of = self.runs.of
        return lambda row: steered(one(row), softened(of(row)))

    def in_child(self, job: AnyJob, row: Taken, args: Any, task: TaskRecord) -> Any:
        """Run a job in a child process. Returns its result, as JSON gives it; raises its exception, or ProcessDied."""

        def answer(asked: Any) -> list[Any]:
            verb, given, named = asked
            try:
                return [None, _done(task, verb, given, named)]
            except Exception as error:
                return [tell_error(error), None]

        order = {**_place(job), "args": args, "task": _told(task)}
        assert self.children is not None  # see isolates()
        try:
            return self.children.run(self.runs.of(row), order, answer)
        except Failed as failed:
            raise failed.error from failed.error.__cause__


def _done(task: TaskRecord, verb: str, given: list[Any], named: dict[str, Any]) -> Any:
    """A request of a handler in a child process (asking.py): a verb of its task, results(), or one half of a step."""
    if verb == "recorded":
        return steps.recorded(task._home, task.id, task.token, *given, **named)
    if verb == "record":
        return steps.record(task._home, task.id, task.token, *given, **named)
    if verb == "results":
        found: list[Outcome] = task.results(*given, **named)  # type: ignore[attr-defined]  # a Task
        return [tell_outcome(one) for one in found]
    if verb not in VERBS:
        raise ValueError(f"a task in a process has no {verb!r}")
    after = getattr(task, verb)(*given, **named)
    return after.state if isinstance(after, TaskRecord) else None


def is_isolated(job: AnyJob) -> bool:
    return job.settings.isolation == "process"


def _place(job: AnyJob) -> dict[str, Any]:
    """Where a child process finds a job, as parts of an order."""
    if job.finder is None:
        return {"path": path(job)}
    function, given = job.finder()
    return {"path": function, "given": given}


def path(job: AnyJob) -> str:
    """The function of a job without a finder, as `module:name`. Raises ValueError: a child process cannot import it."""
    module, name = job.function.__module__, job.function.__qualname__
    if module == "__main__" or "<locals>" in name:
        where = "the program that is run" if module == "__main__" else "a function"
        raise ValueError(
            f"job {job.name} ({place(job.function)}) has isolation='process', and is defined in {where}: a process has"
            " to import it, so move it to the top level of a module"
        )
    try:
        found = getattr(resolved(module, name), "function", None)
    except (ImportError, AttributeError):
        found = None
    if found is not job.function:
        raise ValueError(
            f"job {job.name} ({place(job.function)}) has isolation='process', and is not {module}.{name}: a process has"
            " to import it, so keep the name of the function for the job"
        )
    return f"{module}:{name}"


def _set(run: Run, job: AnyJob) -> None:
    run.limit, run.soft_limit = job.settings.timeout, job.settings.soft_timeout  # type: ignore[assignment]  # seconds


def _told(task: TaskRecord) -> dict[str, Any]:
    """The fields of a task for a child. Not the token: the verbs are done here."""
    return {
        "id": task.id,
        "queue": task.queue,
        "priority": task.priority,
        "attempts": task.attempts,
        "deadline": task.deadline and task.deadline.isoformat(),
    }
