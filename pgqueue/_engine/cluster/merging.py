"""One answer of the answers of several servers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from ..._calls.history import QueuePeriod
from ..._calls.queue import QueueInfo
from ..._calls.stats import Stats, summed
from ..._calls.tallies import JobStats

T = TypeVar("T")
Row = TypeVar("Row", bound=NamedTuple)


def first(answers: list[T]) -> T:
    """Of a verb that has the same answer everywhere."""
    return answers[0]


def joined(answers: list[list[T]]) -> list[T]:
    """Server by server."""
    return list(itertools.chain.from_iterable(answers))


def stats(answers: list[dict[str, Stats]]) -> dict[str, Stats]:
    """Of each queue the sum."""
    names = sorted(set().union(*answers))
    return {name: summed(one[name] for one in answers if name in one) for name in names}


def states(answers: list[str]) -> str:
    """`running` if all servers are; else the state of the first that is not."""
    return next((state for state in answers if state != "running"), "running")


def queues(answers: list[list[QueueInfo]]) -> list[QueueInfo]:
    """By name, each once, as the first server that has it describes it."""
    found: dict[str, QueueInfo] = {}
    for info in joined(answers):
        found.setdefault(info.name, info)
    return [found[name] for name in sorted(found)]


def history(answers: list[list[QueuePeriod]]) -> list[QueuePeriod]:
    """By queue and time the sums; the sum of most_ready is not below the most at one moment. The age is the highest."""
    return _rows(answers, ("queue", "at"), highest={"oldest_ready_age"})


def job_stats(answers: list[list[JobStats]]) -> list[JobStats]:
    """By queue and job the sums. Percentiles cannot be summed: each is that of the slowest server."""
    return _rows(answers, ("queue", "job"), highest={"wait_p50", "wait_p95", "run_p50", "run_p95"})


def outcomes(answers: list[dict[int, str]]) -> dict[int, str]:
    """Each server has its own ids."""
    return dict(itertools.chain.from_iterable(one.items() for one in answers))


def _rows(answers: Iterable[Iterable[Row]], names: tuple[str, ...], highest: set[str]) -> list[Row]:
    by_key: Callable[[Row], tuple[Hashable, ...]] = attrgetter(*names)
    groups: dict[tuple[Hashable, ...], list[Row]] = {}
    for row in itertools.chain.from_iterable(answers):
        groups.setdefault(by_key(row), []).append(row)
    return [_row(groups[key], {*names}, highest) for key in sorted(groups)]


def _row(rows: list[Row], same: set[str], highest: set[str]) -> Row:
    made: list[Any] = []
    for name, values in zip(rows[0]._fields, zip(*rows, strict=True), strict=True):
        present = [value for value in values if value is not None]
        merge = first if name in same else _highest if name in highest else sum
        made.append(merge(present) if present else None)
    return type(rows[0])(*made)


def _highest(values: list[Any]) -> Any:
    return max(values)
