"""The worker: takes tasks in batches, runs their handlers, and settles them in batches.

    fetcher --fill--> buffer --pop--> runners --append--> settler
    (thread)                          (threads,           (thread)
                                       coroutines)

Sync handlers run in threads, async ones in coroutines of one loop; each kind has a buffer and fetcher of its own
(crew.py). The fetcher takes as many tasks as the buffer wants (buffer.py), the settler acks the tasks that were handled
in the meantime (settler.py), and handlers.py calls the handlers. All of these together are a shift (shift.py).

At a stop the shift takes no more tasks, releases the tasks that were not started, and finishes and settles those under
way, for the time of the worker's grace. overdue.py is about handlers that do not end. At a reload another shift begins,
with the new handlers, and the old one ends in the same way, in a thread of its own: a handler that takes an hour does
not delay the new handlers.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from .._async.client import AsyncClient
from .._sync.client import Client
from .._values import arguments
from .._values.arguments import Seconds
from ..errors import Error
from .handlers import Handler
from .policy import Policy
from .runs import Known
from .shift import Shift, Terms

__all__ = ["Worker"]

AnyClient = Client | AsyncClient

log = logging.getLogger("pgqueue")

LEAVE = 0.9  # seconds after the end of the grace in which the process ends
STOP, RELOAD = b"\0", b"\xff"  # in the pipe that run() reads; they differ from all signal numbers


class Worker:
    """Runs handlers on the tasks of their queues.

    Args:
        client: the client to take with; a Client or an AsyncClient. It stays open.
        handlers: a function for each queue, sync or async, called with a task's data, and with the Task too (an
            AsyncTask if it is async) if it has a parameter named `task`. Default: those registered with
            client.handler(), with their keep_result. When the handler returns, the worker acks the task, unless the
            handler has settled it. An exception is a failed attempt.
        concurrency: the number of handlers of each kind, sync and async, that run at once.
        max_attempts: after this number of failed attempts a task is buried, with its error kept.
        retry_delay: seconds, or a timedelta. A failed task is ready again after a random delay of up to
            retry_delay * 2 ** (attempts - 1): full jitter.
        max_retry_delay: the longest such delay, in seconds or as a timedelta.
        time_limit: seconds, or a timedelta, for a handler. After this time an async handler is cancelled, a thread is
            written off, and the attempt has failed. None: without limit. A task's own ttr ends a handler as well.
        grace: seconds, or a timedelta, for the handlers under way when the worker stops. Then async handlers are
            cancelled, threads are left behind, and their tasks are released; that is no failed attempt. None: without
            limit.
        load: a function that returns the client to go on with. reload() calls it, and with `load` so does SIGHUP. If
            it returns another client, the worker closes the old one once its tasks are done.

    Attributes:
        client: the client of the handlers that run now.
        stopping: set when the stop has begun.
        leave_by: from then on, the monotonic time by which a process is to end that runs nothing else; None without a
            grace.

    A task is handled at least once. After a worker was killed, other workers repeat the tasks that it had not acked:
    those under way, and those that were done in the last moments (settler.py has the bound). A ttr runs from the take,
    so it has to include buffer.AHEAD seconds in the buffer. A process handles a task once at a time.

    A handler cannot close the worker's client: close() raises a RuntimeError there, and the attempt has failed.
    """

    def __init__(
        self,
        client: AnyClient,
        handlers: Mapping[str, Handler] | None = None,
        *,
        concurrency: int = 8,
        max_attempts: int = 20,
        retry_delay: Seconds = 1.0,
        max_retry_delay: Seconds = 3600.0,
        time_limit: Seconds | None = None,
        grace: Seconds | None = 30.0,
        load: Callable[[], AnyClient] | None = None,
    ) -> None:
        self.client = client
        self._given = handlers
        self._handlers(client)
        self._load = load
        self._grace = arguments.seconds("grace", grace)
        self._failure: Error | None = None
        self._terms = Terms(
            concurrency=arguments.count("concurrency", concurrency),
            policy=Policy.of(max_attempts, retry_delay, max_retry_delay),
            time_limit=arguments.seconds("time_limit", time_limit, positive=True),
            known=Known(),
            closed=self.stop,
            failed=self._fail,
        )
        self.stopping = threading.Event()
        self.leave_by: float | None = None
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._relieving: dict[Shift, threading.Thread] = {}
        for end in self._pipe:
            weakref.finalize(self, os.close, end)

    def run(self) -> None:
        """Work until stop() is called, the client is closed, or the process gets SIGTERM or SIGINT.

        Then finish the tasks under way, for the time of the grace, and release the rest. A second signal ends the
        process at once. With `load`, SIGHUP is reload(). Signals are caught in the main thread only; in another thread,
        call stop().

        Raises:
            ServerError, SchemaError: as the first call of a client.
            Error: so many handlers hang that only a new process helps.
        """
        with self._caught_signals():
            self._work()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Let run() return once the handlers under way are done, or the grace is over. May be called in any thread or
        signal handler."""
        self._tell(STOP)

    def reload(self) -> None:
        """Let run() go on with new handlers: those of the client that `load` returns, else those registered by now.

        The old handlers finish the tasks under way, and then their threads end; until then both sets of handlers run,
        each with its `concurrency`. Tasks that were taken and not started are released. If loading fails, the worker
        logs the error and goes on with the old handlers. May be called in any thread or signal handler; does not wait.
        """
        self._tell(RELOAD)

    def _tell(self, byte: bytes) -> None:
        with suppress(OSError):  # full: it is stopping; closed: the process ends, and its client was closed before
            os.write(self._pipe[1], byte)

    def _work(self) -> None:
        shift = self._shift(self.client)
        log.info("working on %s", ", ".join(self._handlers(self.client)))
        try:
            while (byte := os.read(self._pipe[0], 1)) != STOP:  # a signal's own byte: its handler comes next
                if byte == RELOAD:
                    shift = self._relieved(shift)
            log.info("stopping: finishing the tasks under way")
        finally:
            until = time.monotonic() + (float("inf") if self._grace is None else self._grace)
            self.leave_by = None if self._grace is None else until + LEAVE
            self.stopping.set()
            for any_shift in [shift, *self._relieving]:
                any_shift.hurry(until)
            shift.stop()
            shift.end()
            for thread in self._relieving.values():
                thread.join(None if self.leave_by is None else max(0.0, self.leave_by - time.monotonic()))

    def _handlers(self, client: AnyClient) -> Mapping[str, Handler]:
        handlers = client.handlers if self._given is None else self._given
        if not handlers:
            raise ValueError("a worker needs a handler: register one with @client.handler(queue)")
        for queue in handlers:
            arguments.queue_name(queue)
        return handlers

    def _shift(self, client: AnyClient) -> Shift:
        client.shell.core.listener()
        keep = client.keep_results if self._given is None else {}
        return Shift(client, dict(self._handlers(client)), dict(keep), self._terms)

    def _fail(self, error: Error) -> None:
        if self._failure is None:
            log.error("stopping: %s", error)
            self._failure = error
            self.stop()

    def _relieved(self, old: Shift) -> Shift:
        """Start a shift with the new handlers, and end the old one. If loading the new ones fails, the old shift."""
        try:
            client = self._load() if self._load else self.client
            new = self._shift(client)
        except Exception:
            log.exception("reloading failed: going on with the old handlers")
            return old
        replaced, self.client = self.client, client
        old.stop()
        thread = threading.Thread(target=self._relieve, args=(old, replaced), name="pgqueue-relief", daemon=True)
        self._relieving = {shift: one for shift, one in self._relieving.items() if one.is_alive()} | {old: thread}
        thread.start()
        log.info("reloaded: working on %s", ", ".join(self._handlers(client)))
        return new

    def _relieve(self, shift: Shift, client: AnyClient) -> None:
        shift.end()
        if client.shell.core is not self.client.shell.core:
            if isinstance(client, Client):
                client.close()
            else:
                client.shell.core.close()  # the connections of an event loop ended with the shift's loop

    @contextmanager
    def _caught_signals(self) -> Iterator[None]:
        """Within this block SIGTERM and SIGINT mean stop().

        The signal handler writes into a pipe, since it may run while the main thread holds an Event's lock. Python runs
        a signal handler between two bytecodes of the main thread. If a signal arrives after the last of them and before
        os.read sleeps, or if the kernel delivers it to another thread, the handler would not run until os.read returns:
        hence the wakeup fd, into which the interpreter writes at the signal itself.
        """
        before: dict[int, Any] = {}

        def caught(number: int, frame: FrameType | None) -> None:
            restore()  # the next signal has its usual effect
            self.stop()

        def restore() -> None:
            while before:
                signal.signal(*before.popitem())

        try:
            wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        except ValueError:  # not the main thread
            yield
            return
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                before[number] = signal.signal(number, caught)
            if self._load:
                before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda number, frame: self.reload())
            yield
        finally:
            restore()
            signal.set_wakeup_fd(wakeup)
