"""The findings as Markdown: tables, and the page for docs/."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from . import peers_table, prose
from .findings import Findings, Row
from .grid import grid
from .store import Kept, Run, Store

HEADER = ("measure", "pgqueue", "reference", "ratio", "target", "met")


def table(rows: Iterable[Row]) -> str:
    return grid([HEADER, *(_cells(row) for row in rows)])


def rows_of(name: str, kept: Kept) -> list[Row]:
    """A measure's rows; for one that failed, a row that says so."""
    return [Row(name, f"failed: {kept.failed}")] if kept.failed else kept.findings.rows


def page(store: Store, order: Sequence[str], main: Sequence[str], plot: str | None) -> str:
    """The whole page.

    Args:
        store: the findings.
        order: the measures, in the order of the tables.
        main: those that every run has, for the table of targets.
        plot: the picture's file, if there is one.
    """
    parts = [prose.HEAD, "## Targets", prose.TARGETS, _targets(store, main)]
    if plot:
        parts += ["## How cost grows", prose.PLOTS, f"![the curves]({plot})"]
    if store.peers:
        parts += ["## Beside the peers", *peers_table.sections(store.peers)]
    for name, run in store.runs.items():
        parts += [f"## {name}", _conditions(run), table(_in_order(run, order))]
    return "\n\n".join([*parts, prose.NOTES]) + "\n"


def _targets(store: Store, main: Sequence[str]) -> str:
    """One line for each row with a target, and one column for each run."""
    lines: dict[str, dict[str, Row]] = {}
    for name, run in store.runs.items():
        for row in _in_order(run, main):
            if row.met is not None:
                lines.setdefault(row.measure, {})[name] = row
    cells = [("measure", "target", *store.runs)]
    for measure, by_run in lines.items():
        target = next(iter(by_run.values())).target
        cells.append((measure, target, *(_short(by_run.get(name)) for name in store.runs)))
    return grid(cells)


def _short(row: Row | None) -> str:
    """A ratio if there is one, else what was measured; bold if it misses its target."""
    if row is None:
        return "-"
    shown = row.measured if row.ratio is None else f"{row.ratio:.2f}"
    return shown if row.met else f"**{shown}**"


def _in_order(run: Run, order: Sequence[str]) -> Iterator[Row]:
    for name in order:
        if name in run.measures:
            yield from rows_of(name, run.measures[name])


def _conditions(run: Run) -> str:
    settings: dict[str, list[str]] = {}
    for name, kept in run.measures.items():
        settings.setdefault(kept.settings, []).append(name)
    if len(settings) == 1:
        return _listed([*run.conditions, *settings])
    return _listed([*run.conditions, *(f"{text}: {', '.join(names)}" for text, names in settings.items())])


def _listed(conditions: Iterable[str]) -> str:
    return "\n".join(f"- {condition}" for condition in conditions)


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    met = {None: "-", True: "yes", False: "**no**"}[row.met]
    return row.measure, row.measured, row.reference, ratio, row.target, met


def quiet(store: Store) -> dict[str, Findings]:
    """The findings of each run on a quiet machine, for the plots."""
    return {
        name: Findings(plots=[plot for kept in run.measures.values() for plot in kept.findings.plots])
        for name, run in store.runs.items()
        if not run.load
    }
