"""Child processes of a measure: those that take while this process puts, and those that are killed.

A child is a function at the top of a module. It runs in a fresh interpreter (no fork, since this process has threads),
with a pipe to this process as its first argument. A child is always ended, and every wait for it has a limit.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Self

LIMIT = 60.0  # seconds to wait for any answer

_context = multiprocessing.get_context("spawn")


class Child:
    """A process that runs `function(pipe, *args)`. It sends a message when it is ready: hear() it before measuring."""

    def __init__(self, function: Callable[..., None], *args: object) -> None:
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=_run, args=(function, theirs, *args), daemon=True)
        self._process.start()
        theirs.close()

    def hear(self, within: float = LIMIT) -> Any:
        """The next message of the child."""
        if not self._pipe.poll(within):
            raise TimeoutError(f"a process of the benchmark said nothing for {within:.0f} s")
        try:
            return self._pipe.recv()
        except EOFError:
            raise RuntimeError("a process of the benchmark ended early; its traceback is above") from None

    def tell(self, thing: object) -> None:
        self._pipe.send(thing)

    def kill(self) -> None:
        """Kill it by SIGKILL."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):
            self._pipe.close()  # a child that waits for a message sees the end of the pipe
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _run(function: Callable[..., None], pipe: Connection, *args: object) -> None:
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        function(pipe, *args)
