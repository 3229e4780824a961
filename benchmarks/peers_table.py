"""The section of the page about the peers."""

from __future__ import annotations

import statistics
from typing import Any

from .findings import milliseconds, rate
from .grid import grid

FIGURES = {
    "put": "put one by one",
    "bulk": "put by 1,000",
    "one": "drain, one process",
    "two": "drain, two processes",
    "pick_up": "idle pick-up",
}
ABOUT = """\
The same work for each: data of 100 bytes of JSON, a handler that decodes it and does nothing else. A drain lasts from
the first task that a handler has to the last. Each has the settings that its own documentation recommends for many
short tasks. What a put promises differs, see the second table: a rate without durability does not compare with one that
has it."""


def sections(peers: dict[str, Any]) -> list[str]:
    """Markdown: the figures, what was measured, and what could not be."""
    found, about, tasks = peers["found"], peers["about"], peers["tasks"]
    conditions = "\n".join(f"- {condition}" for condition in peers["conditions"])
    figures = [("", *FIGURES.values())]
    for name, values in found.items():
        figures.append((name, *(_shown(figure, values[figure]) for figure in FIGURES)))
    described = [("", "versions", "settings", "durability", "tasks")]
    for name in found:
        each = about[name]
        described.append((name, each["versions"], each["settings"], each["durability"], f"{tasks[name]:,}"))
    parts = [ABOUT, conditions, grid(figures), grid(described)]
    if peers["failures"]:
        parts.append("Not measured:\n\n" + "\n".join(f"- {name}: {why}" for name, why in peers["failures"].items()))
    return parts


def _shown(figure: str, values: list[float]) -> str:
    median = statistics.median(values)
    return milliseconds(median) if figure == "pick_up" else rate(median)
