"""Processes beside ours: those that take while we put, and those that are killed.

A child is a function at the top of a module, run in a fresh interpreter (no fork: this process has threads), with a
pipe to us as its first argument. Whatever happens here, it is ended; whatever happens there, we do not wait for ever.
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
    """A process that runs `function(pipe, *args)`. It begins by saying something: hear() that before measuring."""

    def __init__(self, function: Callable[..., None], *args: object) -> None:
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=_run, args=(function, theirs, *args), daemon=True)
        self._process.start()
        theirs.close()

    def hear(self, within: float = LIMIT) -> Any:
        """The next thing that the child says."""
        if not self._pipe.poll(within):
            raise TimeoutError(f"a process of the benchmark said nothing for {within:.0f} s")
        try:
            return self._pipe.recv()
        except EOFError:
            raise RuntimeError("a process of the benchmark ended early; its traceback is above") from None

    def tell(self, thing: object) -> None:
        self._pipe.send(thing)

    def kill(self) -> None:
        """SIGKILL, without a word."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):
            self._pipe.close()  # a child that waits for us sees the end of it
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _run(function: Callable[..., None], pipe: Connection, *args: object) -> None:
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        function(pipe, *args)
