"""`python -m faults.cluster`: a server joins, drains, hands on its tasks and leaves, and others are away, under load.

Three servers of the rig's own are a cluster. Producers put in lanes and without, two workers take from all servers. A
fourth server joins, is drained, its tasks are moved, and it is removed: by the commands of `pgqueue cluster`. Then a
server refuses connections and comes back, after it the home server, and then one does not answer. At the end all
queues become empty, and the ledger judges: nothing was lost, nothing was acked twice, the lanes of each server were in
order. No worker may be idle for more than 1 s while tasks are ready, and no put may take more than 0.5 s while a server
is away; both without the time in which the machine stood still. Only a put in a lane of a server that does not answer
may take 2.5 s: it waits for its server for 2 s. The exit code is 1 if there is a violation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from .. import report
from . import changes, measures
from .changes import Outcome

COLUMNS = ("change", "seconds", "puts", "tasks begun", "idle worker", "slowest put", "in a lane", "violations")


def table(outcome: Outcome) -> str:
    """A row for each change, with the longest of its times."""
    lives, control = outcome.proof.lives, outcome.control
    lines = [_line(COLUMNS), _line(["---", *["--:"] * (len(COLUMNS) - 1)])]
    puts = list(measures.puts(lives))
    idle = list(measures.idle(lives, outcome.absent, outcome.until))
    begun = [line.at for life in lives for line in life.lines if line.event == "took"]
    blamed = [report.of(violation, outcome.proof.windows) for violation in outcome.proof.violations]
    for window in outcome.proof.windows:

        def within(at: float, began: float = window.began, ended: float = window.ended) -> bool:
            return began <= at < ended

        own = [(lane, span) for _, lane, span in puts if within(span[0])]
        lines.append(
            _line(
                [
                    window.fault,
                    f"{window.ended - window.began:.1f}",
                    str(len(own)),
                    str(sum(map(within, begun))),
                    _longest(control.length(span) for _, span in idle if within(span[0])),
                    _longest(control.length(span) for lane, span in own if not lane),
                    _longest(control.length(span) for lane, span in own if lane),
                    str(blamed.count(window.fault)),
                ]
            )
        )
    return "\n".join(lines)


def _longest(times: Iterable[float]) -> str:
    return f"{max(times, default=0.0):.3f} s"


def _line(words: Iterable[str]) -> str:
    return "| " + " | ".join(words) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.cluster", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--short", action="store_true", help="watch each change for 2 s")
    parser.add_argument("--seconds", type=float, default=10.0, help="for which each change is watched; default: 10")
    parser.add_argument("--rate", type=float, default=60.0, help="puts a second; default: 60")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bindir", type=Path, help="PostgreSQL's programs for the servers")
    parser.add_argument("--keep", type=Path, help="leave the journals and the programs' output in this folder")
    options = parser.parse_args()
    seconds = 2.0 if options.short else options.seconds
    outcome = changes.run(seconds, options.rate, options.seed, options.bindir, options.keep)
    print(table(outcome))
    first, last = outcome.proof.windows[0].began, outcome.until
    still = outcome.control.lost(first, last)
    print("", *report.summary([outcome.proof]), f"The machine stood still for {still:.1f} s of {last - first:.0f} s.")
    for line in report.violations([outcome.proof]):
        print(line)
    return int(bool(outcome.proof.violations))


if __name__ == "__main__":
    sys.exit(main())
