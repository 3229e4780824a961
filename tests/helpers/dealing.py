"""In which order the tests run: those with a time limit of their own begin first, the longest before.

They would run on alone behind the others. Each process of pytest-xdist begins with some of them. It gets a part of the
list, as long as those of the others; one that is done with its part takes over the end of another one's. So in a list
that only begins with the longest, one process has all of these.

The tests of a file are dealt to one process, since they may share what is costly to make.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable

import pytest
from limits import time_limit


@pytest.hookimpl(trylast=True)  # behind what leaves tests out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)))


def dealt(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    files = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if time_limit(item):
            files[item.nodeid.partition("::")[0]].append(item)
    hands = list[list[pytest.Item]]([] for _ in range(processes))
    for file in sorted(files.values(), key=limit_of_all, reverse=True):
        min(hands, key=limit_of_all).extend(file)
    others = [item for item in items if not time_limit(item)]
    order = list[pytest.Item]()
    for number, hand in enumerate(hands):
        size = (len(items) - len(order)) // (processes - number)  # as pytest-xdist divides
        more = max(size - len(hand), 0)
        order += [*sorted(hand, key=time_limit, reverse=True), *others[:more]]
        del others[:more]
    return order + others


def limit_of_all(items: Iterable[pytest.Item]) -> float:
    return sum(map(time_limit, items))
