"""Rule 5 of the ledger: locks and leaderships have one holder at a time, and fences rise.

A leadership is a lock here: `locked` when the election calls gained(), `unlocking` when it calls lost() after a
resignation, `lost` when it calls lost() for any other reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..journal import Life
from .windows import Violation, Windows


@dataclass
class Hold:
    """A lock, held by one process. `outcome`: `unlocked`, `lost`, or None if the process ended before."""

    name: str
    by: Life
    locking: float
    locked: float
    fence: int
    unlocking: float | None = None
    ended: float = float("inf")
    outcome: str | None = None

    @property
    def over(self) -> float:
        """From when on the process does not hold it, by its own account."""
        return min(self.ended, self.by.ended, self.unlocking if self.unlocking is not None else float("inf"))


def read(lives: Iterable[Life]) -> dict[str, list[Hold]]:
    """The holds of each lock, in the order in which they were granted."""
    holds: dict[str, list[Hold]] = defaultdict(list)
    for life in lives:
        locking, held = life.began, dict[str, Hold]()
        for line in life.lines:
            if line.event == "locking":
                locking = line.at
            elif line.event == "locked":
                name, fence = line.fields
                held[name] = Hold(name, life, locking, line.at, int(fence))
                holds[name].append(held[name])
            elif line.event in ("unlocking", "unlocked", "lost") and line.fields[0] in held:
                hold = held[line.fields[0]]
                if line.event == "unlocking":
                    hold.unlocking = line.at
                elif hold.outcome is None:
                    hold.outcome, hold.ended = line.event, line.at
    for of_name in holds.values():
        of_name.sort(key=lambda hold: hold.locked)
    return holds


def check(lives: Iterable[Life], windows: Windows) -> Iterator[Violation]:
    for holds in read(lives).values():
        yield from _one_holder(holds, windows)
        yield from _kept(holds, windows)
        yield from _fences(holds, windows)


def _one_holder(holds: list[Hold], windows: Windows) -> Iterator[Violation]:
    holder: Hold | None = None
    for hold in holds:
        if holder is not None and hold.locked < holder.over:
            certain = holder.outcome == "unlocked" and hold.outcome == "unlocked"
            if certain or not (
                windows.excuse("locks", holder.by.name, holder.locked, hold.locked)
                or windows.excuse("locks", hold.by.name, hold.locked - 30, hold.locked)
            ):
                text = f"{hold.name} was granted to {hold.by} while {holder.by} held it"
                yield Violation(hold.locked, "two holders", text)
        if holder is None or hold.over > holder.over:
            holder = hold


def _kept(holds: list[Hold], windows: Windows) -> Iterator[Violation]:
    for hold in holds:
        if hold.outcome == "lost" and not windows.excuse("locks", hold.by.name, hold.locked, hold.ended):
            yield Violation(
                hold.ended, "lock lost", f"{hold.by} lost {hold.name}, {hold.ended - hold.locked:.3f} s old"
            )


def _fences(holds: list[Hold], windows: Windows) -> Iterator[Violation]:
    """A hold's fence is above that of each hold that was granted before its request; and of each one that was released
    before its grant, if both were held to their release."""
    past: list[Hold] = []
    for hold in holds:
        for before in past[-8:]:
            in_turn = "unlocked" == before.outcome == hold.outcome and before.ended < hold.locked
            if hold.fence <= before.fence and (before.locked < hold.locking or in_turn):
                if not windows.excuse("commits", hold.by.name, before.locked, hold.locked):
                    text = f"{hold.name}: {hold.by} got {hold.fence} after {before.by} had got {before.fence}"
                    yield Violation(hold.locked, "fence", text)
                break
        past.append(hold)
