"""Middleware: objects that surround each put and each run of a job, for example a trace, a timing or a tenant.

A middleware is an object with one or more of these methods. Each returns a context manager, which is entered before
the put or the run and left after it:

    put(order)     around a put, from blocking and from async code        order: an Order
    run(run)       around a run of a job, sync or async                   run: a Running
    aput, arun     instead of these where the code around is async: an async context manager, which may await

A `with` block may surround an `await`, so one generator serves both kinds of code; with functions that call the next
one, as in web frameworks, each middleware would need a sync and an async form of the same lines.

Order. The client's middleware is outside, in the order of the list; that of the job is inside. The outermost is entered
first and left last.

Errors. An exception of a middleware counts as one of the put or run that it surrounds. Before a put it refuses the put,
and nothing is put; after a put it reaches the caller, and the task is put all the same. Around a run it fails the
attempt, by the rules of the job's Retry; also after a handler that succeeded, whose task is then tried again. A
middleware that suppresses the exception of a run makes it a success, with None as its result.

Without middleware a put costs the test of an empty tuple more, and a run nothing: a worker asks when it begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

PUT, RUN = ("put", "aput"), ("run", "arun")


@dataclass(slots=True)
class Order:
    """A put of a job, to a middleware.

    Attributes:
        job: the job's name.
        queue: the name of the queue.
        args: the arguments of each task by name, as JSON values: one element, or one for each item of put_many.
        headers: strings that are stored with the task, or with each of the tasks. A middleware may change them before
            the put.
        ids: the tasks' ids, after the put; empty for a Put that was only prepared.
    """

    job: str
    queue: str
    args: list[dict[str, Any]]
    headers: dict[str, str] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Running:
    """A run of a job, to a middleware.

    Attributes:
        job: the job's name.
        queue: the name of the queue.
        id: the task's id.
        attempt: the number of this attempt, from 1.
        waited: for how many seconds the task was ready before the run.
        args: the arguments by name, as JSON values.
        headers: the strings that were stored with the task.
        buries: whether the task is buried if the run ends with this exception; by the job's Retry.
        fails: whether the attempt counts as failed if the run ends with this exception. One that is cancelled, that the
            end of the worker cuts off, or that raises RetryLater(counts=False), does not.
        given_up: whether the worker has settled or lost the task while the function went on, for example at its time
            limit, or when its take was over. What the function does then has no effect on the task.
        result: the function's result, after the run.
    """

    job: str
    queue: str
    id: int
    attempt: int = 1
    waited: float = 0.0
    args: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    buries: Callable[[BaseException], bool] = field(default=lambda error: True, repr=False)
    fails: Callable[[BaseException], bool] = field(default=lambda error: True, repr=False)
    given_up: Callable[[], bool] = field(default=lambda: False, repr=False)
    result: Any = None


def checked(middleware: Iterable[Any]) -> tuple[Any, ...]:
    """The argument `middleware`, checked. Raises ValueError."""
    found = tuple(middleware)
    for one in found:
        if isinstance(one, type) or not any(callable(getattr(one, name, None)) for name in PUT + RUN):
            raise ValueError(f"a middleware is an object with a method put, run, aput or arun, which {one!r} is not")
    return found


def headed(data: dict[str, Any], order: Order) -> dict[str, Any]:
    """The data of a task with the order's headers. Raises ValueError."""
    for name, value in order.headers.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise ValueError(f"headers are strings, not {name!r}: {value!r}, which a middleware has set")
    found = {name: value for name, value in data.items() if name != "headers"}
    return found | {"headers": dict(order.headers)} if order.headers else found


def around_put(middleware: Iterable[Any], order: Order, put: Callable[[], T]) -> T:
    """Put within the middleware's context managers. `put` reads the order's headers, and sets its ids."""
    with ExitStack() as stack:
        for one in middleware:
            _enter(stack, one, PUT, order)
        return put()
    raise _suppressed(order)


async def around_aput(middleware: Iterable[Any], order: Order, put: Callable[[], Awaitable[T]]) -> T:
    """As around_put, for async code."""
    async with AsyncExitStack() as stack:
        for one in middleware:
            await _enter_async(stack, one, PUT, order)
        return await put()
    raise _suppressed(order)


def around_run(middleware: Iterable[Any], run: Running, call: Callable[[], T]) -> T | None:
    """Call within the middleware's context managers. Returns the function's result, None if one of them suppressed its
    exception."""
    with ExitStack() as stack:
        for one in middleware:
            _enter(stack, one, RUN, run)
        run.result = result = call()
        return result
    return None


async def around_arun(middleware: Iterable[Any], run: Running, call: Callable[[], Awaitable[T]]) -> T | None:
    """As around_run, for an async job."""
    async with AsyncExitStack() as stack:
        for one in middleware:
            await _enter_async(stack, one, RUN, run)
        run.result = result = await call()
        return result
    return None


def _enter(stack: ExitStack, one: Any, names: tuple[str, str], what: object) -> None:
    method = getattr(one, names[0], None)
    if method is not None:
        stack.enter_context(method(what))
    elif hasattr(one, names[1]):
        raise TypeError(f"{type(one).__name__} has {names[1]} for async code alone: it needs {names[0]} here")


async def _enter_async(stack: AsyncExitStack, one: Any, names: tuple[str, str], what: object) -> None:
    awaiting = getattr(one, names[1], None)
    if awaiting is not None:
        await stack.enter_async_context(awaiting(what))
    elif (method := getattr(one, names[0], None)) is not None:
        stack.enter_context(method(what))


def _suppressed(order: Order) -> RuntimeError:
    return RuntimeError(f"a middleware suppressed the exception of a put of {order.job}: there is no task to return")
