"""Windows: when a fault was, and what it excuses; and violations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

#: Seconds for which a fault may still show when everyone is back: a session that is gone is swept after its grace.
AFTER = 3.0
#: Seconds before the end of a primary within which a commit may not have reached an asynchronous standby.
BEFORE = 5.0


class Violation(NamedTuple):
    """Something that must not have happened. `at` is a time of the journals' clock."""

    at: float
    rule: str
    text: str


@dataclass
class Window:
    """One fault.

    Attributes:
        fault: its name.
        began, ended: when; what it broke may be mended from `ended` on.
        excuses: what may be lost: some of `takes`, `locks`, `commits`, and `delays`, which may grow.
        victims: the names of the processes that it hit; None for all.
        back: the time from `ended` until each victim had completed a step; None if one never did.
    """

    fault: str
    began: float
    ended: float
    excuses: frozenset[str] = frozenset()
    victims: frozenset[str] | None = None
    back: float | None = None

    @property
    def over(self) -> float:
        """Until when the window excuses."""
        return self.ended + self.back + AFTER if self.back is not None else float("inf")

    def hits(self, name: str) -> bool:
        return self.victims is None or name in self.victims


class Windows:
    """All windows of an arena. `used` counts what was excused."""

    def __init__(self, all: list[Window]) -> None:
        self.all = all
        self.used: Counter[str] = Counter()

    def excuse(self, what: str, name: str, since: float, until: float) -> bool:
        """Whether a fault that excuses `what` hit the process `name` at some time between the two."""
        for window in self.all:
            early = BEFORE if what == "commits" else 0.0
            if what in window.excuses and window.hits(name) and window.began - early <= until and since <= window.over:
                self.used[what] += 1
                return True
        return False

    def any_excuses(self, what: str) -> bool:
        """Whether a fault excuses `what`, whenever it shows."""
        excused = any(what in window.excuses for window in self.all)
        self.used[what] += excused
        return excused
