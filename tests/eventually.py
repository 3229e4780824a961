"""Waiting for something that another process, thread or connection does: polls with a deadline instead of sleeps."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest

PAUSE = 0.005


def eventually(condition: Callable[[], Any], within: float = 2.0) -> Any:
    """The first true value of `condition()`. Fails after `within` seconds."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {within} s: {inspect.getsource(condition).strip()}"
        time.sleep(PAUSE)
    return value


async def soon(condition: Callable[[], Any], within: float = 2.0) -> Any:
    """The same in a coroutine; `condition()` may be awaitable."""
    deadline = time.monotonic() + within
    while not (value := await _value(condition)):
        assert time.monotonic() < deadline, f"not within {within} s: {inspect.getsource(condition).strip()}"
        await asyncio.sleep(PAUSE)
    return value


async def _value(condition: Callable[[], Any]) -> Any:
    value = condition()
    return await value if inspect.isawaitable(value) else value


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() - self._began


#: For a test of a bound in seconds that the specification states: one of three runs has to keep it, since the bound is
#: about us, not about what else the machine does. Not for what must never happen, as a lost wake-up.
timed = pytest.mark.flaky(reruns=2, only_rerun="AssertionError")
