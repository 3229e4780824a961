"""A child process of a worker, in which handlers with isolation="process" run: `python -m pgqueue.worker.child`.

It does the setup of a framework, if there is one, and imports the modules of its handlers. Then it does one order after
another in its main thread, until its worker asks it to end, kills it, or is gone. children.py is the worker's side.

A handler here has no connection of its worker. Its module makes a client at import, as in the worker, and that client
connects at its first call, in this process. The verbs of its `task` are done by the worker, which holds the take
(asking.py).

Signals. The process is the leader of a process group, so Ctrl-C does not reach it. A SIGTERM that a process manager
sends to all processes of a service does, and does nothing: the worker decides when a handler ends. SOFT raises
SoftTimeLimit in the main thread, where a handler runs; between two orders it does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import importlib
import inspect
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from datetime import datetime
from types import FrameType
from typing import Any

from .._records.task import bind
from .._values import data
from .._values.logs import log
from ..errors import SoftTimeLimit
from ..jobs.middleware import Running, around_arun, around_run
from ..jobs.signature import is_async
from ..jobs.starts import AnyStart, Begun, BegunInLoop
from .asking import AsyncChildTask, ChildTask, Link, WholeFrames
from .describing import unkept
from .frames import Frames
from .remote import SOFT, hear_levels, resolved, tell_error, tell_log
from .soft import MESSAGE, steered

PR_SET_PDEATHSIG = 1
LARGEST = 1 << 30  # bytes of a result: the worker has the limit


def main(fd: int, parent: int) -> None:
    _die_with(parent)
    faulthandler.enable()
    frames = WholeFrames(socket.socket(fileno=fd))
    link = Link(frames)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)  # not SIG_IGN: programs that a handler starts inherit that
    work = _Work(link, frames)
    signal.signal(SOFT, work.soften)
    start = link.orders.get()
    sys.path[:] = start["path"]
    _log_to(frames, start["levels"])
    work.set_up(start["setup"], start["modules"])
    frames.send({"ready": True})
    while "order" in (message := link.orders.get()):
        answer = work.done(message["order"], message["number"])
        if link.is_forked:
            log.error("a handler forked, and the child returned from it: the child, process %s, ends here", os.getpid())
            os._exit(1)
        frames.send(answer)
    work.end()


class _Work:
    """The work at present: a handler, or none."""

    def __init__(self, link: Link, frames: WholeFrames) -> None:
        self._link = link
        self._frames = frames
        self._handling = False
        self._soft = False
        self._coroutine: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._runner = asyncio.Runner()
        self._context = copy_context()  # of the start hooks; each handler has a copy
        self._middleware: Sequence[Any] = ()  # of the framework
        self._spoiled: BaseException | None = None  # the exception of its setup
        self._begun: dict[int, tuple[Begun, BegunInLoop]] = {}  # the start hooks, by the client that has them

    def set_up(self, setup: dict[str, Any] | None, modules: Sequence[str]) -> None:
        """Set the framework up, and import modules. Does not raise: an order that needs a part of this fails."""
        if setup is not None:
            try:
                self._middleware = _resolved(setup["path"])(**setup["given"])
            except BaseException as error:
                self._spoiled = error
                return
        for module in modules:
            with contextlib.suppress(BaseException):
                importlib.import_module(module)

    def soften(self, number: int, frame: FrameType | None) -> None:
        if self._coroutine is not None:
            loop, task = self._coroutine
            self._soft = True
            loop.call_soon_threadsafe(task.cancel)
        elif self._handling and self._frames.sending:
            self._frames.late = True
        elif self._handling:
            raise SoftTimeLimit(MESSAGE)

    def done(self, order: dict[str, Any], number: int) -> dict[str, Any]:
        """Do an order. Returns the answer."""
        try:
            try:
                self._handling = True
                answer = self._called(order, number)
            finally:
                self._handling = False
        except BaseException as error:
            answer = {"done": None, "failed": tell_error(error), "memory": _memory()}
            return answer if self._spoiled is None else answer | {"spoiled": True}
        return answer | {"memory": _memory()}

    def _called(self, order: dict[str, Any], number: int) -> dict[str, Any]:
        if self._spoiled is not None:
            raise self._spoiled
        found = _resolved(order["path"])
        if "given" in order:
            found = found(**order["given"])
        kind = AsyncChildTask if is_async(getattr(found, "function", found)) else ChildTask
        task = bind(kind(**_read(order["task"]), data=order.get("data")), self._link.begin(number, order["task"]["id"]))
        if "args" in order:
            self._begin(found._home.starts)
        return self._context.copy().run(self._handled, order, found, task)

    def _handled(self, order: dict[str, Any], found: Any, task: ChildTask) -> dict[str, Any]:
        if "args" in order:
            values = found.codec.load_args(order["args"])
            if found.signature.wants_task:
                values["task"] = task
            return _told(self._surrounded(found, order, values), found.codec.result)
        wants = "task" in inspect.signature(found).parameters
        return _told(self._finished(found(order["data"], task=task) if wants else found(order["data"])))

    def _surrounded(self, job: Any, order: dict[str, Any], values: dict[str, Any]) -> Any:
        """Call a job within the framework's middleware."""
        middleware, told = self._middleware, order["task"]
        if not middleware:
            return self._finished(job.function(**values))
        run = Running(job.name, told["queue"], told["id"], told["attempts"] + 1, args=order["args"])
        if job.is_async:
            return self._finished(around_arun(middleware, run, lambda: job.function(**values)))
        return around_run(middleware, run, lambda: job.function(**values))

    def _finished(self, result: Any) -> Any:
        return (
            self._runner.run(self._awaited(result), context=copy_context()) if inspect.iscoroutine(result) else result
        )

    def _begin(self, starts: list[AnyStart]) -> None:
        """Begin the start hooks of a client, once. Raises Error: one of them failed, and so has this task."""
        if not starts or id(starts) in self._begun:
            return
        begun, in_loop = self._context.run(Begun, starts), BegunInLoop(starts)
        try:
            self._runner.run(in_loop.begin(), context=self._context)
        except BaseException:  # the next task begins them again
            self._end(begun, in_loop)
            raise
        self._begun[id(starts)] = begun, in_loop

    def end(self) -> None:
        """End the start hooks."""
        for begun, in_loop in reversed(self._begun.values()):
            self._end(begun, in_loop)
        self._runner.close()

    def _end(self, begun: Begun, in_loop: BegunInLoop) -> None:
        for error in [*self._runner.run(in_loop.end()), *begun.end()]:
            log.error("%s", error)

    async def _awaited(self, handler: Coroutine[Any, Any, Any]) -> Any:
        me = asyncio.current_task()
        assert me is not None
        self._soft = False  # of a handler that returned before its loop could cancel it
        self._coroutine = asyncio.get_running_loop(), me
        try:
            return await steered(handler, self._was_soft)
        finally:
            self._coroutine = None

    def _was_soft(self) -> bool:
        soft, self._soft = self._soft, False
        return soft


