"""Ranges of whole numbers, cut for a cascade: a task for many keys becomes several tasks for fewer keys each."""

from __future__ import annotations

from itertools import pairwise


def split_range(lo: int, hi: int, parts: int) -> list[tuple[int, int]]:
    """Cut the numbers from `lo` to `hi`, both included, into `parts` ranges with sizes that differ by one at most.

    Together they hold every number once, in order; the larger ones come first. `split_range(1, 10, 3)` is
    `[(1, 4), (5, 7), (8, 10)]`. With Task.ack(put=[...]) this is the cascade of docs/guides/push.md.

    Args:
        lo: the first number.
        hi: the last number.
        parts: the number of ranges. If there are fewer numbers, there are fewer ranges, since none is empty.

    Raises:
        ValueError: `lo` is above `hi`, `parts` is below 1, or one of them is not a whole number.
    """
    for name, value in (("lo", lo), ("hi", hi), ("parts", parts)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} must be a whole number, not {value!r}")
    if lo > hi:
        raise ValueError(f"a range from {lo} to {hi} holds nothing: lo must not be above hi")
    if parts < 1:
        raise ValueError(f"parts must be at least 1, not {parts}")
    parts = min(parts, hi - lo + 1)
    size, left_over = divmod(hi - lo + 1, parts)
    cuts = [lo + part * size + min(part, left_over) for part in range(parts + 1)]
    return [(first, after - 1) for first, after in pairwise(cuts)]
