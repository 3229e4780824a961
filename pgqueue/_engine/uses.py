"""The queues that this client uses while it claims nothing from them, so that they do not expire.

clean_up deletes a queue that was not used for its time `expires` (sql/6_families/expiry.sql). Claims are uses, but a
taker that sleeps makes none, and neither does a consumer that holds as many tasks as it may. So the listener's thread
reports both from time to time, also while the threads of the program are busy.

It does so only where a queue may expire, as the answer to its question of ticks says (sql/7_operations/ticks.sql).
Reporting in any case cost 100 waiting clients 1 % of a core more. A client asks every seven seconds at least, so it
learns of a new queue, and reports, well within the least time after which a queue expires.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Protocol
from weakref import WeakSet

from .._calls.take import next_due
from .hub import Hub
from .retries import Conn, Retry, do

NOTE = 10.0  # seconds; the least time after which a queue expires is three times as long


class User(Protocol):
    @property
    def queues(self) -> Sequence[str]: ...


class Uses:
    """The takers that sleep in a hub, and the users that were added. `at`: when to tell next, as a monotonic time."""

    def __init__(self, hub: Hub, label: str) -> None:
        self.at = 0.0
        self._hub = hub
        self._users: WeakSet[User] = WeakSet()
        self._lock = threading.Lock()
        self._retry = Retry(f"the note of the queues that are used by {label}")

    def add(self, user: User) -> None:
        with self._lock:
            self._users.add(user)

    def remove(self, user: User) -> None:
        with self._lock:
            self._users.discard(user)

    def run(self, conn: Conn, expiring: bool) -> None:
        """Tell the server, if it is time, and a queue may expire."""
        if time.monotonic() >= self.at:
            self.at = time.monotonic() + NOTE
            if expiring and (names := sorted(self._names())):
                self._retry.attempt(conn, lambda: do(conn, next_due(names)))

    def _names(self) -> set[str]:
        with self._lock:
            users: Iterable[User] = list(self._users)
        return self._hub.awaited().union(name for user in users for name in user.queues)
