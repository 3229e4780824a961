# Generated from pgqueue/_async/steps.py by tools/blocking.py: edit that file, not this one.

"""Steps of a task: named results that are recorded, so that later takes of the task do not repeat them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._calls import steps as calls
from .._engine.blocking import Conn, called
from .._values import data
from .shell import Shell


def step(shell: Shell, id: int, token: int | None, name: str, function: Callable[[], Any], conn: Conn | None) -> Any:
    """The value of a step: the recorded one, or else the function's result, which is recorded."""
    if (known := recorded(shell, id, token, name, conn)) is not None:
        return known[0]
    return record(shell, id, token, name, called(function), conn)


def recorded(shell: Shell, id: int, token: int | None, name: str, conn: Conn | None = None) -> list[Any] | None:
    """The recorded value of a step, as the only element of a list; None: there is none."""
    found = shell.run(calls.get_step(id, shell.fence(token), name), conn)
    return None if found.value is None else [data.decode(found.value)]


def record(shell: Shell, id: int, token: int | None, name: str, value: Any, conn: Conn | None = None) -> Any:
    """Record a step. Returns the value of the name's first record, as JSON gives it."""
    text = shell.encode(value)
    return data.decode(shell.run(calls.record_step(id, shell.fence(token), name, text), conn))
