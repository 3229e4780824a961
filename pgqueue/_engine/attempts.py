"""How a pool's connections are opened: attempts with the pauses of outages.py, and at a limit the rules of scarcity.py.

A pool calls its attempts as it would call a connection class.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Generic

import psycopg

from . import outages, primaries
from .outages import Outage, Pauses
from .own import C, OwnAsyncConn, OwnConn, ready
from .scarcity import Scarcity, limit_of

RETRYING = 0.5  # seconds for which an attempt of the pool tries to connect; the pool makes two of them
BRIEF = 0.1  # seconds for which a claim waits for the first connection of its pool, where that may be refused
RESTING = 2.0  # seconds after a refusal during which claims run in the other pool


class Elsewhere(Exception):
    """The pool for claims can have no connection: the call is for the other pool."""


class Attempts(Generic[C]):
    """A pool as a part of its client (scarcity.py), and the reason of its last failure."""

    is_pool = True

    def __init__(self, relaxed: bool, outage: Outage, scarcity: Scarcity) -> None:
        self.failure: Exception | None = None
        self.needs = 0 if relaxed else 1
        self.give_way: Callable[[], None] = lambda: None
        self._made: list[C] = []  # replaced as a whole, by the one thread that connects
        self._refused_at = float("-inf")
        self._outage, self._pauses, self._scarcity = outage, Pauses(), scarcity
        scarcity.join(self)

    def held(self) -> int:
        return sum(not conn.closed for conn in self._made)

    def has_surplus(self) -> bool:
        """Whether the pool has to close a connection that is not in use."""
        return self._scarcity.has_surplus(self)

    def asking(self, seconds: float) -> float:
        """For how long to wait for a connection of the pool. Raises Elsewhere."""
        if outages.is_hasty():
            seconds = min(seconds, outages.MOVES_ON)
        if self.needs or self.held():
            return seconds
        if self._scarcity.refusal(self) or time.monotonic() < self._refused_at + RESTING:
            raise Elsewhere
        return min(seconds, BRIEF)

    def gives_up(self) -> bool:
        """Whether a call that has waited gives up the server. It waits on while all connections are in use.

        Raises:
            Slow: it goes to another one, and the first connection takes long to open: the server may be there.
        """
        if self.held():
            return False
        if self.failure is not None:
            return outages.gives_up(self.failure)
        if outages.moves_on():
            raise outages.slow()
        return False

    def _begin(self) -> None:
        if words := self._scarcity.refusal(self):
            raise psycopg.OperationalError(words)

    def _failed(self, error: psycopg.Error, end: float) -> float:
        """For how many seconds to pause. Raises the error if it is past `end`, or of no use to try again."""
        self.failure = error
        is_limit = limit_of(error) is not None
        if is_limit:
            self._refused_at = time.monotonic()
        self._outage.met(error)
        self._scarcity.refused(self, error)
        pause = self._pauses.failed()
        if time.monotonic() > end or (is_limit and not self.needs):
            raise error
        return pause

    def _succeeded(self, conn: C) -> C:
        self.failure = None
        still: list[C] = [one for one in self._made if not one.closed]
        still.append(conn)
        self._made = still
        self._scarcity.served(self)
        self._pauses.succeeded()
        self._outage.over()
        return ready(conn)


class BlockingAttempts(Attempts[OwnConn]):
    def connect(self, conninfo: str, **options: Any) -> OwnConn:
        end = time.monotonic() + RETRYING
        while True:
            try:
                self._begin()
                conn = OwnConn.connect(primaries.chosen(conninfo), **options)
                primaries.check(conn, conninfo)
            except psycopg.Error as error:
                time.sleep(self._failed(error, end))
            else:
                return self._succeeded(conn)


class AsyncAttempts(Attempts[OwnAsyncConn]):
    async def connect(self, conninfo: str, **options: Any) -> OwnAsyncConn:
        end = time.monotonic() + RETRYING
        while True:
            try:
                self._begin()
                conn = await OwnAsyncConn.connect(await primaries.chosen_async(conninfo), **options)
                await primaries.check_async(conn, conninfo)
            except psycopg.Error as error:
                await asyncio.sleep(self._failed(error, end))
            else:
                return self._succeeded(conn)
