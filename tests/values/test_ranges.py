"""split_range: everything once, evenly, in order."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue import split_range

WHOLE = st.integers(-(10**30), 10**30)


def test_a_range_is_covered_once():
    assert split_range(1, 10, 3) == [(1, 4), (5, 7), (8, 10)]


@given(WHOLE, st.integers(0, 10**30), st.integers(1, 50))
def test_whatever_the_range(lo, more, parts):
    ranges = split_range(lo, lo + more, parts)
    assert ranges[0][0] == lo
    assert ranges[-1][1] == lo + more
    assert all(before[1] + 1 == after[0] for before, after in pairwise(ranges))
    sizes = [last - first + 1 for first, last in ranges]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert len(ranges) == min(parts, more + 1)


def test_fewer_parts_when_there_are_fewer_numbers():
    assert split_range(5, 6, 4) == [(5, 5), (6, 6)]
    assert split_range(7, 7, 3) == [(7, 7)]
    assert len(split_range(1, 3, 10**12)) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        (2, 1, 1),
        (1, 10, 0),
        (1, 10, -1),
        (1.0, 10, 2),
        (1, float("nan"), 2),
        (1, 10, True),
        (False, 10, 2),
        ("1", 10, 2),
        (1, None, 2),
    ],
)
def test_invalid_ranges_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must|holds nothing"):
        split_range(*wrong)
