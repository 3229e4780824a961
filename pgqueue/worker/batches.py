"""Batch handlers: a call gets up to n tasks at once, and each of them is settled by itself.

A runner takes the tasks that are in the buffer, up to n, and does not wait for more: the fetcher asks for n tasks for
each idle runner, so batches are large when there is much to do, and small when there is little.

Each task of a batch has a run of its own (runs.py), since each has its own deadline. If one of them is cut, the batch's
thread is written off, once, and the tasks beside it go on: they are settled when the handler returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from .._async.task import AsyncTask
from .._calls.take import Taken
from .._records.task import from_taken
from .._sync.task import Task
from ..jobs.signature import is_async
from .bridge import Bridge
from .handlers import Noting, insist_on_done
from .homes import AnyHomes
from .runners import Threads
from .runs import Run, Runs, enter

Errors = Mapping[int, BaseException | str]  # by the id of a task
BoundBatch = Callable[[list[Taken]], tuple[set[int], Errors]]  # the ids of those that it has settled, and errors


class Batches(Threads):
    """Threads that call `handle` with up to `each` rows at once; it must not raise."""

    def __init__(
        self, n: int, each: int, handle: Callable[[list[Taken]], None], runs: Runs, enter: Callable[[], object]
    ) -> None:
        self._each = each
        self._handle_all = handle
        super().__init__(n, lambda task: handle([task]), runs, enter, each)

    def replace(self, run: Run) -> None:
        if run.runner in self._threads:  # not yet, for another task of its batch
            super().replace(run)

    def _work(self) -> None:
        buffer, runs, me = self.buffer, self.runs, threading.current_thread()
        now = buffer.clock()
        while True:
            batch = self._pop()
            if not batch:
                turn = buffer.turn(me)
                if turn is False:
                    return
                if turn is True:
                    self._bell.acquire()
                    now = buffer.clock()
                    continue
                batch = [turn, *self._pop(1)]
            buffer.started(now)
            begun = self._begin(batch, now, me)
            if begun:
                enter(begun[0]).run(self._handle_all, [run.task for run in begun])
                for run in begun:
                    del runs.known[run.task.id]
                if not all(runs.may_go_on(run) for run in begun if run.doubted):
                    return
            now = buffer.finished(now, self.n * len(batch))

    def _pop(self, less: int = 0) -> list[Taken]:
        batch: list[Taken] = []
        try:
            while len(batch) < self._each - less:
                batch.append(self.buffer.tasks.popleft())
        except IndexError:
            pass
        return batch

    def _begin(self, batch: list[Taken], now: float, me: threading.Thread) -> list[Run]:
        begun = []
        for task in batch:
            run = Run(task, now, self, me)
            run.one_of_many = True
            if self.runs.known.setdefault(task.id, run) is run:
                begun.append(run)
            else:
                self.runs.refuse(run)
        return begun


def bind_batch(homes: AnyHomes, bridge: Bridge, function: Callable[..., Any]) -> BoundBatch:
    """A function of rows that calls the handler. Never raises: the handler's exception is the error of its tasks."""
    asynchronous = is_async(function)

    def call(rows: list[Taken]) -> tuple[set[int], Errors]:
        notings: dict[int, Noting] = {}

        async def in_loop(aio: AnyHomes) -> Any:
            notings.update((row.id, Noting(aio.of(row.id))) for row in rows)
            return await function([from_taken(AsyncTask, row, notings[row.id]) for row in rows])

        try:
            if asynchronous:
                result = bridge.run(in_loop)
            else:
                notings.update((row.id, Noting(homes.of(row.id))) for row in rows)
                result = function([from_taken(Task, row, notings[row.id]) for row in rows])
                insist_on_done(result)
            errors: Errors = result if isinstance(result, Mapping) else {}
        except BaseException as error:
            errors = {row.id: error for row in rows}
        return {id for id, noting in notings.items() if noting.settled}, errors

    return call
