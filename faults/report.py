"""The results as a table in Markdown, with what was violated and what was left out."""

from __future__ import annotations

import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Iterable

import psycopg

from .ledger import Proof, Violation, Window

COLUMNS = ("fault", "times", "tasks handled", "violations", "back median", "back worst")
SHOWN = 20  # violations of each fault to print
AROUND = 1.0  # seconds of the journals to print, before a violation and after it


def of(violation: Violation, windows: list[Window]) -> str:
    """The fault that a violation belongs to: the last one that began before it."""
    began = [window for window in windows if window.began <= violation.at]
    return max(began, key=lambda window: window.began).fault if began else "none"


def rows(proof: Proof) -> list[tuple[str, ...]]:
    """A row for each fault, in the order in which they were done."""
    by_fault: dict[str, list[Window]] = defaultdict(list)
    for window in proof.windows:
        by_fault[window.fault].append(window)
    violations = [of(violation, proof.windows) for violation in proof.violations]
    ends = sorted(
        run.ended for runs in proof.deeds.runs.values() for run in runs if run.outcome in ("acked", "handled")
    )
    starts = [(windows[0].began, fault) for fault, windows in by_fault.items()]
    made: list[tuple[str, ...]] = []
    for place, (began, fault) in enumerate(starts):
        until = starts[place + 1][0] if place + 1 < len(starts) else float("inf")
        handled = sum(began <= at < until for at in ends)
        backs = [window.back for window in by_fault[fault]]
        known = [back for back in backs if back is not None]
        made.append(
            (
                fault,
                str(len(backs)),
                str(handled),
                str(violations.count(fault)),
                f"{statistics.median(known):.2f} s" if known else "never",
                f"{max(known):.2f} s" if known and len(known) == len(backs) else "never",
            )
        )
    return made


def table(proofs: Iterable[Proof]) -> str:
    """The table of all arenas. The calm of each arena is named after nothing, so the first one stands for all."""
    seen = set[str]()
    lines = [_line(COLUMNS), _line(["---", *["--:"] * (len(COLUMNS) - 1)])]
    for proof in proofs:
        for row in rows(proof):
            if row[0] != "none" or row[0] not in seen or row[3] != "0":
                lines.append(_line(row))
            seen.add(row[0])
    return "\n".join(lines)


def violations(proofs: Iterable[Proof]) -> list[str]:
    """Each violation in a line, at most SHOWN of a fault."""
    lines = []
    for proof in proofs:
        counts: dict[str, int] = defaultdict(int)
        for violation in proof.violations:
            fault = of(violation, proof.windows)
            counts[fault] += 1
            if counts[fault] <= SHOWN:
                lines.append(f"{fault}: {violation.rule}: {violation.text} (at {violation.at:.3f})")
        lines += [f"{fault}: and {n - SHOWN} more" for fault, n in counts.items() if n > SHOWN]
    return lines


def around(proofs: Iterable[Proof]) -> list[str]:
    """What all processes of an arena journaled around its first violation, by time: a rare one does not come again."""
    lines = []
    for proof in proofs:
        for violation in proof.violations[:1]:
            near = [
                (line.at, str(life), *line[1:])
                for life in proof.lives
                for line in life.lines
                if abs(line.at - violation.at) <= AROUND
            ]
            lines += [f"{at:.6f} {life} {event} {' '.join(fields)}" for at, life, event, fields in sorted(near)]
    return lines


def summary(proofs: list[Proof]) -> list[str]:
    """What was done in all, and what was excused."""
    put = sum(put.returned is not None for proof in proofs for put in proof.deeds.puts.values())
    repeated = sum(proof.deeds.repeated() for proof in proofs)
    lines = [f"{put} tasks were put and acknowledged; {repeated} runs were repeated, after deaths and lost answers."]
    excused: dict[str, int] = defaultdict(int)
    for proof in proofs:
        for what, times in proof.excused.items():
            excused[what] += times
    words = {
        "takes": "takes lost with a broken connection",
        "locks": "locks lost with a broken connection",
        "commits": "acknowledged calls lost by the promotion of an asynchronous standby, or repeated after it",
        "delays": "tasks left that were delayed while the clock was ahead, or that wait for such a task of their lane",
    }
    lines += [f"Allowed, by PostgreSQL's rules: {times} {words[what]}." for what, times in sorted(excused.items())]
    return lines


def conditions(version: str, seconds: float, seed: int, rate: float) -> str:
    return (
        f"PostgreSQL {version}, Python {platform.python_version()}, psycopg {psycopg.__version__}; "
        f"{os.cpu_count()} CPUs for the server and all processes; about {rate:g} puts a second; seed {seed}; "
        f"{seconds:.0f} s in all."
    )


def _line(words: Iterable[str]) -> str:
    return "| " + " | ".join(words) + " |"
