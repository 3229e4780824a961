"""Numbers and times as people read them."""

from __future__ import annotations

from itertools import pairwise

UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def duration(seconds: float) -> str:
    """A time in its largest unit, or in two of them while the first number is small: `3 min`, `1 h 20 min`, `2 d`."""
    left = max(0, round(seconds))
    if 0 < seconds < 1:
        return "< 1 s"
    for (unit, size), (lesser, small) in pairwise(UNITS):
        if left >= size:
            n, rest = divmod(left, size)
            return f"{n} {unit} {rest // small} {lesser}" if n < 3 and rest >= small else f"{n} {unit}"
    return f"{left} s"


def ago(seconds: float) -> str:
    """How long ago, or how long until a time in the future: `3 min ago`, `in 2 d`."""
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


def figure(number: float) -> str:
    """A number with separators of thousands; with one decimal place if it is less than ten and not whole."""
    return f"{number:,.1f}" if abs(number) < 10 and number != int(number) else f"{number:,.0f}"
