"""Calls that are repeated until they take effect: a claim is undone, a task is given back, a lock is dropped.

Theory of operation
-------------------
No caller waits for a job, and no job waits for another one. A job is repeated after a lost connection; after an error,
with growing pauses (retries.py), for GIVE_UP seconds. After that the job is dropped, and the log says so. An error of
pgqueue itself is an answer: for example the task that was to be buried is not held any more.

A call may be kept: it describes the session, for example the queues that a worker serves, and is run again on each new
connection, since the session may be a new one. It is one job with a flag, however often the connection is lost: a job
for each loss would pile up while the server is away.

An undo is more than a call. Its claim may still be on its way to the server, so the server refuses the claim for as
long as this connection keeps a lock (sql/5_verbs/take/undo.sql). The undo is therefore repeated on each new connection,
and its token is forgotten after KEEP seconds, or as one of the oldest of more than MOST: a lock table has its limits.
Packets of a lost connection do not live that long, and a claim that was stalled for longer in the server has entered by
then, or its session is dead.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import Any

from .._calls import session as calls
from .._calls.call import Call
from .._values.logs import log
from ..errors import Error
from .retries import Conn, Retry, do

GIVE_UP = 600.0  # seconds for which a job fails on living connections
LOOK_AGAIN = (0.01, 1.0)  # before an undo of a claim under way looks again: first and longest, seconds
KEEP = 600.0  # seconds for which the claim of a token is refused
MOST = 128  # tokens


class Job:
    """One call and its attempts."""

    def __init__(self, call: Call[Any], label: str) -> None:
        self.call = call
        self.done = False
        self.retry = Retry(f"a call of the listener of {label} ({call.sql})")

    def run(self, conn: Conn) -> None:
        try:
            self.answered(do(conn, self.call))
        except Error:
            self.done = True

    def answered(self, answer: Any) -> None:
        self.done = True


class Kept(Job):
    """A call that is run on each connection."""

    dropped = False

    def run(self, conn: Conn) -> None:
        if self.dropped:
            self.done = True
        else:
            super().run(conn)

    def drop(self) -> None:
        """Stop running it, unless it is under way. May be called in any thread."""
        self.dropped = True


class Undo(Job):
    """The undo of the claim of a token."""

    def __init__(self, token: int, label: str) -> None:
        super().__init__(calls.undo_take(token), label)
        self.token = token
        self.until = time.monotonic() + KEEP
        self._pause = LOOK_AGAIN[0]

    def answered(self, answer: Any) -> None:
        self.done = answer is not None
        if not self.done:  # the claim is under way
            self.retry.at = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, LOOK_AGAIN[1])


class Jobs:
    """The jobs of one listener. Any thread adds them; the listener's thread does the rest."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._new: deque[Job] = deque()
        self._waiting: list[Job] = []
        self._kept: list[Kept] = []  # that this connection has run
        self._undone: deque[Undo] = deque()  # their claims are refused
        self._forgetting = Retry(f"forgetting an undo of the listener of {label}")

    def later(self, call: Call[Any]) -> None:
        self._new.append(Job(call, self._label))

    def keep(self, call: Call[Any]) -> Kept:
        self._new.append(kept := Kept(call, self._label))
        return kept

    def undo(self, token: int) -> None:
        self._new.append(Undo(token, self._label))

    @property
    def at(self) -> float:
        """The monotonic time of the next attempt."""
        forget = max(self._undone[0].until, self._forgetting.at) if self._undone else float("inf")
        return min((job.retry.at for job in self._waiting), default=forget)

    def run(self, conn: Conn) -> None:
        """Attempt the jobs that are due. Raises if the connection is lost; the jobs are repeated on the next one."""
        while self._new:
            self._waiting.append(self._new.popleft())
        for job in list(self._waiting):
            job.retry.attempt(conn, partial(job.run, conn))
            if job.done:
                self._waiting.remove(job)
                if isinstance(job, Undo):
                    self._undone.append(job)
                elif isinstance(job, Kept):
                    self._kept.append(job)
            elif job.retry.failing_for() > GIVE_UP:
                self._waiting.remove(job)
                if isinstance(job, Kept):  # the next connection tries it again
                    self._kept.append(job)
                log.error(
                    "a call of the listener of %s is given up (%s): it failed for %.0f s",
                    self._label,
                    job.call.sql,
                    job.retry.failing_for(),
                )
        self._forget(conn)

    def disconnected(self) -> None:
        """The server refuses no claim any more: undo those again that may still arrive. Kept calls are run again."""
        for undo in self._undone:
            if undo.until > time.monotonic():
                undo.done = False
                self._waiting.append(undo)
        self._undone.clear()
        for kept in self._kept:
            kept.done = False
            if not kept.dropped:
                self._waiting.append(kept)
        self._kept.clear()
        for job in self._waiting:
            job.retry.at = 0.0

    def _forget(self, conn: Conn) -> None:
        while self._undone and (len(self._undone) > MOST or self._undone[0].until < time.monotonic()):
            forget = calls.forget_undo(self._undone[0].token)
            if not self._forgetting.attempt(conn, partial(do, conn, forget)):
                return
            self._undone.popleft()
