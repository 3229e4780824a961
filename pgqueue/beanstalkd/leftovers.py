"""Deletes the queues of tubes that beanstalkd would have deleted: `--delete-tubes`.

A queue is deleted once no connection uses or watches the tube and it has no jobs. The database decides on the jobs: a
task that another program puts at that moment keeps its queue. A queue with an option, a grant or a pause stays. A taker
of another process that waits for the queue makes it again.
"""

from __future__ import annotations

import asyncio
import contextlib

from .figures import Figures
from .jobs import Jobs

EVERY = 10.0  # seconds


class Leftovers:
    """The tubes that connections have left since the last sweep."""

    def __init__(self, jobs: Jobs, figures: Figures) -> None:
        self._jobs = jobs
        self._figures = figures

    async def run(self, over: asyncio.Event) -> None:
        """Sweep every EVERY seconds, until it is over."""
        while not over.is_set():
            await self.sweep()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), EVERY)

    async def sweep(self) -> None:
        """Delete the queues of those that are empty. Raises if the database does not answer; then they are kept."""
        left = self._figures.left
        while left:
            tube = next(iter(left))
            if tube not in self._figures.referred():
                await self._jobs.forget(tube)
            left.discard(tube)
