"""Cancelled tasks of a shift: how their handlers are told, and the release of those that no handler has begun.

Theory of operation
-------------------
The listener hears that a task was cancelled, and calls `cancelled` (_engine/cancels.py). The task is in one of these
places, and moves from each to the next:

    on its way     the claim's answer was not read yet: the crew asks after it has filled the buffer (`seen`).
    buffer         it is taken out and released, and so ends as cancelled. No handler begins.
    between        a runner has popped it and not yet noted its run: it is looked for again, LATER seconds later.
    a run          an async handler is cancelled, and a handler in a process is killed. A thread sees `task.cancelled`,
                   if it looks: Python cannot interrupt it.

If a handler returns nevertheless, its task is acked: its work is done. If it raises anything, its task is released,
which ends it as cancelled: the database decides (sql/3_moves/cancelled.sql), so a settling that is on its way at this
moment needs no care here. A cancelled handler is not written off: cleaning up may take time. The worker's time limit,
the ttr of the task and the worker's grace end it as any other (overdue.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from .._calls.take import Taken
from .._engine.cancels import Cancels
from .._engine.owners import later
from .._values.logs import log
from .buffer import Buffer
from .runs import Run, Runs

LATER = 0.05  # seconds
LOOKS = 5  # for a task between two places; after that it has been settled


class Cancelling:
    """The takes of a shift at one server, until end(). `give_back` releases tasks that no handler has begun.

    Args:
        buffers: of the shift's runners; the list may grow.
        is_own: whether the server of `cancels` has the task of an id.
    """

    def __init__(
        self,
        cancels: Cancels,
        runs: Runs,
        give_back: Callable[[list[Taken]], None],
        buffers: list[Buffer],
        is_own: Callable[[int], bool],
    ) -> None:
        self.buffers = buffers
        self._is_own = is_own
        self._cancels = cancels
        self._runs = runs
        self._give_back = give_back
        cancels.add(self)

    def end(self) -> None:
        self._cancels.remove(self)

    def seen(self, tasks: list[Taken]) -> None:
        """These were taken: some may have been cancelled while the claim's answer was on its way."""
        if self._cancels.unknown:
            self._cancels.seen([(task.id, task.token) for task in tasks if self._is_own(task.id)])

    def takes(self, ids: Collection[int] | None) -> Iterable[tuple[int, int]]:
        if ids is not None:
            runs = [run for id in ids if (run := self._runs.known.get(id)) is not None]
        else:
            runs = list(self._runs.known.values())
        found = [(run.task.id, run.task.token) for run in runs if not run.cancelled]
        for buffer in self.buffers:
            found += [(task.id, task.token) for task in buffer.held() if ids is None or task.id in ids]
        return [take for take in found if self._is_own(take[0])]

    def cancelled(self, id: int, token: int, reason: str | None, looks: int = LOOKS) -> None:
        run = self._runs.known.get(id)
        if run is not None and run.task.token == token:
            self._cancel(run, reason)
            return
        for buffer in self.buffers:
            if tasks := buffer.take_out(lambda task: task.id == id and task.token == token):
                log.info("task %s of %s was cancelled before its handler began", id, tasks[0].queue)
                self._give_back(tasks)
                return
        if looks:
            later(LATER, "pgqueue-cancelling", self.cancelled, id, token, reason, looks - 1)

    def _cancel(self, run: Run, reason: str | None) -> None:
        if not run.cancelled:
            log.info("task %s of %s was cancelled: %s", run.task.id, run.task.queue, reason)
            run.cancel(reason)
