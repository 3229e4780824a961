"""The findings of a measure, and their Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One line of the table. `met` is None for a line without a target, which is for comparison."""

    measure: str
    measured: str
    reference: str
    ratio: float | None = None
    target: str = "-"
    met: bool | None = None


@dataclass(frozen=True)
class Bars:
    """A plot of named figures."""

    title: str
    unit: str
    bars: dict[str, float]


@dataclass(frozen=True)
class Lines:
    """A plot of one or more curves."""

    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]
    logarithmic: bool = False


@dataclass
class Findings:
    rows: list[Row] = field(default_factory=list)
    plots: list[Bars | Lines] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        self.rows += other.rows
        self.plots += other.plots


HEADER = ("measure", "pgqueue", "reference", "ratio", "target", "met")


def rate(per_second: float) -> str:
    return f"{per_second:,.0f}/s"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table with aligned columns, so that it is readable as plain text."""
    cells = [HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def page(rows: Iterable[Row], conditions: Iterable[str], plot: str | None) -> str:
    """The whole page, for docs/."""
    parts = [
        "# Benchmarks",
        "How fast pgqueue is beside plain SQL on the same server, and where it misses its targets. `python -m "
        "benchmarks` measures it and writes this page. For example, a ratio of 0.5 between two rates means that "
        "pgqueue does half as much in a second as the reference; between two times, that it needs half as long.",
        "Each line compares within one run on one server: the contenders take turns, and a ratio is the median of the "
        "ratios within a round. Other figures are medians, unless the line says otherwise. Trust the ratios; the "
        "absolute figures depend on the machine as much.",
        "Conditions:",
        "\n".join(f"- {condition}" for condition in conditions),
        table(rows),
        "The *conventional design* is one table with a state column: `UPDATE ... SKIP LOCKED` to take, `DELETE` to "
        "ack, with no recovery, fence, deadline or wake-up (`benchmarks/conventional.py`).",
    ]
    if plot:
        parts.append(f"![the figures as plots]({plot})")
    return "\n\n".join(parts) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    met = {None: "-", True: "yes", False: "**no**"}[row.met]
    return row.measure, row.measured, row.reference, ratio, row.target, met
