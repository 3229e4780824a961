"""A whole screen that is drawn again and again, by Rich. This module is imported when the first one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.text import Text

from .bars import on
from .console import Console


class Screen:
    """The terminal's second screen during a block; after it the first one is as before."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(
            console=on(console), screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def draw(self, lines: Sequence[str]) -> None:
        """Draw the lines that fit; if there are more, the last line says how many."""
        self._live.update(Text.from_ansi("\n".join(fitting(lines, self._console.height))), refresh=True)


def fitting(lines: Sequence[str], rows: int) -> list[str]:
    """The lines that fit into this number of rows."""
    if len(lines) <= rows:
        return list(lines)
    return [*lines[: rows - 1], f"and {len(lines) - rows + 1} more"]
