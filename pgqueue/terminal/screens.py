"""A whole screen that is drawn repeatedly, by Rich. This module is imported when the first one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console as RichConsole
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
        """Draw the lines that fit; if there are more, the last row says so."""
        rows = fitting(lines, self._console.height, self._console.width)
        self._live.update(Text("\n").join(rows), refresh=True)


def fitting(lines: Sequence[str], rows: int, width: int) -> list[Text]:
    """The rows of these lines, wrapped at a width, that fit. Of a screen that is too long the first rows would be lost,
    and these have the faults."""
    console = RichConsole(width=width)
    wrapped = [row for line in lines for row in Text.from_ansi(line).wrap(console, width) or [Text()]]
    if len(wrapped) <= rows:
        return wrapped
    return [*wrapped[: rows - 1], Text(f"and {len(wrapped) - rows + 1} more")]
