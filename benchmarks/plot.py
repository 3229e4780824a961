"""The findings as one picture, a panel for each plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .report import Bars, Lines

COLUMNS = 2
OURS, THEIRS = "#336791", "#b0b7bf"


def save(plots: Sequence[Bars | Lines], path: Path) -> bool:
    """Draw into an SVG file; False, and one line of explanation, without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed (pip install '.[dev]')")
        return False
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "pgqueue"  # the same picture gives the same file
    from matplotlib import pyplot

    rows = math.ceil(len(plots) / COLUMNS)
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=(6.5 * COLUMNS, 3.4 * rows), squeeze=False)
    for axis, plot in zip(axes.flat, plots, strict=False):
        axis.set_title(plot.title, fontsize=10)
        _bars(axis, plot) if isinstance(plot, Bars) else _lines(axis, plot)
    for axis in axes.flat[len(plots) :]:
        axis.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return True


def _bars(axis: Any, plot: Bars) -> None:
    names = list(plot.bars)[::-1]
    figures = [plot.bars[name] for name in names]
    drawn = axis.barh(names, figures, color=[OURS if name.startswith("pgqueue") else THEIRS for name in names])
    axis.bar_label(drawn, labels=[f"{figure:,.0f}" for figure in figures], padding=3, fontsize=8)
    axis.margins(x=0.15)
    axis.set_xlabel(plot.unit, fontsize=8)
    axis.tick_params(labelsize=8)


def _lines(axis: Any, plot: Lines) -> None:
    for name, points in plot.lines.items():
        axis.plot(*zip(*points, strict=True), label=name, linewidth=1.2)
    if plot.logarithmic:
        axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.set_xlabel(plot.x, fontsize=8)
    axis.set_ylabel(plot.y, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
