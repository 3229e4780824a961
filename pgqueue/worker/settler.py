"""The settler settles the tasks that were handled: acks, with or without results, in batches; failures one by one. And
it releases the tasks that no handler began.

The settler sends the acks when COUNT tasks are done, or AGE seconds after the first of them, whichever comes first.
When it falls behind, the worker takes no more tasks. So of the tasks that a killed worker had done, usually those of
the last AGE seconds are repeated, and never more than 6 * COUNT tasks and a full buffer. Results stay in memory until
they are sent, so their total size is bounded too.

If the connection breaks during a batch, it is unknown whether the batch was acked. The settler sends it again; a task
that is then not found was acked the first time. A batch that cannot be sent is retried while the worker works: the
server may be restarting, or an administrator may be restoring permissions. Once the worker stops, the settler gives up
after LAST seconds, or when the worker's grace is over, and the tasks are delivered again. A result that the server
refuses fails its own task only.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import psycopg

from .._calls import ack as ack_calls
from .._calls import results as statuses
from .._calls import settle as settle_calls
from .._calls.attempts import Report
from .._calls.call import Call, Fence, Refused
from .._calls.take import Taken
from .._engine import forks
from ..errors import ClosedError, TakeLost, refusal
from ..jobs.retry import Bury, Retry
from .describing import describe
from .failures import Failure, failure
from .tallies import Tallies

if TYPE_CHECKING:
    from .._sync.shell import Shell

T = TypeVar("T")
log = logging.getLogger("pgqueue")

COUNT = 500
SIZE = 1 << 22  # characters of results to send at once; up to four times as many are held
AGE = 0.01
PAUSE = 0.2  # seconds before the next attempt to send
LAST = 10.0  # seconds to go on trying once the worker stops
PARTING = 0.3  # seconds to send what is left when the worker's grace is over
UNACCEPTABLE = ("22", "54")  # classes of SQLSTATEs: data exception, program limit exceeded


class Settler:
    """One thread. Runners append to `done` and `failed`, or call finish(), and then call tell().

    Attributes:
        tallies: runners append the runs that succeeded to `tallies.ran`, before tell().
    """

    def __init__(self, shell: Shell) -> None:
        self.done: deque[tuple[int, int]] = deque()
        self.failed: deque[Failure] = deque()
        self._finished: deque[tuple[Taken, str, float]] = deque()
        self._size = 0  # of its results, in characters
        self._lock = threading.Lock()  # for these two
        self._back: deque[tuple[Taken, float]] = deque()  # tasks to release, and their delays in seconds
        self._cancelled: deque[Failure] = deque()
        self._shell = shell
        self.tallies = Tallies()
        self._given_up = False
        self._some = threading.Event()
        self._full = threading.Event()
        self._stopping = threading.Event()
        self._until = float("inf")  # the end of the grace
        self._closing = False
        forks.register(self)
        self.thread = threading.Thread(target=self._run, name="pgqueue-settler", daemon=True)
        self.thread.start()

    def tell(self) -> None:
        """Something was appended."""
        if not self._some.is_set():
            self._some.set()
        if len(self.done) >= COUNT and not self._full.is_set():
            self._full.set()

    def finish(self, task: Taken, result: str, keep: float) -> None:
        """A task is done, and its result is to be kept for so many seconds."""
        with self._lock:
            self._finished.append((task, result, keep))
            self._size += len(result)
            full = len(self._finished) >= COUNT or self._size >= SIZE
        if full and not self._full.is_set():
            self._full.set()

    def behind(self) -> bool:
        """Whether so many tasks are done and not settled that no more should be started."""
        return len(self.done) + len(self.failed) + len(self._finished) >= 4 * COUNT or self._size >= 4 * SIZE

    def give_back(self, tasks: list[Taken]) -> None:
        """Release tasks that were not started, or not finished when the worker's grace was over."""
        if tasks:
            self._back.extend((task, 0.0) for task in tasks)
            self.tell()

    def cancelled(self, run: Failure) -> None:
        """The handler of a cancelled task has ended, and not returned: the release ends the task as cancelled."""
        self._cancelled.append(run)
        self.tell()

    def put_off(self, task: Taken, delay: float) -> None:
        """Release a task that is not to be started now."""
        self._back.append((task, delay))
        self.tell()

    def stop(self, until: float = float("inf")) -> None:
        """The worker stops: give up LAST seconds after the first attempt to send, or at the monotonic time `until`."""
        self._until = until
        self._stopping.set()

    def close(self) -> None:
        """Settle all remaining tasks, and end. No runner may be at work any more. Does not wait for longer than
        PARTING seconds once the grace is over."""
        self._closing = True
        self._full.set()
        self._some.set()
        while self.thread.is_alive() and time.monotonic() < self._until:
            self.thread.join(min(0.1, max(0.0, self._until - time.monotonic())))
        self.thread.join(PARTING)

    def after_fork(self) -> None:
        """In a child that a handler forked: it has no settler's thread, and the locks may be held by others."""
        self._lock = threading.Lock()
        self._some, self._full = threading.Event(), threading.Event()

    def _run(self) -> None:
        while not self._closing:
            if not self._some.wait(self.tallies.due_in()):
                self.tallies.send(self._count)
                continue
            self._full.wait(AGE)
            self._full.clear()
            self._some.clear()  # before the look at the deques: a later append sets it again
            while self.done or self.failed or self._finished or self._back or self._cancelled:
                self._release()
                for _ in range(len(self._cancelled)):
                    self._end_cancelled(self._cancelled.popleft())
                for _ in range(len(self.failed)):  # no more than these: the acks must not wait for later failures
                    self._fail(self.failed.popleft())
                if batch := [self.done.popleft() for _ in range(min(len(self.done), 2 * COUNT))]:
                    self._ack(batch)
                for keep, finished in self._some_finished().items():
                    self._finish(finished, keep)
                self.tallies.send(self._count)
        if not self._given_up:
            self.tallies.send(self._count, now=True)

    def _release(self) -> None:
        at_once = []
        for _ in range(len(self._back)):
            task, delay = self._back.popleft()
            if delay:
                self._release_later(task, delay)
            else:
                at_once.append((task.id, task.token))
        if at_once:
            call = settle_calls.release_many(at_once, self._fence())
            self._until_sent(lambda: self._shell.run(call, relaxed=True))

    def _release_later(self, task: Taken, delay: float) -> None:
        fence = Fence(task.token, None, self._shell.core.label)
        call = settle_calls.release(task.id, fence, settle_calls.Return(delay, hold_lane=True))
        with contextlib.suppress(TakeLost):
            self._until_sent(lambda: self._shell.run(call, relaxed=True))

    def _end_cancelled(self, run: Failure) -> None:
        self.tallies.failed(run)
        fence = Fence(run.task.token, None, self._shell.core.label)
        how, report = settle_calls.Return(error=run.error), Report(began=run.began, state="cancelled")
        call = settle_calls.release(run.task.id, fence, how, report)
        with contextlib.suppress(TakeLost):
            self._until_sent(lambda: self._shell.run(call, relaxed=True))

    def _ack(self, batch: list[tuple[int, int]]) -> None:
        fence = self._fence()
        self._told(self._until_sent(lambda: self._shell.run(ack_calls.ack_many(batch, fence))), fence)

    def _finish(self, batch: list[tuple[Taken, str]], keep: float) -> None:
        fence = self._fence()
        tokens, results = [(task.id, task.token) for task, _ in batch], [result for _, result in batch]
        call = statuses.finish_many(tokens, results, fence, keep)

        def send() -> list[Refused] | psycopg.Error:
            try:
                return self._shell.run(call)
            except psycopg.Error as error:
                if (error.sqlstate or "")[:2] in UNACCEPTABLE:
                    return error
                raise

        answer = self._until_sent(send)
        if not isinstance(answer, psycopg.Error):
            self._told(answer, fence)
        elif len(batch) == 1:
            self._fail(self._refused(batch[0][0], answer, keep))
        else:
            for one in batch:
                self._finish([one], keep)

    def _some_finished(self) -> dict[float, list[tuple[Taken, str]]]:
        """The next tasks to settle, by the seconds for which their results are kept."""
        batches: dict[float, list[tuple[Taken, str]]] = {}
        n = size = 0
        with self._lock:
            while self._finished and n < 2 * COUNT and size < SIZE:
                task, result, keep = self._finished.popleft()
                batches.setdefault(keep, []).append((task, result))
                n, size = n + 1, size + len(result)
            self._size -= size
        return batches

    def _told(self, refused: list[Refused] | None, fence: Fence) -> None:
        for task in refused or ():
            if task.problem != "not found":  # else it was acked: by the first attempt, or in the handler's transaction
                log.warning("a handled task could not be acked: %s", refusal(*task, fence.me))

    def _refused(self, task: Taken, error: psycopg.Error, keep: float) -> Failure:
        """The server cannot store the task's result: another attempt would have the same one."""
        why = Bury(f"the handler has run, and its result cannot be kept: {describe(error)}")
        return failure(task, why, Retry(), time.monotonic(), keep=keep)

    def _fail(self, failed: Failure) -> None:
        self._log(failed)
        self.tallies.failed(failed)
        call = settling(failed, self._shell.core.label)
        try:
            self._until_sent(lambda: self._shell.run(call, relaxed=failed.delay is not None))
        except TakeLost as lost:
            log.warning("a failed attempt could not be recorded: %s", lost)

    def _log(self, failed: Failure) -> None:
        task, error = failed.task, failed.exception
        what = f"{failed.job}, task {task.id} of {task.queue}," if failed.job else f"task {task.id} of {task.queue}"
        if failed.delay is None:
            log.error("%s is buried after %s attempts: %s", what, task.attempts + 1, failed.error, exc_info=error)
        elif failed.counts:
            log.warning("%s failed, again in %.1f s: %s", what, failed.delay, failed.error, exc_info=error)
        else:
            log.info("%s is put off, again in %.1f s: %s", what, failed.delay, failed.error)

    def _count(self, call: Call[int]) -> int | None:
        return self._shell.run(call, relaxed=True)

    def _fence(self) -> Fence:
        return self._shell.fence()

    def _until_sent(self, send: Callable[[], T]) -> T | None:
        """Send until the answer is known. Returns it; None if the settler gave up."""
        began = time.monotonic()
        while True:
            try:
                return send()
            except TakeLost:
                raise
            except Exception as error:
                now = time.monotonic()
                given_up = self._stopping.is_set() and (now - began >= LAST or now >= self._until)
                if given_up or isinstance(error, ClosedError):
                    self._given_up = True
                    log.error("tasks could not be settled and will be delivered again: %s", error)
                    return None
                log.warning("settling tasks again in %s s: %s", PAUSE, error)
                time.sleep(PAUSE)


def settling(failed: Failure, me: str) -> Call[str]:
    """The call that settles a failed attempt, and records it."""
    task, error, delay = failed.task, failed.error, failed.delay
    fence = Fence(task.token, None, me)
    report = Report(failed.traceback, failed.began, None, failed.state, failed.counts)
    if failed.keep is not None and failed.counts and (delay is None or failed.hold_lane):  # fail() holds lanes
        return statuses.fail(task.id, fence, error, failed.keep, delay, report)
    if delay is None:
        return settle_calls.bury(task.id, fence, error, report=report)
    how = settle_calls.Return(delay, error=error, hold_lane=failed.hold_lane)
    return settle_calls.release(task.id, fence, how, report)
