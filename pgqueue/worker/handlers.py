"""Handlers as functions of a claimed row, which say whether they settled the task themselves; and their errors.

A handler may ack, release or bury its own task, and then the worker has nothing left to do. What it does in a
transaction of its own (conn=...) does not count as settled: that may have been rolled back. The worker's ack after it
does no harm: a task that is gone is gone.

Where results are kept, a handler whose task is still to be settled leaves its result with the settler, and that counts
as settled: the ack goes with the result.
"""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from .._async.client import AsyncClient
from .._async.task import AsyncTask
from .._calls.take import Taken
from .._engine.shell import ShellBase
from .._records.task import from_taken
from .._sync.client import Client
from .._sync.task import Task
from .._values import data
from ..errors import BadData

Handler = Callable[..., Any]
Bound = Callable[[Taken], bool]
AsyncBound = Callable[[Taken], Awaitable[bool]]
Finish = Callable[[Taken, str], None]  # with the result, as JSON


def bind(client: Client, function: Handler, finish: Finish | None = None) -> Bound:
    """With `finish` its results are kept."""
    if finish:
        return _keeping(client, function, finish)
    decode = data.decode

    def without_task(row: Taken) -> bool:
        if (result := function(decode(row.data))) is not None:
            _insist_on_done(result)
        return False

    def with_task(row: Taken) -> bool:
        home = _Noting(client.shell)
        task = from_taken(Task, row, home)
        _insist_on_done(function(task.data, task=task))
        return home.settled

    return with_task if _wants_task(function) else without_task


def _keeping(client: Client, function: Handler, finish: Finish) -> Bound:
    decode = data.decode

    def without_task(row: Taken) -> bool:
        finish(row, _encoded(client, function(decode(row.data))))
        return True

    def with_task(row: Taken) -> bool:
        home = _Noting(client.shell)
        task = from_taken(Task, row, home)
        result = function(task.data, task=task)
        if not home.settled:
            finish(row, _encoded(client, result))
        return True

    return with_task if _wants_task(function) else without_task


def bind_async(client: AsyncClient, function: Handler, finish: Finish | None = None) -> AsyncBound:
    if finish:
        return _keeping_async(client, function, finish)
    decode = data.decode

    async def without_task(row: Taken) -> bool:
        await function(decode(row.data))
        return False

    async def with_task(row: Taken) -> bool:
        home = _Noting(client.shell)
        task = from_taken(AsyncTask, row, home)
        await function(task.data, task=task)
        return home.settled

    return with_task if _wants_task(function) else without_task


def _keeping_async(client: AsyncClient, function: Handler, finish: Finish) -> AsyncBound:
    decode = data.decode

    async def without_task(row: Taken) -> bool:
        finish(row, _encoded(client, await function(decode(row.data))))
        return True

    async def with_task(row: Taken) -> bool:
        home = _Noting(client.shell)
        task = from_taken(AsyncTask, row, home)
        result = await function(task.data, task=task)
        if not home.settled:
            finish(row, _encoded(client, result))
        return True

    return with_task if _wants_task(function) else without_task


def is_async(function: Handler) -> bool:
    """Also for an object whose __call__ is async."""
    # An object may be a handler by an async __call__, and callable(), which B004 wants, says nothing about that.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def describe(error: BaseException) -> str:
    """The error for people: its type and message, and where it came from. Never raises, and any log can hold it."""
    where = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        where = f" ({os.path.basename(frame.f_code.co_filename)}:{line}, in {frame.f_code.co_name})"
    what = "".join(traceback.format_exception_only(error)).strip()  # str(error) may itself raise
    return (what + where).encode(errors="backslashreplace").decode()


class _Noting:
    """The shell of one task in its handler's hands: notes whether a verb has ended the take."""

    def __init__(self, shell: ShellBase) -> None:
        self.settled = False
        self._shell = shell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shell, name)

    def ended(self, state: str, conn: object) -> str:
        self.settled |= conn is None
        return state


def _wants_task(function: Handler) -> bool:
    return "task" in inspect.signature(function).parameters


def _encoded(client: Client | AsyncClient, result: object) -> str:
    try:
        return client.shell.encode(result)
    except BadData as error:
        _insist_on_done(result)
        raise BadData(error.path, f"the handler's result cannot be kept: {error.reason}") from None


def _insist_on_done(result: object) -> None:
    """What only now begins to work is not done: a lambda around an async function, say."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError("the handler returned an awaitable: define it with `async def`")
