"""Rule 7 of the ledger: what is left at the end, in the tables and of the processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..journal import Life
from .windows import Violation, Windows

#: The state of a task whose delay, or that of a task before it in its lane, ends after the drain.
LATER = "later"


@dataclass
class Tables:
    """The tables after the drain, and what else the arena saw.

    Attributes:
        left: the labels of the tasks that are in their table, with their states.
        counted: for each queue and state what the counters say, and what the table has.
        rows: how many rows are left in tables that must be empty.
        other: violations that a fault itself saw.
    """

    left: dict[str, str] = field(default_factory=dict)
    counted: dict[str, tuple[int, int]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    other: list[Violation] = field(default_factory=list)


def check(lives: Iterable[Life], windows: Windows, tables: Tables) -> Iterator[Violation]:
    now = max((line.at for life in lives for line in life.lines[-1:]), default=0.0)
    for label, state in tables.left.items():
        if state == LATER and windows.any_excuses("delays"):
            continue
        yield Violation(now, "stuck", f"{label} is still {state} at the end")
    for what, (counted, there) in tables.counted.items():
        if counted != there:
            yield Violation(now, "counter", f"{what}: the counters say {counted}, the table has {there}")
    for name, count in tables.rows.items():
        if count:
            yield Violation(now, "stuck", f"{name} has {count} rows at the end")
    yield from tables.other
