"""Plain handlers as functions of a claimed row. They return whether the handler settled the task itself.

A handler may ack, release or bury its own task; then the worker does nothing more. A settling call in a transaction of
the handler (conn=...) does not count, since that transaction may have been rolled back. The worker's ack after it does
no harm: if the task is gone, the ack finds nothing.

Where results are kept and the task is not settled yet, the handler's result is given to the settler. That counts as
settled, since the settler acks the task together with its result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from .._async.task import AsyncTask
from .._calls.take import Taken
from .._engine.shell import ShellBase
from .._records.task import from_taken
from .._sync.task import Task
from .._values import data
from ..errors import BadData
from ..jobs.retry import Bury
from .describing import unkept
from .homes import AnyHomes

Handler = Callable[..., Any]
Bound = Callable[[Taken], bool]
AsyncBound = Callable[[Taken], Coroutine[Any, Any, bool]]
Finish = Callable[[Taken, str], None]  # with the result, as JSON; of a queue that keeps results


def bind(homes: AnyHomes, function: Handler, finish: Finish | None = None) -> Bound:
    """A function of a row that calls the handler. With `finish` the handler's results are kept."""
    if finish:
        return _keeping(homes, function, finish)
    decode = data.decode

    def without_task(row: Taken) -> bool:
        if (result := function(decode(row.data))) is not None:
            insist_on_done(result)
        return False

    def with_task(row: Taken) -> bool:
        home = Noting(homes.of(row.id))
        task = from_taken(Task, row, home)
        insist_on_done(function(task.data, task=task))
        return home.settled

    return with_task if _wants_task(function) else without_task


def _keeping(homes: AnyHomes, function: Handler, finish: Finish) -> Bound:
    decode = data.decode

    def without_task(row: Taken) -> bool:
        finish(row, _encoded(homes.of(row.id), function(decode(row.data))))
        return True

    def with_task(row: Taken) -> bool:
        home = Noting(homes.of(row.id))
        task = from_taken(Task, row, home)
        result = function(task.data, task=task)
        if not home.settled:
            finish(row, _encoded(homes.of(row.id), result))
        return True

    return with_task if _wants_task(function) else without_task


def bind_async(homes: AnyHomes, function: Handler, finish: Finish | None = None) -> AsyncBound:
    if finish:
        return _keeping_async(homes, function, finish)
    decode = data.decode

    async def without_task(row: Taken) -> bool:
        await function(decode(row.data))
        return False

    async def with_task(row: Taken) -> bool:
        home = Noting(homes.of(row.id))
        task = from_taken(AsyncTask, row, home)
        await function(task.data, task=task)
        return home.settled

    return with_task if _wants_task(function) else without_task


def _keeping_async(homes: AnyHomes, function: Handler, finish: Finish) -> AsyncBound:
    decode = data.decode

    async def without_task(row: Taken) -> bool:
        finish(row, _encoded(homes.of(row.id), await function(decode(row.data))))
        return True

    async def with_task(row: Taken) -> bool:
        home = Noting(homes.of(row.id))
        task = from_taken(AsyncTask, row, home)
        result = await function(task.data, task=task)
        if not home.settled:
            finish(row, _encoded(homes.of(row.id), result))
        return True

    return with_task if _wants_task(function) else without_task


class Noting:
    """The shell of a task that its handler gets: records whether a verb has ended the take."""

    def __init__(self, shell: ShellBase) -> None:
        self.settled = False
        self._shell = shell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shell, name)

    def ended(self, state: str, conn: object) -> str:
        self.settled |= conn is None
        return state

    def left(self, takes: object) -> None:
        """The handler gets the error, and its run settles the task."""


def _wants_task(function: Handler) -> bool:
    return "task" in inspect.signature(function).parameters


def _encoded(shell: ShellBase, result: object) -> str:
    try:
        return shell.encode(result)
    except BadData as error:
        insist_on_done(result)
        raise Bury(f"the handler has run, and its result cannot be kept: {unkept(error)}") from None


def insist_on_done(result: object) -> None:
    """Refuse a generator, and an awaitable, for example from a lambda around an async function: they have not begun."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError("the handler returned a generator, which has run nothing: return a list")
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError("the handler returned an awaitable: define it with `async def`")
