"""The outcomes of tasks, from their put to after their end, with results and progress."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from .._calls import attempts as attempt_calls
from .._calls import results as calls
from .._calls.attempts import Attempt
from .._calls.results import Outcome
from .._engine import looks, waits
from .._engine.awaiting import Signal
from .._engine.waits import TimeLeft
from .._records.task import TaskLike, check_result, named
from .._values import arguments
from .._values.arguments import Seconds
from .shell import AsyncShell


class AsyncResults:
    """Results and outcomes of tasks, as `client.results`."""

    def __init__(self, shell: AsyncShell) -> None:
        self._shell = shell

    async def outcome(self, task: TaskLike) -> Outcome:
        """The outcome of a task, also after its end. The state is `unknown` if the task is gone or never existed.

        Raises:
            TaskIdRequired: the id is not an int or a string of digits.
        """
        return await self._shell.run(calls.outcome(named(task)[0]))

    async def attempts(self, task: TaskLike) -> list[Attempt]:
        """The failed attempts of a task, the first one first: the last ten, each with its error and traceback.

        They are kept as long as the task and its result, and each at least for an hour after it ended.

        Raises:
            TaskIdRequired: the id is not an int or a string of digits.
        """
        return await self._shell.run(attempt_calls.attempts(named(task)[0]))

    async def get(self, task: TaskLike, timeout: Seconds | None = None) -> Any:
        """Wait for the result of a task, and return it. Only a kept result is found: see handler(), Task.finish().

        Args:
            task: a task, or its id. Its put must have been committed.
            timeout: seconds to wait, or a timedelta; None waits without limit, 0 does not wait.

        Raises:
            TaskFailed: it has failed for good (.error says why).
            TaskCancelled: it was cancelled (.reason says why).
            ResultUnknown: it is done or gone, and no result is kept. While waiting, this is noticed within 2 s. At once
                for a task that a job without keep_result has just put.
            TimeoutError: it was not done in time.
            TaskIdRequired, ValueError: the id or the timeout is not valid.
            ClosedError: the client is closed, also while waiting.
        """
        check_result(task)
        id, seconds = named(task)[0], arguments.timeout(timeout)
        left, ends = TimeLeft(seconds), looks.ended(id)
        found = await self._shell.drive(ends.at_once())
        if found is None and not left.over():
            channel, listener = calls.task_channel(id), await self._shell.listener()
            flow = waits.until(listener, Signal, channel, ends.look, left.seconds(), ends.poll)
            found = await self._shell.drive(flow)
        return looks.result(looks.in_time(found, f"the result of task {id}", seconds))

    def follow(self, task: TaskLike, timeout: Seconds | None = None) -> AsyncIterator[Outcome]:
        """A task's outcome now, and again at each change, up to and with its end: done, failed or unknown.

        Progress and kept results are reported at once; a take, release, burial or removal of the task within 2 s.
        Changes in quick succession may be reported as one.

        Args:
            task: a task, or its id.
            timeout: seconds for all of it, or a timedelta; None for as long as it takes.

        Raises:
            TimeoutError: the time was over before the task ended.
            TaskIdRequired, ValueError: the id or the timeout is not valid.
            ClosedError: the client is closed, also while waiting.
        """
        return self._follow(named(task)[0], arguments.timeout(timeout))

    async def _follow(self, id: int, timeout: float | None) -> AsyncIterator[Outcome]:
        left, channel = TimeLeft(timeout), calls.task_channel(id)
        yield (known := await self._shell.run(calls.outcome(id)))
        while not known.ended:
            ends, listener = looks.other_than(known), await self._shell.listener()
            flow = waits.until(listener, Signal, channel, ends.look, left.seconds(), ends.poll)
            yield (known := looks.in_time(await self._shell.drive(flow), f"the end of task {id}", timeout))

    async def report(self, task: TaskLike, value: Any) -> None:
        """Report how far a taken task is; see Task.progress."""
        id, token = named(task)
        await self._shell.run(calls.progress(id, self._shell.fence(token), self._shell.encode(value)), relaxed=True)
