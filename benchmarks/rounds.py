"""Rounds: every contender once a round, in a rotated order, with ratios within a round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Rounds:
    """The figure of each contender in each round."""

    values: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.values[name])

    def ratio(self, name: str, reference: str) -> float:
        """The median over the rounds of name / reference in the same round."""
        pairs = zip(self.values[name], self.values[reference], strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)

    def best(self, *names: str) -> str:
        """The contender with the highest median."""
        return max(names, key=self.median)


def take_turns(rounds: int, contenders: Mapping[str, Callable[[], float]]) -> Rounds:
    """Run each contender once a round. Each returns its figure of that round, mostly a rate."""
    names = list(contenders)
    values: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            values[name].append(contenders[name]())
    return Rounds(values)
