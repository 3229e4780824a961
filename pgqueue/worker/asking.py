"""The questions of a handler in a child process to its worker, and the answers.

One thread of the child reads all messages of the worker: orders for the main thread, answers for the threads that ask,
and the notice that the task was cancelled. A question has the number of its order: by that the worker refuses a thread
that a handler has left behind, and that asks while the next task is handled. An answer for which no thread waits any
more, since SoftTimeLimit was raised, is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self

from .._async.cancellation import AsyncCancellation
from .._calls.results import Outcome
from .._engine import awaiting, blocking
from .._engine.cancels import Watched
from .._engine.owners import Owned
from .._records.task import TaskRecord
from .._sync.cancellation import Cancellation
from .._values import data
from ..errors import SoftTimeLimit
from .frames import Frames
from .remote import VERBS, Failed
from .soft import MESSAGE

Answered = Callable[[list[Any]], object]  # gets the answer to a question: an error or None, and the result


class WholeFrames(Frames):
    """Frames of a child, whose main thread is interrupted by SoftTimeLimit, but not in the midst of a message.

    Attributes:
        sending: the main thread sends a message at present.
        late: SoftTimeLimit is to be raised after it.
    """

    sending = late = False

    def send(self, message: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            super().send(message)
            return
        self.sending, self.late = True, False
        try:
            super().send(message)
        finally:
            self.sending = False
        if self.late:
            raise SoftTimeLimit(MESSAGE)


class Link:
    """The child's end of the socket, until the process ends: with the worker at the latest.

    Attributes:
        orders: messages for the main thread.
    """

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._process = os.getpid()
        self._numbers = itertools.count(1)
        self._asked: dict[int, Answered] = {}
        self._present: Asking | None = None
        Owned("pgqueue-link", self._read, lambda: False, lambda error: self._end()).start()

    @property
    def is_forked(self) -> bool:
        """Whether this is a process that a handler has forked. It has the socket, and no thread that reads."""
        return os.getpid() != self._process

    def begin(self, number: int, id: int) -> Asking:
        """The order of this number, for the task of this id, begins."""
        self._present = asking = Asking(self, number, id)
        return asking

    def ask(self, number: int, verb: str, given: list[Any], named: dict[str, Any], answered: Answered) -> None:
        if self.is_forked:
            raise RuntimeError("a process that a handler has forked cannot use the handler's task")
        key = next(self._numbers)
        self._asked[key] = answered
        try:
            self.frames.send({"ask": [number, key, verb, given, named]})
        except (TypeError, ValueError):
            del self._asked[key]
            raise

    def _read(self) -> None:
        while (message := self.frames.receive()) is not None:
            if "answer" in message:
                key, *answer = message["answer"]
                self._asked.pop(key)(answer)
            elif "cancelled" in message:
                number, reason = message["cancelled"]
                if (present := self._present) is not None and present.number == number:
                    present.watched.set(reason)
            else:
                self.orders.put(message)
        self._end()  # the worker is gone: where there is no PR_SET_PDEATHSIG

    def _end(self) -> None:
        """End the process: without the link its handlers and the worker would wait indefinitely."""
        os.killpg(0, signal.SIGKILL)


class Asking:
    """The questions of one order.

    Attributes:
        number: of the order.
        watched: whether the task was cancelled, once watch() was called.
    """

    def __init__(self, link: Link, number: int, id: int) -> None:
        self.number = number
        self.watched = Watched(id, 0)
        self._link = link
        self._watches = False

    def ask(self, verb: str, *given: Any, **named: Any) -> Any:
        """Ask the worker to do something, and wait. Raises the worker's error, and ValueError: the worker does not do
        that.

        A queue and no Future, which may be left locked if SoftTimeLimit is raised while it is waited for.
        """
        answers: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        self._send(verb, given, named, answers.put)
        return _read(answers.get())

    async def aask(self, verb: str, *given: Any, **named: Any) -> Any:
        """The same in the handler's loop."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Any]] = loop.create_future()

        def answered(said: list[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, answer, said)

        self._send(verb, given, named, answered)
        return _read(await answer)

    def _send(self, verb: str, given: tuple[Any, ...], named: dict[str, Any], answered: Answered) -> None:
        if named.pop("conn", None) is not None:
            raise ValueError(
                f"{verb}: the worker holds the take, so a task in a process of its own takes no conn: leave it out, or"
                " run the job in a thread"
            )
        known = {name: _seconds(value) for name, value in named.items()}
        self._link.ask(self.number, verb, [_seconds(value) for value in given], known, answered)

    def watch(self) -> Watched:
        """From now on the handler is told that its task was cancelled, and is not killed for it."""
        if not self._watches:
            cancelled = self.ask("watch")
            if cancelled is not None:
                self.watched.set(*cancelled)
            self._watches = True
        return self.watched


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTask(TaskRecord):
    """The task of a handler in a child process. Its verbs are asked of the worker: ack, release, bury, touch, finish,
    fail, requeue and progress, as those of Task, without `conn` and with values that JSON holds."""

    def __getattr__(self, verb: str) -> Any:
        _check(verb)
        return lambda *args, **kwargs: self._after(self._home.ask(verb, *args, **kwargs))

    def step(self, name: str, function: Callable[[], Any], *, conn: None = None) -> Any:
        """As Task.step. The function is called in this process."""
        asking: Asking = self._home
        recorded = asking.ask("recorded", name, conn=conn)
        if recorded is not None:
            return recorded[0]
        return asking.ask("record", name, _checked(blocking.called(function)))

    def results(self) -> list[Outcome]:
        """As Task.results."""
        return [Outcome(**told) for told in self._home.ask("results")]

    @property
    def cancelled(self) -> Cancellation:
        """As Task.cancelled. A handler that has used it is told of the cancellation, and not killed for it."""
        return Cancellation(self._home.watch())

    def _after(self, state: str | None) -> Self | None:
        if state is None:
            return None
        after = replace(self, state=state)
        object.__setattr__(after, "_bound", self._home)
        return after


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncChildTask(ChildTask):
    """The same for an async handler, as an AsyncTask."""

    def __getattr__(self, verb: str) -> Any:
        _check(verb)

        async def ask(*args: Any, **kwargs: Any) -> Any:
            return self._after(await self._home.aask(verb, *args, **kwargs))

        return ask

    async def step(self, name: str, function: Callable[[], Any], *, conn: None = None) -> Any:
        asking: Asking = self._home
        recorded = await asking.aask("recorded", name, conn=conn)
        if recorded is not None:
            return recorded[0]
        return await asking.aask("record", name, _checked(await awaiting.called(function)))

    async def results(self) -> list[Outcome]:  # type: ignore[override]
        return [Outcome(**told) for told in await self._home.aask("results")]

    @property
    def cancelled(self) -> AsyncCancellation:  # type: ignore[override]
        return AsyncCancellation(self._home.watch())


def _check(verb: str) -> None:
    if verb not in VERBS:
        raise AttributeError(
            f"a task in a process of its own has no {verb!r}: use a client of the handler's module for it, or run"
            " the handler in a thread"
        )


def _checked(value: Any) -> Any:
    """Raises BadData: JSON cannot hold the value."""
    data.encode(value)
    return value


def _settle(answer: asyncio.Future[list[Any]], said: list[Any]) -> None:
    if not answer.cancelled():
        answer.set_result(said)


def _read(said: list[Any]) -> Any:
    """The worker's answer. Raises the error in it."""
    error, result = said
    if error is not None:
        raise Failed(error).error
    return result


def _seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value
