"""A shift: one set of handlers at work, with their crews and the settler that they share. A reload replaces it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from .._async.client import AsyncClient
from .._calls.take import Taken
from .._sync.client import Client
from .._sync.shell import Shell
from .crew import Crew
from .handlers import AsyncBound, Bound, Handler, bind, bind_async, describe, is_async
from .policy import Policy
from .runners import Coroutines, Threads
from .settler import Settler

POISON = "not tried again: it came back too often (its takers died, or it was failed elsewhere)"


class Shift:
    """Works until stop(), and has ended after end(). Calls `closed` if the client is closed."""

    def __init__(
        self,
        client: Client | AsyncClient,
        handlers: Mapping[str, Handler],
        keep: Mapping[str, float],
        concurrency: int,
        policy: Policy,
        closed: Callable[[], None],
    ) -> None:
        self._client = Client.over(Shell(client.shell.core))  # with connections of its own
        self._policy = policy
        self._settler = Settler(self._client.shell, policy, keep)
        self._crews: list[Crew] = []
        try:
            self._begin(handlers, keep, concurrency, closed)
        except BaseException:  # a handler without a signature: end the crews that have begun
            self.stop()
            self.end()
            raise

    def _begin(
        self, handlers: Mapping[str, Handler], keep: Mapping[str, float], concurrency: int, closed: Callable[[], None]
    ) -> None:
        client, settler, aio = self._client, self._settler, self._client.aio
        finish = dict.fromkeys(keep, settler.finish).get
        awaiting = {queue: bind_async(aio, f, finish(queue)) for queue, f in handlers.items() if is_async(f)}
        others = [(queue, f) for queue, f in handlers.items() if queue not in awaiting]
        blocking = {queue: bind(client, f, finish(queue)) for queue, f in others}
        if blocking:
            threads = Threads(concurrency, self._handle(blocking))
            self._crews.append(Crew(client, list(blocking), threads, settler, closed))
        if awaiting:
            coroutines = Coroutines(concurrency, self._handle_async(awaiting), aio.shell.connections.close)
            self._crews.append(Crew(client, list(awaiting), coroutines, settler, closed))

    def hurry(self) -> None:
        """The worker stops: the settler gives up soon."""
        self._settler.stop()

    def stop(self) -> None:
        """Take no more tasks, and start no more. Does not wait."""
        for crew in self._crews:
            crew.stop()

    def end(self) -> None:
        """Release the tasks that were not started, and wait until those under way are settled; after stop()."""
        for step in (Crew.give_back, Crew.join):  # release the tasks of all crews before joining the first one
            for crew in self._crews:
                step(crew)
        self._settler.close()
        self._client.shell.connections.close()

    def _handle(self, bound: dict[str, Bound]) -> Callable[[Taken], None]:
        done, failed, tell = self._settler.done, self._settler.failed, self._settler.tell
        exhausted = self._policy.exhausted

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
        exhausted = self._policy.exhausted

        async def handle(task: Taken) -> None:
            try:
                if exhausted(task.attempts):
                    failed.append((task, POISON))
                elif not await bound[task.queue](task):
                    done.append((task.id, task.token))
            except BaseException as error:
                failed.append((task, describe(error)))
            tell()

        return handle
