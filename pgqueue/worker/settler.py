"""The settler settles the tasks that were handled, in batches: acks, with or without results, and failures. And it
releases the tasks that no handler began.

The settler sends the acks when COUNT tasks are done, or AGE seconds after the first of them, whichever is earlier. When
it falls behind, the worker takes no more tasks. So of the tasks that a killed worker had done, usually those of the
last AGE seconds are repeated, and never more than 6 * COUNT tasks and a full buffer. Results stay in memory until they
are sent, so their total size is bounded too.

Acks are sent first. A failure costs the server twenty times as much as an ack, so between two looks for acks there is
one batch of failures, of a size that takes about SLICE seconds at the present pace. A queue whose tasks all fail holds
up the acks and results of another one for about as long. And if its failures pile up, the worker takes no more tasks of
that queue, but goes on with the others.

If the connection breaks during a batch, it is unknown whether the batch was settled. The settler sends it again; a task
that is then not found was acked the first time. sending.py handles tasks that the server refuses to settle. A result or
an error that the server cannot store fails its own task only.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from .._calls import ack as ack_calls
from .._calls import results as statuses
from .._calls import settle as settle_calls
from .._calls.call import Call, Refused
from .._calls.take import Taken
from .._engine import forks
from .._engine.owners import Owned
from .._values.logs import log
from ..errors import refusal
from ..jobs.retry import Bury, Retry
from .describing import describe
from .failures import Failure, failure, recorded
from .sending import SLICE, Sender, Verb
from .tallies import Tallies

if TYPE_CHECKING:
    from .._sync.shell import Shell

T = TypeVar("T")

COUNT = 500
SIZE = 1 << 22  # characters of results to send at once; up to four times as many are held
AGE = 0.01
PARTING = 0.3  # seconds to send the rest when the worker's grace is over
UNACCEPTABLE = ("22", "54")  # classes of SQLSTATEs: data exception, program limit exceeded

Done = tuple[int, int, str]  # id, token, queue
Result = tuple[Taken, str]


class Settler:
    """One thread. Runners append to `done`, or call finish() or fail(), and then call tell().

    Attributes:
        done: of each task that is done its id, token and queue.
        tallies: runners append the runs that succeeded to `tallies.ran`, before tell().
    """

    def __init__(self, shell: Shell) -> None:
        self.done: deque[Done] = deque()
        self._failed: deque[Failure] = deque()
        self._failing: Counter[str] = Counter()  # these, by queue
        self._finished: deque[tuple[Taken, str, float]] = deque()
        self._size = 0  # of its results, in characters
        self._lock = threading.Lock()  # for these four
        self._back: deque[Taken] = deque()  # tasks to release
        self._put_off: deque[tuple[Taken, float]] = deque()  # the same, with a delay in seconds
        self._shell = shell
        self._sender = Sender(shell)
        self._portion = 1  # failures to send at once
        self.tallies = Tallies()
        self._some = threading.Event()
        self._full = threading.Event()
        self._until = float("inf")  # the end of the grace
        self._closing = False
        self._acks: Verb[Done] = Verb(self._ack, itemgetter(2), self._lost)
        self._releases = Verb(self._release, attrgetter("queue"), relaxed=True)
        self._delays = Verb(_put_off, _queue_of_first, relaxed=True)
        self._ends = Verb(_fail, _queue_of_task, relaxed=True)  # of cancelled tasks
        self._retries = Verb(_fail, _queue_of_task, self._lost_failure, self._bury, relaxed=True)
        self._burials = Verb(_fail, _queue_of_task, self._lost_failure, self._bury)
        forks.register(self)
        self.thread = Owned("pgqueue-settler", self._run, self._is_over)
        self.thread.start()

    def tell(self) -> None:
        """Something was appended."""
        if not self._some.is_set():
            self._some.set()
        if len(self.done) >= COUNT and not self._full.is_set():
            self._full.set()

    def tallies_of(self, task: Taken) -> Tallies:
        return self.tallies

    def ended_threads(self) -> list[str]:
        """The name of its thread, if that has ended."""
        return [] if self.thread.is_alive() else [self.thread.name]

    def finish(self, task: Taken, result: str, keep: float) -> None:
        """A task is done, and its result is to be kept for this number of seconds."""
        with self._lock:
            self._finished.append((task, result, keep))
            self._size += len(result)
            full = len(self._finished) >= COUNT or self._size >= SIZE
        if full and not self._full.is_set():
            self._full.set()

    def fail(self, failed: Failure) -> None:
        """An attempt has failed, or its task was cancelled."""
        with self._lock:
            self._failed.append(failed)
            self._failing[failed.task.queue] += 1

    def open_queues(self, queues: Sequence[str]) -> Sequence[str]:
        """Those of these queues of which more tasks may be started.

        None, while many tasks are done and not settled. Not a queue with many failed tasks, or tasks that could not be
        settled, which are still to be sent: the other queues do not wait for it.
        """
        if len(self.done) + len(self._finished) >= 4 * COUNT or self._size >= 4 * SIZE:
            return ()
        failing, held = self._failing, self._sender.held
        return [queue for queue in queues if failing[queue] + held[queue] < COUNT]

    def give_back(self, tasks: list[Taken]) -> None:
        """Release tasks that were not started, or not finished when the worker's grace was over."""
        if tasks:
            self._back.extend(tasks)
            self.tell()

    def put_off(self, task: Taken, delay: float) -> None:
        """Release a task that is not to be started for `delay` seconds."""
        self._put_off.append((task, delay))
        self.tell()

    def stop(self, until: float = float("inf")) -> None:
        """The worker stops: give up tasks that cannot be sent in time, or at the monotonic time `until`."""
        self._until = until
        self._sender.stop(until)

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

    # --- the thread

    def _run(self) -> None:
        while not self._is_over():
            if self._some.wait(self._due_in()):
                self._full.wait(AGE)
                self._full.clear()
                self._some.clear()  # before the look at the deques: a later append sets it again
            self._settle()
            while self._is_left():
                self._settle()
        if not self._sender.given_up:
            self.tallies.send(self._count, now=True)

    def _is_left(self) -> bool:
        return bool(self.done or self._finished or self._failed or self._back or self._put_off)

    def _is_over(self) -> bool:
        return self._closing and not self._is_left() and self._sender.due_in() is None

    def _due_in(self) -> float | None:
        due = (self.tallies.due_in(), self._sender.due_in())
        return min((seconds for seconds in due if seconds is not None), default=None)

    def _settle(self) -> None:
        """Send all present acks, results and releases, and a portion of the failures."""
        self._send(self._acks, _cut(self.done, 2 * COUNT))
        for keep, finished in self._some_finished().items():
            verb = Verb(partial(self._finish, keep), _queue_of_first, self._lost, partial(self._refuse, keep))
            self._send(verb, finished)
        self._send(self._releases, _cut(self._back))
        self._send(self._delays, _cut(self._put_off))
        self._some_failures()
        self._sender.send_again()
        self.tallies.send(self._count)

    def _send(self, verb: Verb[T], items: list[T]) -> None:
        if items:
            self._sender.send(verb, items)

    def _some_failures(self) -> None:
        began, failures = time.monotonic(), self._next_failures()
        ends, retries, burials = list[Failure](), list[Failure](), list[Failure]()
        for failed in failures:
            self.tallies.failed(failed)
            if failed.state == "cancelled":
                ends.append(failed)
            else:
                _log(failed)
                (burials if failed.delay is None else retries).append(failed)
        self._send(self._ends, ends)
        self._send(self._retries, retries)
        self._send(self._burials, burials)
        took = time.monotonic() - began
        if took > SLICE:
            self._portion = max(1, self._portion // 2)
        elif took < SLICE / 2 and len(failures) == self._portion:
            self._portion = min(COUNT, self._portion * 2)

    def _next_failures(self) -> list[Failure]:
        with self._lock:
            failures = _cut(self._failed, self._portion)
            self._failing.subtract(failed.task.queue for failed in failures)
        return failures

    def _some_finished(self) -> dict[float, list[Result]]:
        """The next tasks to settle, by the seconds for which their results are kept."""
        batches: dict[float, list[Result]] = {}
        n = size = 0
        with self._lock:
            while self._finished and n < 2 * COUNT and size < SIZE:
                task, result, keep = self._finished.popleft()
                batches.setdefault(keep, []).append((task, result))
                n, size = n + 1, size + len(result)
            self._size -= size
        return batches

    # --- calls, and the server's answers

    def _ack(self, tasks: list[Done]) -> Call[list[Refused]]:
        return ack_calls.ack_many([(id, token) for id, token, _ in tasks], self._shell.fence(), patient=False)

    def _release(self, tasks: list[Taken]) -> Call[list[Refused]]:
        return settle_calls.release_many([(one.id, one.token) for one in tasks], self._shell.fence(), patient=False)

    def _finish(self, keep: float, finished: list[Result]) -> Call[list[Refused]]:
        tokens, results = [(task.id, task.token) for task, _ in finished], [result for _, result in finished]
        return statuses.finish_many(tokens, results, self._shell.fence(), keep)

    def _lost(self, task: Refused) -> None:
        if task.problem != "not found":  # else it was acked: by the first attempt, or in the handler's transaction
            log.warning("a handled task could not be acked: %s", refusal(*task, self._shell.core.label))

    def _lost_failure(self, task: Refused) -> None:
        log.warning("a failed attempt could not be recorded: %s", refusal(*task, self._shell.core.label))

    def _refuse(self, keep: float, finished: Result, error: Exception) -> bool:
        """If the server cannot store a result, fail its task: another attempt would have the same one."""
        if not _is_unacceptable(error):
            return False
        why = Bury(f"the handler has run, and its result cannot be kept: {describe(error)}")
        self.fail(failure(finished[0], why, Retry(), time.monotonic(), keep=keep))
        return True

    def _bury(self, failed: Failure, error: Exception) -> bool:
        """If the server cannot store how an attempt failed, bury its task without that."""
        if not _is_unacceptable(error) or (failed.delay, failed.keep, failed.traceback) == (None, None, None):
            return False
        said = f"{failed.error}; and that could not be recorded as it was: {describe(error)}"
        plain = dataclasses.replace(failed, delay=None, keep=None, traceback=None, error=said)
        self._sender.send(self._burials, [plain])
        return True

    def _count(self, call: Call[int]) -> int | None:
        return self._shell.run(call, relaxed=True)


_queue_of_task = attrgetter("task.queue")


def _queue_of_first(item: tuple[Any, ...]) -> str:
    task: Taken = item[0]
    return task.queue


def _cut(items: deque[T], most: float = float("inf")) -> list[T]:
    """Remove and return the first items, `most` at most. Other threads append at the same time."""
    return [items.popleft() for _ in range(int(min(len(items), most)))]


def _is_unacceptable(error: Exception) -> bool:
    """Whether the server would refuse the same call at any time."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return isinstance(error, ValueError) or (state or "")[:2] in UNACCEPTABLE


def _put_off(tasks: list[tuple[Taken, float]]) -> Call[list[Refused]]:
    return settle_calls.put_off_many([(task.id, task.token, delay) for task, delay in tasks])


def _fail(failures: list[Failure]) -> Call[list[Refused]]:
    return statuses.fail_many([recorded(failed) for failed in failures], patient=False)


def _log(failed: Failure) -> None:
    task, error = failed.task, failed.exception
    what = f"{failed.job}, task {task.id} of {task.queue}," if failed.job else f"task {task.id} of {task.queue}"
    if failed.delay is None:
        log.error("%s is buried after %s attempts: %s", what, task.attempts + 1, failed.error, exc_info=error)
    elif failed.counts:
        log.warning("%s failed, again in %.1f s: %s", what, failed.delay, failed.error, exc_info=error)
    else:
        log.info("%s is put off, again in %.1f s: %s", what, failed.delay, failed.error)
