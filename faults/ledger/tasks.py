"""Puts and runs: read from the journals, and checked by rules 1 to 3 of the ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..journal import Life, Line
from .windows import Violation, Windows


@dataclass
class Put:
    """A put of one task; `returned` is None if it was not acknowledged."""

    label: str
    by: Life
    lane: str | None
    began: float
    returned: float | None = None


@dataclass
class Run:
    """One process's hold on a task; see the ledger's theory.

    Attributes:
        settling: when its ack, or the end of its handler, began.
        outcome: `acked`, `handled` (the worker acks it later), `unsure` (the answer did not come), `refused`, `failed`,
            or None if the process ended before.
        ended: when the outcome was known; the process's end without one.
    """

    label: str
    by: Life
    taking: float
    took: float
    settling: float | None = None
    outcome: str | None = None
    ended: float = field(default=float("inf"))

    @property
    def over(self) -> float:
        """From when on the process does not hold the task, by its own account."""
        return min(self.ended, self.by.ended, self.settling if self.settling is not None else float("inf"))

    @property
    def may_be_done(self) -> bool:
        """Whether an ack of this run may have taken effect."""
        return self.settling is not None and self.outcome in ("acked", "handled", "unsure", None)


@dataclass
class Deeds:
    """All puts and runs, by label."""

    puts: dict[str, Put] = field(default_factory=dict)
    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))

    def repeated(self) -> int:
        """How many runs there were beyond one for each task: legal ones, after deaths and lost answers."""
        return sum(len(runs) - 1 for runs in self.runs.values())


def read(lives: Iterable[Life]) -> Deeds:
    """The puts and the runs of all journals. The runs of a task are in the order of their `took`."""
    deeds = Deeds()
    for life in lives:
        _read(life, deeds)
    for runs in deeds.runs.values():
        runs.sort(key=lambda run: run.took)
    return deeds


def _read(life: Life, deeds: Deeds) -> None:
    taking = life.began
    open_runs: dict[str, Run] = {}
    for line in life.lines:
        if line.event == "taking":
            taking = line.at
        elif line.event == "putting":
            _, lane, label = line.fields
            deeds.puts[label] = Put(label, life, None if lane == "-" else lane, line.at)
        elif line.event == "put":
            deeds.puts[line.fields[0]].returned = line.at
        elif line.event == "took":
            run = Run(line.fields[0], life, taking, line.at)
            open_runs[run.label] = run
            deeds.runs[run.label].append(run)
        elif line.fields and (held := open_runs.get(line.fields[0])) is not None:
            _settle(held, line)


def _settle(run: Run, line: Line) -> None:
    """After an unsure ack a refusal, or a failed handler, says nothing: the ack may have taken effect."""
    if line.event in ("acking", "handled") and run.settling is None:
        run.settling = line.at
    if line.event == "failed" and run.outcome in ("refused", "unsure"):
        return
    if line.event in ("acked", "handled", "unsure", "refused", "failed"):
        run.outcome = "unsure" if line.event == "refused" and run.outcome == "unsure" else line.event
        run.ended = line.at


def check(deeds: Deeds, windows: Windows, left: Mapping[str, str]) -> Iterator[Violation]:
    """`left`: the labels of the tasks that are still in their table, with their states."""
    for put in deeds.puts.values():
        yield from _lost(put, deeds.runs.get(put.label, []), windows, left)
    for runs in deeds.runs.values():
        again = list(_ran_again(runs, windows))
        yield from again or _two_holders(runs, windows)
        yield from _taken_away(runs, windows)


def _lost(put: Put, runs: list[Run], windows: Windows, left: Mapping[str, str]) -> Iterator[Violation]:
    if put.returned is None or put.label in left or any(run.may_be_done for run in runs):
        return
    if not windows.excuse("commits", put.by.name, put.began, put.returned):
        ends = ", ".join(f"{run.by}: {run.outcome}" for run in runs) or "no process took it"
        yield Violation(put.returned, "lost", f"{put.label} was put and is gone ({ends})")


def _ran_again(runs: list[Run], windows: Windows) -> Iterator[Violation]:
    acked = next((run for run in runs if run.outcome == "acked"), None)
    if acked is None or acked.settling is None:
        return
    for run in runs:
        if run is acked or not (run.outcome == "acked" or run.taking > acked.took):
            continue
        if windows.excuse("commits", acked.by.name, acked.settling, acked.ended):
            continue
        if run.outcome == "acked":
            text = f"{run.label} was acked by {acked.by} and again by {run.by}"
        else:
            text = (
                f"{run.label} was acked by {acked.by} and was taken by {run.by} {run.took - acked.ended:+.3f} s later"
            )
        yield Violation(run.took, "ran again", text)


def _two_holders(runs: list[Run], windows: Windows) -> Iterator[Violation]:
    """Each run is compared with the one among those before it that lasts longest."""
    holder: Run | None = None
    for run in runs:
        if holder is not None and run.took < holder.over:
            excused = windows.excuse("takes", holder.by.name, holder.took, run.took) or (
                # The second one claimed first, lost it, and got its answer late.
                windows.excuse("takes", run.by.name, run.took - 30, run.took)
            )
            if not excused:
                text = (
                    f"{run.label} was taken by {run.by} while {holder.by} held it, for {run.took - holder.took:.3f} s"
                )
                yield Violation(run.took, "two holders", text)
        if holder is None or run.over > holder.over:
            holder = run


def _taken_away(runs: list[Run], windows: Windows) -> Iterator[Violation]:
    for run in runs:
        if run.outcome == "refused" and not windows.excuse("takes", run.by.name, run.took, run.ended):
            text = f"{run.label}: the ack of {run.by} was refused, {run.ended - run.took:.3f} s after its take"
            yield Violation(run.ended, "taken away", text)
