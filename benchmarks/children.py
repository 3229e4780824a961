"""Child processes of a measure: those that take while this process puts, and those that are killed.

A child is a function at the top of a module, with a pipe to this process as its first argument. It runs in a fresh
interpreter (no fork of this process, since it has threads), or, where many are needed at once, in a fork of a server
process that has imported the modules and does nothing else. A child is always ended, and every wait has a limit.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Self

LIMIT = 60.0  # seconds to wait for any answer

_fresh = multiprocessing.get_context("spawn")
_forked = multiprocessing.get_context("forkserver")
_forked.set_forkserver_preload(["benchmarks.takers"])


class Child:
    """A process that runs `function(pipe, *args)`. It sends a message when it is ready: hear() it before measuring."""

    def __init__(self, function: Callable[..., None], *args: object, forked: bool = False) -> None:
        context = _forked if forked else _fresh
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(function, theirs, *args), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def hear(self, within: float = LIMIT) -> Any:
        """The next message of the child."""
        if not self.pipe.poll(within):
            raise TimeoutError(f"a process of the benchmark said nothing for {within:.0f} s")
        try:
            return self.pipe.recv()
        except EOFError:
            raise RuntimeError("a process of the benchmark ended early; its traceback is above") from None

    def tell(self, thing: object) -> None:
        self.pipe.send(thing)

    def kill(self) -> None:
        """Kill it by SIGKILL."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):
            self.pipe.close()  # a child that waits for a message sees the end of the pipe
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _run(function: Callable[..., None], pipe: Connection, *args: object) -> None:
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        function(pipe, *args)
