"""Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence


def grid(cells: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns, so that it is readable as plain text. The first line is the header."""
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)
