"""The past of a queue: its average length, its failures in a minute, the time without a take. No I/O; the caller passes
the time, by a clock that may be set back.

Theory of operation of the average
----------------------------------
It must not follow an outage faster than the outage grows, or no threshold would ever be reached. Hence

- the average is exponential, with a half-life much longer than an outage may go unnoticed;
- a length counts as CAP times the average at most, so that the average can at most double in a half-life. A queue that
  grows faster reaches every threshold; a queue that stays at a new length has it as its average after some half-lives;
- an average below a minimum counts as the minimum. Otherwise a queue that is empty most of the time would alarm at its
  first tasks.
"""

from __future__ import annotations

from collections import deque

CAP = 2.0
MINUTE = 60.0  # seconds
STEP = 5.0  # seconds between the counts that are kept of a minute


class Average:
    """A moving average of lengths at any times."""

    def __init__(self, half_life: float, minimum: float, length: float, at: float) -> None:
        self._half_life = half_life
        self._minimum = minimum
        self._value = length
        self._at = at

    @property
    def value(self) -> float:
        """The average, or the minimum if that is more."""
        return max(self._value, self._minimum)

    def add(self, length: float, at: float) -> None:
        old = 0.5 ** (max(0.0, at - self._at) / self._half_life)  # a clock may be set back
        self._value = old * self._value + (1 - old) * min(length, CAP * self.value)
        self._at = at


class Minute:
    """By how much a counter grew in the last minute. A counter that falls has begun again.

    Only a count that differs from the last one is kept, and that at most each STEP seconds: of a queue without failures
    one, of any other about twelve, however often a monitor looks.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[float, int]] = deque()
        self._at: float | None = None

    def add(self, count: int, at: float) -> float:
        """The growth, in a minute: if the last look is longer ago, as much of it as falls into a minute on average."""
        if self._kept and (count < self._kept[-1][1] or at < self._kept[-1][0]):
            self._kept.clear()
        if not self._kept or (count > self._kept[-1][1] and at - self._kept[-1][0] >= STEP):
            self._kept.append((at, count))
        while len(self._kept) > 1 and self._kept[1][0] <= at - MINUTE:
            self._kept.popleft()
        since, self._at = at - (at if self._at is None else self._at), at
        return (count - self._kept[0][1]) * MINUTE / max(MINUTE, since)


class Untaken:
    """For how long nothing takes the ready tasks of a queue."""

    def __init__(self) -> None:
        self._takes: int | None = None
        self._since = 0.0

    def add(self, takes: int, age: float, busy: bool, at: float) -> float:
        """Seconds. `takes`: those that were counted until now. `age`: of the oldest ready task. `busy`: a taker has
        tasks, and takes more after them; or the queue is paused."""
        if busy or takes != self._takes or at < self._since:
            self._takes, self._since = takes, at
        return min(at - self._since, age)
