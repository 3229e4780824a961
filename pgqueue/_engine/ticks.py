"""The listener's periodic work. Clients share it: one does it, and the others see that it was done
(sql/7_operations/ticks.sql)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from .retries import Conn, Retry

REST = 5.0  # times the duration of a tick, all of its works together: of the shorter one of the last two
TURN = 20  # ticks that a client does before it leaves them to another one
KEEN = (0.8, 0.98)  # intervals after its last tick, for the client whose turn it is; the others wait for a whole one

# The random time that the others wait besides, in intervals: the least; for each client; the number of clients from
# which each counts twice; the most. Each question wakes another backend, which costs the server 1.6 ms.
SPREAD = (0.2, 0.1, 20, 24.0)


def within(interval: float) -> float:
    """A random monotonic time of the interval that begins now."""
    return time.monotonic() + random.uniform(0, interval)


class Work:
    """A part of a tick, which fails for itself (retries.py)."""

    def __init__(self, what: str, do: Callable[[], float | None], first: float = 0.0) -> None:
        """`do` returns in how many seconds it has to be done again, None for the interval. Before the monotonic time
        `first` it is not done."""
        self._do = do
        self._first = first
        self._retry = Retry(what)
        self._sooner: float | None = None

    def run(self, conn: Conn) -> float | None:
        """Do the work, unless it pauses after a failure. Returns in how many seconds it has to be done again."""
        if (left := self._first - time.monotonic()) > 0:
            return left
        return self._sooner if self._retry.attempt(conn, self._once) else None

    def _once(self) -> None:
        self._sooner = self._do()


class Tick:
    """Works that are done together, and their time: earlier if one asks for that, later if they took long.

    Args:
        first: the monotonic time of the first one.
    """

    def __init__(self, interval: float, *works: Work, first: float = 0.0) -> None:
        self.at = first
        self._interval = interval
        self._works = works
        self._took = 0.0  # seconds, of the last one
        self._turn = 0  # ticks that are left of it
        self._done = float("-inf")

    def done_before(self, age: float | None, clients: int, asked: float) -> None:
        """Some client did it `age` seconds before the monotonic time `asked`, or a little later; None: it is not
        known."""
        if self._turn and (age is None or age >= asked - self._done):
            return  # no other client has done it since
        if age is not None and age < self._interval:
            self._turn = 0
            self._wait(age, clients)

    def _wait(self, age: float, clients: int) -> None:
        """Until it is due again, and for a random time that grows with the number of clients. So about as many look at
        a time, however many there are; and of those that are left when others stop, one looks soon."""
        least, each, few, most = SPREAD
        spread = self._interval * min(max(least, each * (clients + max(0, clients - few))), most)
        self.at = time.monotonic() + self._interval - age + random.uniform(0, spread)

    def run(self, conn: Conn, clients: int) -> None:
        """Do the work if it is due."""
        began = time.monotonic()
        if began < self.at:
            return
        asked = [again for work in self._works if (again := work.run(conn)) is not None]
        self._done = now = time.monotonic()
        self._turn = (self._turn or TURN) - 1
        if self._turn:
            self.at = now + self._interval * random.uniform(*KEEN)
        else:
            self._wait(0.0, clients)
        if asked:
            self.at = min(self.at, now + min(asked))
        # One that took long is no reason to rest: the machine stalled, or the server compiled the functions of a new
        # connection. A rest after a stall of 2 s would leave dead sessions for 10.
        took, before = now - began, self._took
        self.at = max(self.at, now + REST * min(took, before))
        self._took = took


class Ticks:
    """The ticks of a listener. `ask` returns for each how many seconds ago some client did it; None: not known."""

    def __init__(self, what: str, ask: Callable[[], Sequence[float | None]], *ticks: Tick) -> None:
        self.clients = 2  # how many there are, as far as is known; a client that is alone need not ask
        self._ask = ask
        self._ticks = ticks
        self._retry = Retry(what)

    @property
    def at(self) -> float:
        """When the first one may be due, as a monotonic time."""
        return min(tick.at for tick in self._ticks)

    def run(self, conn: Conn) -> None:
        """Do the works that are due and that no other client has done. A question that fails holds up nothing."""
        if time.monotonic() >= self.at:
            if self.clients > 1:
                self._retry.attempt(conn, self._look)
            for tick in self._ticks:
                tick.run(conn, self.clients)

    def _look(self) -> None:
        asked = time.monotonic()
        for tick, age in zip(self._ticks, self._ask(), strict=True):
            tick.done_before(age, self.clients, asked)
