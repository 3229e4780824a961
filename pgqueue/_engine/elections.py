"""Elections: campaigns for a lock in the background, one term of leadership after another. Both shells.

    in line --granted--> gained() ... lost, resigned or closed ... lost() --> release, if still held --> in line

A blocking client's campaign is a daemon thread, an asyncio client's campaign an asyncio task. Callbacks run in it, one
at a time and in this order. `leader` is false as soon as the term is over. The leader's clean-up belongs in lost():
when a leader resigns, its lock is released after lost() has returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._values.logs import log
from ..errors import ClosedError
from .locks import Request

Callback = Callable[[Any], Any]


class Campaign:
    """The state of an election, shared by both shells."""

    def __init__(self, name: str, gained: Callback | None, lost: Callback | None) -> None:
        self.name = name
        self._gained = gained
        self._lost = lost
        self._request: Request | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {'leader' if self.leader else 'not the leader'})"

    @property
    def leader(self) -> bool:
        """Whether this election is the leader, as far as this process knows."""
        request = self._request
        return request is not None and request.held and not request.stopped

    @property
    def fence(self) -> int:
        """The fence of the lock, as Lock.fence; 0 while not in line or not yet the leader."""
        request = self._request
        return request.fence if request else 0

    def _failed(self, callback: Callback | None) -> None:
        log.exception("%s of the election %r failed", getattr(callback, "__name__", callback), self.name)

    def _not_yet(self, timeout: float | None) -> Exception:
        if self._closed:
            return ClosedError(f"the election {self.name!r} is closed")
        return TimeoutError(f"the election {self.name!r} was not won within {timeout} s")
