"""The state of a lock object, for lock, try_lock and elect, as ZooKeeper's recipes. Both shells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._values.logs import log
from ..errors import LockTimeout
from .locks import Request, callback
from .steps import Flow

OnLost = Callable[[Any], Any]


class LockState:
    """The state of a lock, shared by both shells. An object holds its lock once at a time."""

    def __init__(self, name: str, timeout: float | None, shared: bool, on_lost: OnLost | None) -> None:
        self.name = name
        self._timeout = timeout
        self._shared = shared
        self._on_lost = on_lost
        self._request: Request | None = None
        self._asking = False
        self._given = False  # by try_lock: held already when the block is entered

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {'held' if self.held else 'not held'})"

    @property
    def fence(self) -> int:
        """A number that is higher than that of every earlier grant of any lock; 0 before the first grant."""
        return self._request.fence if self._request else 0

    @property
    def held(self) -> bool:
        """Whether the lock is held, as far as this process knows. Does not ask the server."""
        return self._request is not None and self._request.held

    def _begin(self) -> bool:
        """Whether the lock has to be requested: False if try_lock has just acquired it."""
        given, self._given = self._given, False
        if not given and (self._asking or self.held):
            raise RuntimeError(f"this object holds or awaits the lock {self.name!r}: make one for each with block")
        self._asking = not given
        return not given

    def _tell(self) -> None:
        try:
            if self._on_lost is not None:
                self._on_lost(self)
        except Exception:
            log.exception("on_lost of the lock %r failed", self.name)

    def _too_late(self) -> LockTimeout:
        return LockTimeout(f"the lock {self.name!r} was not granted within {self._timeout} s: see pgqueue.locks")

    def _checked(self) -> Flow[None]:
        if self._request is None:
            raise RuntimeError(f"this object never held the lock {self.name!r}")
        return self._request.check()


def checked_callbacks(shared: bool, on_lost: OnLost | None) -> tuple[bool, OnLost | None]:
    if not isinstance(shared, bool):
        raise ValueError(f"shared must be True or False, not {shared!r}")
    return shared, callback("on_lost", on_lost)
