"""Flows: loops that need both the database and the clock, written once for both shells.

A flow is a generator. It yields its next step, a Run (a call on a connection) or a Wait (for a signal, for some
seconds), and is sent the answer. A shell drives it, blocking or awaiting, in ten lines.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from .._calls.call import Call

T = TypeVar("T")


class Signal(Protocol):
    """An event that any thread may set. The shell defines how to wait for it."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Run:
    """Run the call and send its result. `relaxed`: on a claiming connection, where commits do not wait for the disk.

    `within`: seconds, if that is less than the client's call_timeout.
    """

    call: Call[Any]
    relaxed: bool = True
    within: float | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the signal, at most `seconds` seconds (None: without limit)."""

    signal: Signal
    seconds: float | None


Step = Run | Wait
Flow = Generator[Step, Any, T]
