"""Runs outside of a worker, one at a time in the caller's thread: those of pgqueue.testing."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

from .._calls.take import Taken
from ..errors import Error
from ..jobs.starts import AnyStart, Begun, BegunInLoop, LoopStart
from .bridge import Bridge
from .loops import Goodbye, Hello
from .means import Means
from .overdue import Limits
from .runs import Run, Runs, enter

T = TypeVar("T")

PATIENCE = 10.0  # seconds for the ends of hooks in the loop


class Apart:
    """A pool without runners and without a watch. Jobs with isolation="process" run in this process.

    Args:
        starts: the hooks, as they will be at begin().

    Attributes:
        bridge: the loop of async jobs, with the client that `make` returns.
        means: for jobs.
    """

    n = 1

    def __init__(self, make: Callable[[], Any], starts: Sequence[AnyStart]) -> None:
        self.runs = Runs()
        self.bridge = Bridge(make, lambda: None, self._hooks)
        self.means = Means(self.runs, Limits(), defaultdict(lambda: self.bridge), None)  # one loop for all queues
        self._starts = starts
        self._begun: Begun | None = None
        self._errors: list[Error] = []  # of hooks, at the end of the loop

    def begin(self) -> None:
        """Begin the hooks, unless they have begun: those of the process, and those of the loop. Raises Error."""
        if self._begun is not None:
            return
        self._begun = begun = Begun(self._starts)
        if any(isinstance(one, LoopStart) for one in self._starts):
            try:
                self.bridge.run(_nothing)
            except Error:
                begun.end()
                self._begun = None
                raise

    def end(self) -> None:
        """End the loop and the hooks. Raises Error: one of them failed."""
        self.bridge.close()
        self.bridge.join(PATIENCE)
        if self._begun is not None:
            self._errors += self._begun.end()
        if self._errors:
            raise self._errors[0]

    def run(self, row: Taken, handle: Callable[[Taken], T]) -> T:
        """Handle a task, in a context of its own. Raises what `handle` raises."""
        run = self.runs.known[row.id] = Run(row, time.monotonic(), self, threading.current_thread())
        try:
            return copy_context().run(enter, run).run(handle, row)
        finally:
            del self.runs.known[row.id]

    def replace(self, run: Run) -> None:
        """There is no runner."""

    def abandon(self, run: Run, blocker: Run) -> list[Run]:
        """There is no loop of its own."""
        return []

    def _hooks(self) -> tuple[Hello, Goodbye]:
        begun = BegunInLoop(self._starts)

        async def hello() -> bool:
            await begun.begin()
            return True

        async def goodbye() -> None:
            self._errors += await begun.end()

        return hello, goodbye


async def _nothing(client: Any) -> None:
    pass
