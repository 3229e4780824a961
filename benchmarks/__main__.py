"""`python -m benchmarks`: measure, keep the findings, and write the page."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from pgqueue import Error

from . import measuring, peers, plot, report
from .bench import Bench
from .load import busy
from .measures import MAIN, MEASURES
from .options import Options, parse
from .server import serve
from .store import Run, Store, name_of

PAGE, PLOT = "benchmarks.md", "benchmarks.svg"


def main() -> int:
    """Returns 0 if all measures ran, with any result; 1 if one failed, 2 without a server."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *about: sys.exit(143))  # so that the server and the children are ended too
    if options.render:
        return _render(options.render, options.out)
    store = Store.read(options.into)
    try:
        if options.peers:
            return peers.measure(options, store)
        return _measure(options, store)
    except (ValueError, Error) as error:
        print(f"python -m benchmarks: {error}", file=sys.stderr)
        return 2


def _measure(options: Options, store: Store) -> int:
    with serve(options.pg) as server, busy(options.load):
        name = name_of(server.version(), options.load)
        run = store.runs.setdefault(name, Run(options.load))
        run.conditions = server.conditions(options.load)
        names = measuring.chosen(run, options)
        failed = measuring.run(Bench(server, options.rounds, options.quick), run, names, lambda: _keep(store, options))
    print(name, *run.conditions, "", sep="\n")
    print(report.table(row for each in names for row in report.rows_of(each, run.measures[each])))
    print(f"\n{failed} of {len(names)} measures failed")
    return 1 if failed else 0


def _keep(store: Store, options: Options) -> None:
    if options.into:
        store.write(options.into)


def _render(path: Path, folder: Path) -> int:
    if not path.exists():
        print(f"python -m benchmarks: there is no {path}", file=sys.stderr)
        return 2
    store = Store.read(path)
    drawn = plot.save(report.quiet(store), folder / PLOT)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(report.page(store, list(MEASURES), MAIN, PLOT if drawn else None), "utf-8")
    print(f"written: {folder / PAGE}" + (f", {folder / PLOT}" if drawn else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
