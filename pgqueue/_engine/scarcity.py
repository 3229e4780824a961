"""A client at a limit of connections: of its role, its database, the server, or a pooler.

A client needs two connections: one for its calls, and one for the listener once there is a listener. All others only
make it faster. But a connection is opened when the others of its pool are in use, and idles for minutes. So at a limit
the idle ones of one pool would keep another pool, or the listener, from its first one for good.

A part of the client that has none, and is refused one, lacks it, until it has one or does not ask any more. As long as
a part lacks one, the pools of the client give way:

- They close each connection as soon as it is free. For the listener they keep one of them: with a single connection a
  client puts, and the error of its takes names the remedy.
- They open only the first of a pool, and that in turn: after pools that lacked one before, and, if the pools have one,
  after the listener. Otherwise a busy pool would have the free place again before the part that lacks a connection asks
  for it.

The pool for claims lacks nothing: where it can have no connection its calls run in the pool for puts, each for the
price of a flush (pools.py).

A refusal by a limit is recognised by its English words, since libpq gives no SQLSTATE for a connection that was
refused. With server messages in another language nothing gives way, and the error has the server's words only. The
pools do not give way after every refusal: a password that was changed, or a server that restarts, would empty them.
"""

from __future__ import annotations

import re
import threading
from time import monotonic
from typing import Protocol
from weakref import WeakSet

#: The words of PostgreSQL and PgBouncer, and the error to raise.
LIMITS = {
    "too many connections for role": "the role's CONNECTION LIMIT (ALTER ROLE)",
    "too many connections for database": "the database's CONNECTION LIMIT (ALTER DATABASE)",
    "too many clients already|connection slots are reserved": "the server's max_connections",
    "no more connections allowed|client connections exceeded": "the pooler's limit, for example its max_client_conn",
}
NEED = "A client needs two connections: one for its calls, and one to take, wait or lock"
LAPSE = 1.5  # seconds after a refusal: a part that still lacks a connection has asked again by then


def limit_of(reason: object) -> str | None:
    """The limit that refused a connection; None: the reason is another one."""
    return next((limit for words, limit in LIMITS.items() if re.search(words, str(reason))), None)


def with_remedy(reason: object) -> str:
    """The reason why there is no connection, with the remedy if a limit refused it."""
    said = str(reason).strip()
    limit = limit_of(said)
    if limit is None or NEED in said:
        return said
    return f"{said}. {NEED}. Raise {limit}, or let others have fewer connections"


class Part(Protocol):
    """A part of a client that opens connections."""

    @property
    def needs(self) -> int:
        """How many it cannot do without: 0 or 1."""

    @property
    def is_pool(self) -> bool: ...

    def held(self) -> int:
        """How many it has."""

    def give_way(self) -> None:
        """Close the connections that has_surplus() names. Called in any thread."""


class Scarcity:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a handler of a signal may call in here
        self._pools: WeakSet[Part] = WeakSet()
        self._lacking: dict[Part, tuple[str, float]] = {}  # the server's words, and when they lapse; the first is first

    def join(self, pool: Part) -> None:
        with self._lock:
            self._pools.add(pool)

    def refused(self, part: Part, error: BaseException) -> None:
        """The part was refused a connection. If it has none and a limit is to blame, the pools give way."""
        if part.held() >= part.needs or limit_of(error) is None:
            self.served(part)
            return
        with self._lock:
            self._lacking[part] = (str(error), monotonic() + LAPSE)
            others = self._pools - {part}
        for other in others:
            other.give_way()

    def served(self, part: Part) -> None:
        """The part has a connection, or needs none."""
        if self._lacking:
            with self._lock:
                self._lacking.pop(part, None)

    def refusal(self, pool: Part) -> str | None:
        """Why the pool may open no connection now, in the server's words; None: it may."""
        if not self._lacking:
            return None
        with self._lock:
            return self._refusal(pool)

    def has_surplus(self, pool: Part) -> bool:
        """Whether the pool has a connection that it has to close when it is free."""
        if not self._lacking or not pool.held():
            return False
        with self._lock:
            others = self._waiting()
            others.pop(pool, None)
            return any(other.is_pool for other in others) or (bool(others) and self._pooled() > 1)

    def _refusal(self, pool: Part) -> str | None:
        waiting = self._waiting()
        has_what_it_needs = pool.held() >= pool.needs
        pools_have_one = self._pooled() > 0
        behind = False  # whether the parts after this pool, which lacked one later
        for other, words in waiting.items():
            behind = behind or other is pool
            if other is not pool and (has_what_it_needs or (not behind if other.is_pool else pools_have_one)):
                return words
        return None

    def _waiting(self) -> dict[Part, str]:
        """The parts that lack a connection, the one that lacks it for longest first, with the server's words."""
        now = monotonic()
        self._lacking = {part: refusal for part, refusal in self._lacking.items() if refusal[1] > now}
        return {part: words for part, (words, _) in self._lacking.items()}

    def _pooled(self) -> int:
        return sum(pool.held() for pool in self._pools)
