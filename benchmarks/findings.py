"""What a measure finds: rows of the table, and curves. They can be kept as JSON and read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Row:
    """One line of the table. `met` is None for a line without a target, which is for comparison."""

    measure: str
    measured: str
    reference: str = "-"
    ratio: float | None = None
    target: str = "-"
    met: bool | None = None


@dataclass(frozen=True)
class Lines:
    """A plot of one or more curves."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    logarithmic: bool = False  # the x axis


@dataclass
class Findings:
    rows: list[Row] = field(default_factory=list)
    plots: list[Lines] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        return cls([Row(**row) for row in kept["rows"]], [Lines(**plot) for plot in kept["plots"]])


def at_least(measure: str, measured: str, reference: str, ratio: float, least: float) -> Row:
    """A row whose ratio has to reach `least`."""
    return Row(measure, measured, reference, ratio, f">= {least:.2f}", ratio >= least)


def at_most(measure: str, measured: str, reference: str, ratio: float, most: float) -> Row:
    """A row whose ratio must not exceed `most`."""
    return Row(measure, measured, reference, ratio, f"<= {most:.2f}", ratio <= most)


def within(measure: str, seconds: float, limit: float, reference: str = "-") -> Row:
    """A row of a time that must not exceed `limit`, in seconds too."""
    return Row(measure, milliseconds(seconds), reference, None, f"<= {milliseconds(limit)}", seconds <= limit)


def rate(per_second: float) -> str:
    return f"{per_second:,.0f}/s"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


def percentile(values: list[float], share: float) -> float:
    """For example the value that 99 % do not exceed, for a share of 0.99."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
