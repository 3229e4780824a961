"""Waiting for something that another process, thread or connection does: polls with a deadline instead of sleeps."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

PAUSE = 0.005
ATTEMPTS = 3
PATIENCE = 30.0  # seconds: disks and machines stall for ten, and a deadline that is met costs nothing


def eventually(condition: Callable[..., Any], within: float = PATIENCE) -> Any:
    """The first true value of `condition()`. Fails after `within` seconds."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {within} s: {inspect.getsource(condition).strip()}"
        time.sleep(PAUSE)
    return value


async def soon(condition: Callable[..., Any], within: float = PATIENCE) -> Any:
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


def in_time(attempt: Callable[[], float], within: float) -> None:
    """One of three attempts keeps a bound. `attempt()` returns the seconds that count.

    A bound is about pgqueue and not about other processes on the machine, so one attempt has to keep it. The attempt's
    own assertions have to hold each time: no test is rerun, and a lost wake-up is not forgiven.
    """
    times = list[float]()
    while not times or times[-1] > within:
        assert len(times) < ATTEMPTS, f"not once within {within} s: {times}"
        times.append(attempt())


async def soon_enough(attempt: Callable[[], Awaitable[float]], within: float) -> None:
    """The same in a coroutine."""
    times = list[float]()
    while not times or times[-1] > within:
        assert len(times) < ATTEMPTS, f"not once within {within} s: {times}"
        times.append(await attempt())
