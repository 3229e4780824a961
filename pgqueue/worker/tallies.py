"""The counts of a worker's runs: how they ended, how long tasks waited and how long runs took, by queue and job.

Runners append each success to `ran`, which needs no lock. All else happens in the settler's thread: it adds up the
appended runs, and once a second it sends the sums (sql/6_families/tallies.sql has the other half). It adds up as soon
as there are CHUNK runs: a second's runs at once, 100,000, would keep it from the acks for 80 ms. And it sorts the times
of a chunk, since a search for the bucket of each time in Python takes three times as long.

A call whose answer was lost is sent again with the same number, and the server drops it if it was done. Runs that are
counted in the meantime wait for the next call. A call that is refused is given up: statistics are not worth an error a
second.
"""

from __future__ import annotations

import itertools
import random
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from operator import itemgetter

import psycopg

from .._calls.call import Call
from .._calls.tallies import BOUNDS, MOST, Runs, count_runs
from .._values.logs import log
from ..errors import ClosedError, ConnectionLost, Error
from .failures import Failure

EVERY = 1.0  # seconds between two calls
CHUNK = 1000  # runs to add up at once, at least
LONGEST = 1e9  # seconds: of a task whose time only raw SQL could have written
OTHERS = "(others)"  # the job of all runs of more than MOST jobs
JOB = itemgetter(0, 1)  # of an element of `ran`: the queue and the job


class Tallies:
    """The counts of one settler. Its thread calls everything but `ran.append`.

    Attributes:
        ran: of each run that succeeded the queue, the job ("" for a plain handler), and for how many seconds the task
            waited and the run took.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.ran: deque[tuple[str, str, float, float]] = deque()
        self._clock = clock
        self._writer = random.getrandbits(63)
        self._numbers = itertools.count(1)
        self._counts: dict[tuple[str, str], Runs] = {}
        self._unsent: Call[int] | None = None
        self._at = clock()  # the time of the next call
        self._failing = False

    def failed(self, failure: Failure) -> None:
        """A run did not succeed."""
        task = failure.task
        runs = self._add(task.queue, failure.job or "", [task.waited + failure.begun - task.arrived], [failure.ran])
        if failure.state == "cancelled":
            runs["cancelled"] += 1
        else:
            runs["failed" if failure.delay is None else "retried"] += 1
        runs["timeouts"] += failure.state == "timeout"

    def due_in(self) -> float | None:
        """In how many seconds send() has something to do; None: not before the next run."""
        if self._unsent or self._counts or self.ran:
            return max(0.0, self._at - self._clock())
        return None

    def send(self, run: Callable[[Call[int]], int | None], *, now: bool = False) -> None:
        """Send the counts, if a second has passed since the last time; `now`: in any case. Does not raise."""
        if not now and self._clock() < self._at:
            if len(self.ran) >= CHUNK:
                self._add_up()
            return
        self._at = self._clock() + EVERY
        self._add_up()
        if self._unsent is None and self._counts:
            self._unsent = count_runs(self._writer, next(self._numbers), list(self._counts.values())[:MOST])
            self._counts.clear()
        if self._unsent is not None:
            self._try(self._unsent, run)

    def _try(self, call: Call[int], run: Callable[[Call[int]], int | None]) -> None:
        try:
            if run(call) is None:
                return  # the table is locked
        except (ConnectionLost, ClosedError, psycopg.OperationalError) as error:
            self._tell(error)
            return
        except (Error, psycopg.Error) as error:
            self._tell(error)
        else:
            self._failing = False
        self._unsent = None

    def _tell(self, error: Exception) -> None:
        if not self._failing:
            log.warning("statistics of jobs could not be written: %s", error)
        self._failing = True

    def _add_up(self) -> None:
        ran = [self.ran.popleft() for _ in range(len(self.ran))]
        ran.sort(key=JOB)
        for (queue, job), group in itertools.groupby(ran, JOB):
            _, _, waited, took = zip(*group, strict=True)
            self._add(queue, job, waited, took)["done"] += len(waited)

    def _add(self, queue: str, job: str, waited: Iterable[float], took: Iterable[float]) -> Runs:
        runs = self._counts.get((queue, job)) or self._begun(queue, job)
        runs["waited"] += _fill(runs["waits"], waited)
        runs["ran"] += _fill(runs["runs"], took)
        return runs

    def _begun(self, queue: str, job: str) -> Runs:
        if len(self._counts) >= MOST - 1:
            job = OTHERS
        made = Runs(
            queue=queue, job=job, done=0, failed=0, retried=0, timeouts=0, cancelled=0, waited=0.0, ran=0.0,
            waits=[0] * (len(BOUNDS) + 1), runs=[0] * (len(BOUNDS) + 1),
        )  # fmt: skip
        return self._counts.setdefault((queue, job), made)


def _fill(buckets: list[int], times: Iterable[float]) -> float:
    """Count these times, in seconds, in their buckets. Returns their sum. Times out of range count as its end."""
    ordered = sorted(times)
    negative, longer = bisect_left(ordered, 0.0), bisect_right(ordered, LONGEST)
    ordered[:negative] = [0.0] * negative
    ordered[longer:] = [LONGEST] * (len(ordered) - longer)
    below = 0
    for bucket, bound in enumerate(BOUNDS):
        if below == len(ordered):
            break
        up_to = bisect_right(ordered, bound, below)
        buckets[bucket] += up_to - below
        below = up_to
    buckets[-1] += len(ordered) - below
    return sum(ordered)
