"""A call that one thread asks for and that the listener's thread runs."""

from __future__ import annotations

from typing import Generic, TypeVar, cast

from .._calls.call import Call
from .hub import Signal

T = TypeVar("T")


class Asked(Generic[T]):
    """A call for the listener's connection. `done` is set when the call has succeeded or failed."""

    def __init__(self, call: Call[T], done: Signal) -> None:
        self.call = call
        self.done = done
        self._result: T | None = None
        self._error: Exception | None = None

    def outcome(self) -> T:
        """The result of a call that is done; raises its error."""
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def succeeded(self, result: T) -> None:
        self._result = result
        self.done.set()

    def failed(self, error: Exception) -> None:
        self._error = error
        self.done.set()
