"""Connections in front of a pool: lent by the pool, free, and taken without its lock, queue and bookkeeping.

psycopg_pool takes 3 us to lend a connection and to take it back, and gives each call the one that has been idle for the
longest. In front the latest is used first, and its statements are in the caches of the server.

The promises of the pool hold. It counts connections in front as lent, so there are no more than max_size. A connection
is returned to the pool after TURN seconds of use in front, so the pool sees its age; after a drain; when the pool
shrinks, which closes idle connections; when it closes; and when another caller has to wait.

Ctrl-C may interrupt the end of any call of a function, which then returns nothing. So a connection is not popped by a
call, but read from an iterator that pops; and an operator puts it in front. It is in one list or variable at any time.

The caller that has to wait announces it before it looks at the front once more, and then asks the pool. The caller that
returns a connection puts it in front before it looks whether anyone waits. So one of them sees the other: a
connection does not stay in front while a caller waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Generic

from psycopg.pq import TransactionStatus

from .own import C

TURN = 1.0  # seconds
IDLE = TransactionStatus.IDLE.value


class Front(Generic[C]):
    """Thread-safe: lists are, and the counter has a lock."""

    def __init__(self) -> None:
        self._free: list[C] = []
        self._latest: Iterator[C] = iter(self._free.pop, None)
        self._lock = threading.RLock()  # a handler of a signal may put while its thread is in here
        self._waiting = 0
        self._period = object()  # since the last drain
        self._closed = False

    def take(self) -> C | None:
        """The connection that was used last, or None."""
        try:
            for conn in self._latest:
                return conn
        except IndexError:
            pass
        return None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While a caller waits for a connection of the pool. It looks at the front first."""
        with self._lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def begin(self, conn: C) -> C:
        """The connection, which the pool has just lent."""
        conn.keeping, conn.kept_until = self._period, monotonic() + TURN
        return conn

    def keep(self, lent: list[C]) -> None:
        """Keep the one connection in `lent` after its use. Leaves there one for the pool: it, another, or none."""
        (conn,) = lent
        if conn.keeping is not self._period or conn.pgconn.transaction_status != IDLE or conn.kept_until < monotonic():
            return
        free = self._free
        free += lent
        lent.clear()
        if self._waiting or self._closed:
            self.call_in(lent)

    def call_in(self, lent: list[C]) -> None:
        """Put a free connection that the pool is to have into `lent`, if there is one."""
        if (self._waiting or self._closed) and (conn := self.take()) is not None:
            lent += (conn,)

    def drain(self) -> Iterator[C]:
        """The free connections, to hand back; those in use are returned to the pool after it."""
        self._period = object()
        return self.shrink()

    def close(self) -> Iterator[C]:
        """The free connections, to hand back. None is kept from now on."""
        self._closed = True
        return self.shrink()

    def shrink(self) -> Iterator[C]:
        """The free connections, to hand back."""
        while (conn := self.take()) is not None:
            yield conn
