"""The worker: takes tasks in batches, runs handlers, settles in batches.

    fetcher --fill--> buffer --pop--> runners --append--> settler
    (thread)                          (threads,           (thread)
                                       coroutines)

Sync handlers run in threads, async ones in coroutines of one loop; each kind has a buffer and fetcher of its own
(crew.py). The fetcher takes as much as the buffer wants (buffer.py), the settler acks as much as has come together
(settler.py); handlers.py calls the handlers. All of this together is a shift (shift.py). At a stop nothing more is
taken, what was not started goes back at once, and what is under way is finished and settled. At a reload another shift
begins, with the new handlers, and the old one ends in just that way, in a thread of its own: a handler that takes an
hour does not keep the new ones waiting.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from .._async.client import AsyncClient
from .._sync.client import Client
from .._values import arguments
from .handlers import Handler
from .policy import Policy
from .shift import Shift

__all__ = ["Worker"]

AnyClient = Client | AsyncClient

log = logging.getLogger("pgqueue")

STOP, RELOAD = b"\0", b"\xff"  # in the pipe that run() reads; no numbers of signals


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
        load: what reload() calls, as does SIGHUP if this is given, for the client to go on with. If that is another
            one, the one before is closed once its tasks are done.

    Attributes:
        client: the one whose handlers are at work.

    A task is handled at least once. A worker that is killed repeats what it had not acked: handlers under way, and
    tasks that were done in the last moments (settler.py has the bound). A ttr runs from the take, so it has to leave
    room for buffer.AHEAD seconds in the buffer.
    """

    def __init__(
        self,
        client: AnyClient,
        handlers: Mapping[str, Handler] | None = None,
        *,
        concurrency: int = 8,
        max_attempts: int = 20,
        retry_delay: float = 1.0,
        max_retry_delay: float = 3600.0,
        load: Callable[[], AnyClient] | None = None,
    ) -> None:
        self.client = client
        self._given = handlers
        self._handlers(client)
        self._load = load
        self._concurrency = arguments.count("concurrency", concurrency)
        self._policy = Policy(max_attempts, retry_delay, max_retry_delay)
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._relieving: dict[Shift, threading.Thread] = {}
        for end in self._pipe:
            weakref.finalize(self, os.close, end)

    def run(self) -> None:
        """Work until stop() is called, the client is closed, or the process gets SIGTERM or SIGINT; then finish what
        is under way and give back the rest. A second signal ends the process at once. With `load`, SIGHUP is reload().

        Signals are caught in the main thread only; from another one, call stop().

        Raises:
            ServerError, SchemaError: as a first call of the client.
        """
        with self._caught_signals():
            self._work()

    def stop(self) -> None:
        """Let run() return as soon as the handlers under way are done. From any thread or signal handler."""
        self._tell(STOP)

    def reload(self) -> None:
        """Let run() go on with new handlers: those of the client that `load` returns, else those registered by now.

        Tasks in hand are finished by the old handlers, and their threads are joined then; until then both are there,
        each with its `concurrency`. What was taken and not begun goes back. If loading fails, that is logged, and the
        old handlers go on. From any thread or signal handler; does not wait.
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
            log.info("stopping: finishing what is under way")
        finally:
            for any_shift in [shift, *self._relieving]:
                any_shift.hurry()
            shift.stop()
            shift.end()
            for thread in self._relieving.values():
                thread.join()

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
        return Shift(client, dict(self._handlers(client)), dict(keep), self._concurrency, self._policy, self.stop)

    def _relieved(self, old: Shift) -> Shift:
        """The shift that goes on with the new handlers, while the old one ends. If those cannot be had, the old one."""
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
                client.shell.core.close()  # what is open on an event loop went with the shift's

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
