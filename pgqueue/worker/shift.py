"""A shift: one set of handlers at work, with their crews and the settler that they share. A reload replaces it.

The end of a shift has a bound, the end of the worker's grace. Until then handlers under way may finish. After it the
watch cuts them off (overdue.py); their tasks are released and not charged, since they did not fail. Threads that go on
are left behind: they are daemons.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from .._async.client import AsyncClient
from .._calls.take import Taken
from .._sync.client import Client
from .._sync.shell import Shell
from ..errors import Error
from .crew import Crew
from .handlers import AsyncBound, Bound, Handler, bind, bind_async, describe, is_async
from .overdue import OVER, STOPPED, Watch
from .policy import Policy
from .runners import Coroutines, Threads
from .runs import Known, Runs
from .settler import Settler

POISON = "not tried again: it came back too often (its takers died, or it was failed elsewhere)"


JOIN = 0.1  # seconds between two looks whether the grace is over


@dataclass(frozen=True, slots=True)
class Terms:
    """What a worker's shifts have in common. Times in seconds.

    Attributes:
        known: the runs of all shifts.
        closed: called if the client is closed.
        failed: called with the error that ends the worker.
    """

    concurrency: int
    policy: Policy
    time_limit: float | None
    known: Known
    closed: Callable[[], None]
    failed: Callable[[Error], None]


class Shift:
    """Works until stop(), and has ended after end()."""

    def __init__(
        self, client: Client | AsyncClient, handlers: Mapping[str, Handler], keep: Mapping[str, float], terms: Terms
    ) -> None:
        self._client = Client.over(Shell(client.shell.core))  # with connections of its own
        self._terms = terms
        self._until = float("inf")  # the end of the grace
        self._settler = Settler(self._client.shell, terms.policy, keep)
        self._runs = Runs(terms.known, self._settler.put_off)
        self._watch = Watch(self._client.shell, self._runs, self._settler, terms.time_limit, terms.failed)
        self._crews: list[Crew] = []
        try:
            self._begin(handlers, keep)
        except BaseException:  # a handler without a signature: end the crews that have begun
            self.stop()
            self.end()
            raise

    def _begin(self, handlers: Mapping[str, Handler], keep: Mapping[str, float]) -> None:
        client, settler, aio = self._client, self._settler, self._client.aio
        n, closed, core = self._terms.concurrency, self._terms.closed, client.shell.core
        finish = dict.fromkeys(keep, settler.finish).get
        awaiting = {queue: bind_async(aio, f, finish(queue)) for queue, f in handlers.items() if is_async(f)}
        others = [(queue, f) for queue, f in handlers.items() if queue not in awaiting]
        blocking = {queue: bind(client, f, finish(queue)) for queue, f in others}
        if blocking:
            threads = Threads(n, self._handle(blocking), self._runs, core.handle_here)
            self._crews.append(Crew(client, list(blocking), threads, settler, closed))
        if awaiting:
            handle, goodbye = self._handle_async(awaiting), aio.shell.connections.close
            coroutines = Coroutines(n, handle, goodbye, self._runs, core.handle_here)
            self._crews.append(Crew(client, list(awaiting), coroutines, settler, closed))

    def hurry(self, until: float) -> None:
        """The worker stops: its grace is over at the monotonic time `until`. The settler gives up soon."""
        self._until = until
        self._settler.stop(until)

    def stop(self) -> None:
        """Take no more tasks, and start no more. Does not wait."""
        for crew in self._crews:
            crew.stop()

    def end(self) -> None:
        """Release the tasks that were not started, and wait until those under way are settled; after stop().

        Once the grace is over, it waits for no handler any more.
        """
        for crew in self._crews:
            crew.give_back()
        while not all(crew.join(JOIN) for crew in self._crews):
            if time.monotonic() >= self._until:
                self._watch.stop_all()
                break
        self._watch.end()
        self._settler.close()
        self._client.shell.connections.close()

    def _handle(self, bound: dict[str, Bound]) -> Callable[[Taken], None]:
        done, failed, tell = self._settler.done, self._settler.failed, self._settler.tell
        exhausted = self._terms.policy.exhausted

        def handle(task: Taken) -> None:
            try:
                if exhausted(task.attempts):
                    failed.append((task, POISON))
                elif not bound[task.queue](task):
                    done.append((task.id, task.token))
            except BaseException as error:  # SystemExit too: a handler does not end the worker
                failed.append((task, describe(error)))
            tell()

        return handle

    def _handle_async(self, bound: dict[str, AsyncBound]) -> Callable[[Taken], Awaitable[None]]:
        done, failed, tell = self._settler.done, self._settler.failed, self._settler.tell
        exhausted = self._terms.policy.exhausted

        async def handle(task: Taken) -> None:
            try:
                if exhausted(task.attempts):
                    failed.append((task, POISON))
                elif not await bound[task.queue](task):
                    done.append((task.id, task.token))
            except BaseException as error:
                cut = self._runs.cut(task)
                if cut is STOPPED:
                    self._settler.give_back([task])
                elif cut is not OVER:
                    failed.append((task, cut or describe(error)))
            tell()

        return handle
