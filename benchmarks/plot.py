"""The curves as one picture, a panel for each: what a user reads from it is how a cost grows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .findings import Findings, Lines

COLUMNS = 3
#: Readable on white and on black alike, since the picture has no background of its own.
INK = "#7d8590"
COLOURS = ("#3b82c4", "#d9822b", "#3a9d5d", "#b05cc6", "#c94f4f")
STYLES = ("-", "--", ":")
FEW = 10  # points


def save(found: Mapping[str, Findings], path: Path) -> bool:
    """Draw the plots of some runs into an SVG file; False, and one line of explanation, without matplotlib."""
    panels = _panels(found)
    if not panels:
        return False
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed (pip install '.[dev]')")
        return False
    matplotlib.use("svg")
    matplotlib.rcParams.update(dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK))
    matplotlib.rcParams.update({"axes.edgecolor": INK, "grid.color": INK, "legend.labelcolor": INK, "font.size": 8})
    matplotlib.rcParams["svg.hashsalt"] = "pgqueue"  # the same picture gives the same file
    from matplotlib import pyplot

    rows = math.ceil(len(panels) / COLUMNS)
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=(4.4 * COLUMNS, 3.0 * rows), squeeze=False)
    for axis, (title, plots) in zip(axes.flat, panels.items(), strict=False):
        axis.set_title(title, fontsize=9)
        _draw(axis, plots)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, transparent=True, metadata={"Date": None})
    pyplot.close(figure)
    return True


def _panels(found: Mapping[str, Findings]) -> dict[str, dict[str, Lines]]:
    """By title, the plot of each run."""
    panels: dict[str, dict[str, Lines]] = {}
    for run, findings in found.items():
        for plot in findings.plots:
            panels.setdefault(plot.title, {})[run] = plot
    return panels


def _draw(axis: Any, plots: Mapping[str, Lines]) -> None:
    """Colours tell the curves apart, and kinds of line the runs."""
    for style, (run, plot) in zip(STYLES, plots.items(), strict=False):
        for k, (name, points) in enumerate(plot.lines.items()):
            mark = "o" if len(points) < FEW else None
            label = name if plot is next(iter(plots.values())) else None
            colour = COLOURS[k % len(COLOURS)]
            axis.plot(*zip(*points, strict=True), style, color=colour, marker=mark, ms=3, lw=1.2, label=label)
        if len(plots) > 1:
            axis.plot([], [], style, color=INK, lw=1.2, label=run)
    first = next(iter(plots.values()))
    if first.logarithmic:
        _logarithmic(axis, sorted({x for plot in plots.values() for line in plot.lines.values() for x, _ in line}))
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter("{x:,.10g}")
    axis.set_xlabel(first.x)
    axis.set_ylabel(first.y)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=6, framealpha=0)


def _logarithmic(axis: Any, xs: Sequence[float]) -> None:
    """A mark at each x if there are few, else at 1, 2, 5, 10 and so on."""
    from matplotlib.ticker import LogLocator

    axis.set_xscale("log")
    if len(xs) < FEW:
        axis.set_xticks(xs)
    else:
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter("{x:,.10g}")
    axis.minorticks_off()
