"""Looks at a status or at a task's outcome until it is the wanted one: flows for waits.until.

The server announces at commit every change that these flows wait for (sql/6_families/statuses.sql, results.sql). The
flow looks once, and if that is not enough: LISTEN, look, wait, look. A change that is not announced, for example the
end of a task without a kept result, is found within POLL seconds.

Results and progress are announced only once a listener has said that it waits (sql/3_moves/announce.sql). Each look
after the LISTEN also drains; while it cannot, the next look is made soon.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from .._calls.call import Call
from .._calls.results import Outcome, await_outcome, outcome
from .._calls.statuses import get_status, get_statuses
from .._values import data
from ..errors import CallTimeout, ConnectionLost, ResultUnknown, TaskCancelled, TaskFailed
from .steps import Flow, Run
from .waiters import DRAIN_PAUSE

Holds = Callable[[Any], bool]
Look = Callable[[], Flow[Any]]

POLL = 2.0  # seconds


def status(key: str, until: Any) -> Look:
    """Finds the status of a key if it is the wanted one."""
    holds, call = holding(until), get_status(key)

    def look() -> Flow[Any]:
        value = yield from _read(call)
        return value if value is not None and holds(value) else None

    return look


def statuses(keys: Iterable[str]) -> Flow[dict[str, Any]]:
    """The statuses of the keys that have one."""
    found: dict[str, Any] = yield from _read(get_statuses(keys))
    return found


def holding(until: Any) -> Holds:
    """Whether a status is the wanted one: a value, a function that says so, or None for any."""
    if inspect.iscoroutinefunction(until):
        raise ValueError("until must be a value or a plain function, not a coroutine function")
    return until if callable(until) else _is(until)


def _is(wanted: Any) -> Holds:
    if wanted is None:
        return lambda value: True
    as_stored = data.decode(data.encode(wanted))  # a tuple is read back as a list
    return lambda value: bool(value == as_stored)


class Ends:
    """Looks at the outcome of a task until it is as wanted."""

    def __init__(self, id: int, is_wanted: Callable[[Outcome], bool]) -> None:
        self._id = id
        self._is_wanted = is_wanted
        self._drained = True
        self._pause = DRAIN_PAUSE[0]

    def at_once(self) -> Flow[Outcome | None]:
        """A look before the wait."""
        return self._if_wanted((yield from _read(outcome(self._id))))

    def look(self) -> Flow[Outcome | None]:
        """A look while the listener listens for the task."""
        found, self._drained = yield from _read(await_outcome(self._id))
        return self._if_wanted(found)

    def poll(self) -> float:
        """Seconds until the next look: a short pause while a call that announced nothing may be under way."""
        if self._drained:
            self._pause = DRAIN_PAUSE[0]
            return POLL
        pause, self._pause = self._pause, min(2 * self._pause, DRAIN_PAUSE[1])
        return pause

    def _if_wanted(self, found: Outcome) -> Outcome | None:
        return found if self._is_wanted(found) else None


def ended(id: int) -> Ends:
    """Finds the outcome of a task that has ended."""
    return Ends(id, lambda found: found.ended)


def other_than(known: Outcome) -> Ends:
    """Finds an outcome of the task that differs from the known one."""
    return Ends(known.id, lambda found: found != known)


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
    """The result of a task that has ended. Raises TaskFailed, TaskCancelled, ResultUnknown."""
    if found.state == "failed":
        raise TaskFailed(found.id, found.error or "")
    if found.state == "cancelled":
        raise TaskCancelled(found.id, found.error or "")
    if found.state == "unknown":
        raise ResultUnknown(f"task {found.id} is gone or never existed, and no result of it is kept", found.id)
    if not found.has_result:
        raise ResultUnknown(f"task {found.id} is done, and no result of it is kept", found.id)
    return found.result
