"""Looks at a status or at a task's outcome until it is as wanted: flows for waits.until.

The server announces at commit every change that these flows wait for (sql/4_families/statuses.sql, results.sql). The
flow looks once, and if that is not enough: LISTEN, look, wait, look. A change that is not announced, for example the
end of a task without a kept result, is found within POLL seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .._calls.call import Call
from .._calls.results import Outcome, outcome
from .._calls.statuses import get_status
from .._values import data
from ..errors import CallTimeout, ConnectionLost, ResultUnknown, TaskFailed
from .flows import Flow, Run

Holds = Callable[[Any], bool]
Look = Callable[[], Flow[Any]]

POLL = 2.0  # seconds


def status(key: str, until: Any) -> Look:
    """Finds the status of a key if it is the wanted one."""
    if inspect.iscoroutinefunction(until):
        raise ValueError("until must be a value or a plain function, not a coroutine function")
    holds: Holds = until if callable(until) else _is(until)
    call = get_status(key)

    def look() -> Flow[Any]:
        value = yield from _read(call)
        return value if value is not None and holds(value) else None

    return look


def _is(wanted: Any) -> Holds:
    if wanted is None:
        return lambda value: True
    as_stored = data.decode(data.encode(wanted))  # a tuple comes back as a list
    return lambda value: bool(value == as_stored)


def ended(id: int) -> Look:
    """Finds the outcome of a task that has ended."""
    call = outcome(id)

    def look() -> Flow[Any]:
        found = yield from _read(call)
        return found if found.ended else None

    return look


def other_than(known: Outcome) -> Look:
    """Finds an outcome of the task that differs from the known one."""
    call = outcome(known.id)

    def look() -> Flow[Any]:
        found = yield from _read(call)
        return found if found != known else None

    return look


def _read(call: Call[Any]) -> Flow[Any]:
    """Run a read, again if its connection broke: a read changes nothing, and the server may be restarting."""
    while True:
        try:
            return (yield Run(call))
        except CallTimeout:
            raise
        except ConnectionLost:
            pass


def in_time(found: Any, what: str, timeout: float | None) -> Any:
    """Returns `found`. Raises TimeoutError if it is None."""
    if found is None:
        raise TimeoutError(f"{what} did not come within {timeout:g} s")
    return found


def result(found: Outcome) -> Any:
    """The result of a task that has ended. Raises TaskFailed, ResultUnknown."""
    if found.state == "failed":
        raise TaskFailed(found.id, found.error or "")
    if found.state == "unknown":
        raise ResultUnknown(f"task {found.id} is gone or never existed, and no result of it is kept", found.id)
    return found.result
