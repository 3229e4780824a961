"""Statements of the listener, and how it handles their failure.

A statement that fails while the connection lives (a lock, a full disk, a broken row, a bug) is that statement's failure
only. The connection also holds the session, the locks and the subscriptions of the client, so it is not closed: the
statement is tried again after a pause of its own, and the rest of the work goes on. Only a dead connection is a lost
one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from .._calls.call import Call
from .._values.logs import log
from .outages import Pauses

T = TypeVar("T")
Conn = psycopg.Connection[Any]

LOCKED = ("55P03", "PQ007")  # lock_not_available, and pgqueue's own for advisory locks

PAUSE = (0.25, 30.0)  # before a statement that failed is tried again: first and longest, seconds


def do(conn: Conn, call: Call[T]) -> T:
    """Run a call. Its commit is a part of the statement, since the connection is in autocommit."""
    return call.read(conn.execute(call.sql, call.args).fetchall())


def lives(conn: Conn) -> bool:
    """Whether the connection can run the next statement. One that broke in the midst of a statement cannot."""
    return not conn.closed and conn.pgconn.transaction_status == TransactionStatus.IDLE


class Retry:
    """The pauses of one statement that fails, and its log: each kind of error once, and the recovery."""

    def __init__(self, what: str) -> None:
        self.at = 0.0  # the monotonic time of the next attempt
        self._what = what
        self._pauses = Pauses(*PAUSE)
        self._kind: type[Exception] | None = None  # of the last error
        self._since = 0.0

    def attempt(self, conn: Conn, work: Callable[[], object]) -> bool:
        """Do the work if its pause is over. Returns whether it succeeded. Raises if the connection is lost."""
        if time.monotonic() < self.at:
            return False
        try:
            work()
        except Exception as error:
            if not lives(conn):
                raise
            self._failed(error)
            return False
        self._succeeded()
        return True

    def failing_for(self) -> float:
        """For how many seconds it has failed; 0.0 if the last attempt succeeded."""
        return time.monotonic() - self._since if self._kind else 0.0

    def _failed(self, error: Exception) -> None:
        now = time.monotonic()
        if not self._kind:
            self._since = now
        if self._kind is not type(error):  # not by its text, which may name another file or row each time
            log.warning(
                "%s failed, and is tried again: %s",
                self._what,
                str(error).strip(),
                exc_info=not isinstance(error, psycopg.Error),
            )
        self._kind = type(error)
        # A lock is released in time, and asking for it costs little.
        self.at = now + self._pauses.failed(grows=getattr(error, "sqlstate", None) not in LOCKED)

    def _succeeded(self) -> None:
        if self._kind:
            log.info("%s works again, after %.1f s", self._what, self.failing_for())
        self._kind = None
        self._pauses.succeeded()
