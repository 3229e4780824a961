"""`python -m benchmarks`: measure, print the table, and write it with a plot to docs/."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from pgqueue import Error

from . import plot, report
from .bench import Bench
from .measures import MEASURES
from .report import Findings, Row
from .server import CHOICES, serve

DOCS = Path(__file__).parents[1] / "docs"
ROUNDS, QUICK_ROUNDS = 5, 3
PAGE, PLOT = "benchmarks.md", "benchmarks.svg"


def main() -> int:
    """Returns 0 if all measures ran, with any result; 1 if one failed, 2 without a server."""
    options = _options()
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    began = time.monotonic()
    with ExitStack() as stack:
        try:
            server = stack.enter_context(serve(options.pg))
        except (ValueError, Error) as error:
            print(f"python -m benchmarks: {error}", file=sys.stderr)
            return 2
        conditions = [*server.conditions(), f"{rounds} rounds" + (", shortened (--quick)" if options.quick else "")]
        before = server.flush_time()
        findings, failed = _measure(Bench(server, rounds, options.quick), options.only)
        after = server.flush_time()  # if the two differ much, other programs used the disk: measure again
        conditions.append(
            f"a commit's flush to disk: {before * 1e3:.2f} ms at the start, {after * 1e3:.2f} ms at the end"
        )
    print(*conditions, "", report.table(findings.rows), sep="\n")
    print(f"\n{time.monotonic() - began:.0f} s, {failed} of {len(options.only)} measures failed")
    if options.out:
        _write(findings, conditions, options.out)
    return 1 if failed else 0


def _measure(bench: Bench, names: list[str]) -> tuple[Findings, int]:
    findings, failed = Findings(), 0
    for name in names:
        began = time.monotonic()
        try:
            found = MEASURES[name](bench)
        except Exception as error:  # the other measures may still succeed
            failed += 1
            found = Findings([Row(name, f"failed: {type(error).__name__}: {error}", "-")])
        findings.add(found)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return findings, failed


def _write(findings: Findings, conditions: list[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    drawn = bool(findings.plots) and plot.save(findings.plots, folder / PLOT)
    (folder / PAGE).write_text(report.page(findings.rows, conditions, PLOT if drawn else None))
    print(f"written: {folder / PAGE}" + (f", {folder / PLOT}" if drawn else ""))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--pg", default="embedded", metavar="SERVER", help=f"{CHOICES}; default embedded")
    parser.add_argument("--only", metavar="NAME,...", type=_names, help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"default {ROUNDS}, with --quick {QUICK_ROUNDS}")
    parser.add_argument("--quick", action="store_true", help="fewer tasks and rounds: a minute, rough figures")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write; default docs/ for a full run, else nowhere"
    )
    options = parser.parse_args()
    if options.out is None and not (options.only or options.quick):
        options.out = DOCS
    options.only = options.only or list(MEASURES)
    return options


def _names(value: str) -> list[str]:
    names = value.split(",")
    if unknown := set(names) - set(MEASURES):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
