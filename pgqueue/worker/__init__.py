"""The worker: takes tasks in batches, runs handlers, settles in batches.

    fetcher --fill--> buffer --pop--> runners --append--> settler
    (thread)                          (threads,           (thread)
                                       coroutines)

Sync handlers run in threads, async ones in coroutines of one loop; each kind has a buffer and fetcher of its own
(crew.py). The fetcher takes as much as the buffer wants (buffer.py), the settler acks as much as has come together
(settler.py); handlers.py calls the handlers. At a stop nothing more is taken, what was not started goes back at once,
and what is under way is finished and settled.
"""

from __future__ import annotations

import logging
import os
import signal
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from .. import arguments
from ..base import ClientBase
from ..calls import Taken
from ..client import Client
from .crew import Crew
from .handlers import AsyncBound, Bound, Handler, bind, bind_async, describe, is_async
from .policy import Policy
from .runners import Coroutines, Threads
from .settler import Settler

__all__ = ["Worker"]

log = logging.getLogger("pgqueue")

STOP = b"\0"  # in the pipe that ends run()
POISON = "not tried again: it came back too often, its takers died or it was failed elsewhere"


class Worker:
    """Runs handlers on the tasks of their queues.

    Args:
        client: whose queues; a Client or an AsyncClient. It stays open.
        handlers: a function for each queue, sync or async, called with a task's data, and with the Task too (an
            AsyncTask if it is async) if it has a parameter named `task`. Default: those registered with
            client.handler(), with their keep_result. A return acks the task, if the handler has not settled it; an
            exception is a failed attempt.
        concurrency: how many handlers of each kind, sync and async, run at once.
        max_attempts: after so many failed attempts a task is buried, with its error kept.
        retry_delay: in seconds. A failed task is ready again after a random delay of up to
            retry_delay * 2 ** (attempts - 1): full jitter.
        max_retry_delay: the longest such delay, in seconds.

    A task is handled at least once. A worker that is killed repeats what it had not acked: handlers under way, and
    tasks that were done in the last moments (settler.py has the bound). A ttr runs from the take, so it has to leave
    room for buffer.AHEAD seconds in the buffer.
    """

    def __init__(
        self,
        client: ClientBase,
        handlers: Mapping[str, Handler] | None = None,
        *,
        concurrency: int = 8,
        max_attempts: int = 20,
        retry_delay: float = 1.0,
        max_retry_delay: float = 3600.0,
    ) -> None:
        self._core = client._core
        self._handlers = dict(client.handlers if handlers is None else handlers)
        self._keep = dict(client.keep_results if handlers is None else {})
        if not self._handlers:
            raise ValueError("a worker needs a handler: register one with @client.handler(queue)")
        for queue in self._handlers:
            arguments.queue_name(queue)
        self._concurrency = arguments.count("concurrency", concurrency)
        self._policy = Policy(max_attempts, retry_delay, max_retry_delay)
        self._stop_pipe = os.pipe()
        os.set_blocking(self._stop_pipe[1], False)
        for end in self._stop_pipe:
            weakref.finalize(self, os.close, end)

    def run(self) -> None:
        """Work until stop() is called, the client is closed, or the process gets SIGTERM or SIGINT; then finish what
        is under way and give back the rest. A second signal ends the process at once.

        Signals are caught in the main thread only; from another one, call stop().

        Raises:
            ServerError, SchemaError: as a first call of the client.
        """
        with self._caught_signals():
            self._core.listener()
            client = Client._over(self._core)  # with connections that are ours
            try:
                self._work(client)
            finally:
                client._connections.close()

    def stop(self) -> None:
        """Let run() return as soon as the handlers under way are done. From any thread or signal handler."""
        with suppress(OSError):  # full: it is stopping; closed: the process ends, and its client was closed before
            os.write(self._stop_pipe[1], STOP)

    def _work(self, client: Client) -> None:
        settler = Settler(client, self._policy, self._keep)
        crews = self._crews(client, settler)
        log.info("working on %s", ", ".join(self._handlers))
        try:
            while os.read(self._stop_pipe[0], 1) != STOP:  # a signal's own byte: its handler comes next, and stops us
                pass
            log.info("stopping: finishing what is under way")
        finally:
            settler.stop()
            for step in (Crew.stop, Crew.give_back, Crew.join):  # each for all of them, before anything waits
                for crew in crews:
                    step(crew)
            settler.close()

    def _crews(self, client: Client, settler: Settler) -> list[Crew]:
        aio = client.aio
        finish = dict.fromkeys(self._keep, settler.finish).get
        given = self._handlers.items()
        awaiting = {queue: bind_async(aio, queue, f, finish(queue)) for queue, f in given if is_async(f)}
        blocking = {queue: bind(client, queue, f, finish(queue)) for queue, f in given if queue not in awaiting}
        crews = []
        if blocking:
            threads = Threads(self._concurrency, self._handle(blocking, settler))
            crews.append(Crew(client, list(blocking), threads, settler, self.stop))
        if awaiting:
            coroutines = Coroutines(self._concurrency, self._handle_async(awaiting, settler), aio._connections.close)
            crews.append(Crew(client, list(awaiting), coroutines, settler, self.stop))
        return crews

    def _handle(self, bound: dict[str, Bound], settler: Settler) -> Callable[[Taken], None]:
        done, exhausted, tell = settler.done, self._policy.exhausted, settler.tell

        def handle(task: Taken) -> None:
            try:
                if exhausted(task.attempts):
                    settler.failed.append((task, POISON))
                elif not bound[task.queue](task):
                    done.append((task.id, task.token))
            except BaseException as error:  # SystemExit too: a handler does not end the worker
                settler.failed.append((task, describe(error)))
            tell()

        return handle

    def _handle_async(self, bound: dict[str, AsyncBound], settler: Settler) -> Callable[[Taken], Awaitable[None]]:
        done, exhausted, tell = settler.done, self._policy.exhausted, settler.tell

        async def handle(task: Taken) -> None:
            try:
                if exhausted(task.attempts):
                    settler.failed.append((task, POISON))
                elif not await bound[task.queue](task):
                    done.append((task.id, task.token))
            except BaseException as error:
                settler.failed.append((task, describe(error)))
            tell()

        return handle

    @contextmanager
    def _caught_signals(self) -> Iterator[None]:
        """While SIGTERM and SIGINT mean stop(), by a pipe, for a handler may come while an Event's lock is taken.

        Python runs a handler between two bytecodes of the main thread. A signal that arrives after the last of them and
        before os.read sleeps, or that the kernel gives to another thread, would be noted and change nothing: hence the
        wakeup fd, into which the interpreter writes at the signal itself.
        """
        before: dict[int, Any] = {}

        def caught(number: int, frame: FrameType | None) -> None:
            restore()  # the next one has its usual effect
            self.stop()

        def restore() -> None:
            while before:
                signal.signal(*before.popitem())

        try:
            wakeup = signal.set_wakeup_fd(self._stop_pipe[1], warn_on_full_buffer=False)
        except ValueError:  # not the main thread
            yield
            return
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                before[number] = signal.signal(number, caught)
            yield
        finally:
            restore()
            signal.set_wakeup_fd(wakeup)
