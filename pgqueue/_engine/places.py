"""A process's place in the line of one queue (sql/2_base/line.sql). No I/O and no clock of its own.

A process needs a place once a taker has waited for ENTER, unless it hears of every put because no other process waits.
Its listener enters, and enters again with the last place whenever that may be lost: at once after a call, soon after a
put that woke every process, and from time to time. The server keeps a place that is still there.
"""

from __future__ import annotations

from dataclasses import dataclass

ENTER = 0.003  # seconds: a taker that gets its task sooner costs no row
SOON = 1.0  # seconds between looks at the place, when puts wake everyone
CHECK = 10.0  # seconds between looks at the place, else
REFUSED = 0.25  # seconds before the next attempt: the table is locked, or the statement failed

UNDER_WAY = float("inf")


@dataclass(slots=True)
class Place:
    """`hears`: this process hears of every put. `since`: the place, as the server gave it last."""

    hears: bool = False
    since: float | None = None
    at: float = 0.0  # monotonic time at which to enter, if a taker waits
    _entered: float = 0.0
    _entering: bool = False
    _come: bool = False  # another process has entered while this one was entering

    @classmethod
    def armed(cls, hears: bool) -> Place:
        return cls(hears, at=UNDER_WAY if hears else 0.0)

    def moment(self, waits_since: float) -> float:
        """When to enter."""
        return max(self.at, waits_since + ENTER)

    def entering(self) -> None:
        self.at = UNDER_WAY
        self._entering, self._come = True, False

    def entered(self, since: float | None, hears: bool, now: float) -> None:
        if self._come and hears:  # it has entered since the server looked
            self.at = 0.0
        elif self.at == UNDER_WAY:  # else a call has arrived since: enter again
            self.at = UNDER_WAY if hears else now + CHECK
        self._entering = False
        self.hears, self._entered = hears, now
        self.since = self.since if since is None else since

    def refused(self, now: float) -> None:
        self.at = now + REFUSED
        self._entering = False

    def called(self) -> None:
        """The place is probably gone. The call may be forged, so the server is asked."""
        self.at = 0.0

    def come(self) -> None:
        """Another process has entered."""
        if self._entering:
            self._come = True
        elif self.hears:
            self.at = 0.0

    def woken_with_all(self) -> None:
        self.at = min(self.at, self._entered + SOON) if not self.hears else self.at
