"""Rule 8 of the ledger: after a fault everyone works again within a bound."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator

from ..journal import Life
from .windows import Violation, Window, Windows


def check(lives: Iterable[Life], windows: Windows, bound: float) -> Iterator[Violation]:
    """Sets `back` of each window: the time from its end to the first step of the slowest process that it hit."""
    steps: dict[str, list[float]] = defaultdict(list)
    for life in lives:
        steps[life.name] += life.steps()
    for times in steps.values():
        times.sort()
    for window in windows.all:
        yield from _everyone(window, steps, bound)


def _everyone(window: Window, steps: dict[str, list[float]], bound: float) -> Iterator[Violation]:
    after = {name: _first(steps[name], window.ended) for name in steps if window.hits(name)}
    missing = sorted(name for name, time in after.items() if time is None)
    times = {name: time for name, time in after.items() if time is not None}
    window.back = max(times.values(), default=0.0) if not missing else None
    late = missing or sorted(name for name, time in times.items() if time > bound)
    if late:
        what = "did not complete a step any more" if missing else f"came back after more than {bound:g} s"
        yield Violation(window.ended, "not back", f"{', '.join(late)} {what} after {window.fault}")


def _first(times: list[float], after: float) -> float | None:
    """Seconds to the first time after a moment."""
    place = bisect_right(times, after)
    return times[place] - after if place < len(times) else None
