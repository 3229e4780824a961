"""Rule 4 of the ledger: tasks of a lane are handled in the order of their puts, one after another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from .tasks import Deeds, Put, Run
from .windows import Violation, Windows


def check(deeds: Deeds, windows: Windows) -> Iterator[Violation]:
    """Neighbours are compared: if each task waits for the one before it, it waits for all before it."""
    lanes: dict[str, list[Put]] = defaultdict(list)
    for put in deeds.puts.values():
        if put.lane is not None and put.returned is not None:
            lanes[put.lane].append(put)
    for puts in lanes.values():
        puts.sort(key=lambda put: put.began)
        for first, second in pairwise(puts):
            assert first.returned is not None
            if first.returned < second.began:
                yield from _in_order(first, second, deeds, windows)


def _in_order(first: Put, second: Put, deeds: Deeds, windows: Windows) -> Iterator[Violation]:
    firsts, seconds = deeds.runs.get(first.label, []), deeds.runs.get(second.label, [])
    done = min((run.settling for run in firsts if run.may_be_done and run.settling is not None), default=float("inf"))
    early = next((run for run in seconds if run.took < done), None)
    late = next((run for run in firsts if seconds and run.taking > seconds[0].took), None)
    wrong: Run | None = early or late
    if wrong is None or windows.excuse("commits", first.by.name, first.began, wrong.took):
        return
    if early is not None:
        text = f"lane {first.lane}: {second.label} was taken by {early.by} before {first.label} was done"
    else:
        text = f"lane {first.lane}: {first.label} was taken by {wrong.by} after {second.label}"
    yield Violation(wrong.took, "lane out of order", text)
