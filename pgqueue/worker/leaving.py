"""The end of a worker's process, also with threads that its handlers have left behind.

Daemon threads do not keep a process alive. But Python waits at its end for other threads that handlers started, and
for those of every ThreadPoolExecutor, also of asyncio.to_thread. So a process that runs nothing but a worker leaves by
force when its time is over: the worker has given back all tasks by then. A program that goes on after its workers is
left alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from .._engine.owners import errand
from .._values.logs import log
from . import Worker

FLUSH = 0.1  # seconds: a thread that hangs may hold the lock of a stream, or of the log
LINGER = 20.0  # seconds after the end of the workers in which the main thread may still end, if it closes a client


@contextlib.contextmanager
def leaving(workers: Sequence[Worker]) -> Iterator[None]:
    """Run the workers within this block, and let the process end after it. It ends by their `leave_by`."""
    end = _End(workers)
    try:
        yield
    except BaseException:
        end.failed.set()
        raise
    finally:
        end.over.set()
        for worker in workers:
            worker.stopping.set()  # also of one that could not begin


class _End:
    """The end of the process by force.

    Its threads begin with the workers: Python 3.12 starts none once the main thread waits for the others.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.failed, self.over = threading.Event(), threading.Event()
        self._workers = workers
        self._by_force = threading.Event()
        self._last_words = errand("pgqueue-last-words", self._say)
        self._last_words.start()
        errand("pgqueue-leaving", self._leave).start()

    def _leave(self) -> None:
        for worker in self._workers:
            worker.stopping.wait()
        times = [worker.leave_by for worker in self._workers]
        if None in times:
            return
        leave_by = max(filter(None, times))
        time.sleep(max(0.0, leave_by - time.monotonic()))
        while self.over.is_set() and not _process_ends():
            if time.monotonic() > leave_by + LINGER:
                return
            time.sleep(FLUSH)
        self._by_force.set()
        self._last_words.join(FLUSH)
        os._exit(self.failed.is_set())

    def _say(self) -> None:
        self._by_force.wait()
        log.warning("the process ends although some of its threads still run")
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()


def _process_ends() -> bool:
    """Whether the main thread has reached its end, where it waits for other threads."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return True
    while frame is not None:
        if frame.f_code.co_name == "_shutdown" and frame.f_code.co_filename == threading.__file__:
            return True
        frame = frame.f_back
    return False