class _ToWorker(logging.Handler):
    def __init__(self, frames: Frames) -> None:
        super().__init__()
        self._frames = frames

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            self._frames.send({"log": tell_log(record)})


def _log_to(frames: Frames, levels: dict[str, int]) -> None:
    """Log records are sent to the worker, and to its handlers. A basicConfig() of the handler's module does nothing
    then."""
    logging.getLogger().addHandler(_ToWorker(frames))
    hear_levels(levels)


def _resolved(path: str) -> Any:
    """The object at `module:name`. Raises ImportError, AttributeError."""
    module, _, name = path.partition(":")
    return resolved(module, name)


def _told(result: Any, written: Callable[[Any], Any] = lambda value: value) -> dict[str, Any]:
    """The answer with a result. The handler has run, so a result that JSON cannot hold is no error here: the worker
    knows whether it is to be kept."""
    try:
        data.encode(value := written(result), LARGEST)
    except SoftTimeLimit:
        raise
    except Exception as error:
        return {"done": None, "unkept": unkept(error)}
    return {"done": value}


def _read(told: dict[str, Any]) -> dict[str, Any]:
    deadline = told.pop("deadline", None)
    return told | {"deadline": deadline and datetime.fromisoformat(deadline), "state": "taken"}


def _memory() -> int:
    """Bytes of resident memory; on systems without /proc the most that it ever was."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread ends that started it. If it has ended already, end here."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
