"""The stream that is written to: whether it is a terminal, how wide it is, and whether it shows colours."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sys
from typing import IO

from .._values import printable


class Console:
    """Standard output, or with `err` standard error, as it is at the time of each call.

    Attributes:
        err: whether it is standard error.
    """

    def __init__(self, *, err: bool = False) -> None:
        self.err = err

    @property
    def stream(self) -> IO[str] | None:
        """The stream; None if the process was started without it, as by `>&-`."""
        return sys.stderr if self.err else sys.stdout

    @property
    def terminal(self) -> bool:
        """Whether a person sees it."""
        stream = self.stream
        return stream is not None and stream.isatty()

    @property
    def live(self) -> bool:
        """Whether a line that was written can be drawn again: a terminal that obeys escape sequences, and Rich."""
        return self.terminal and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "") and has_rich()

    @property
    def coloured(self) -> bool:
        """Whether it shows colours: `live`, and no variable NO_COLOR (https://no-color.org)."""
        return self.live and not os.environ.get("NO_COLOR")

    @property
    def width(self) -> int:
        """Columns of the terminal: of the variable COLUMNS, or of the terminal itself; 80 if unknown."""
        return self._size().columns

    @property
    def height(self) -> int:
        """Lines of the terminal; 24 if unknown."""
        return self._size().lines

    def say(self, text: str = "", style: str = "") -> None:
        """Write a line, or several that line feeds separate.

        Args:
            text: may have any characters; those that a terminal obeys are shown as escapes.
            style: words of Rich's styles, for example "bold red". Where there is no colour, it has no effect.
        """
        if self.stream is not None:
            self.stream.write(self.styled(printable.multiline(text), style) + "\n")
            self.stream.flush()

    def styled(self, text: str, style: str) -> str:
        """The text with the escape sequences of the style, if colours are shown."""
        if not (style and text and self.coloured):
            return text
        from rich.color import ColorSystem
        from rich.style import Style

        return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)

    def _size(self) -> os.terminal_size:
        if os.environ.get("COLUMNS", "").isdigit() or self.stream is None:
            return shutil.get_terminal_size()
        try:
            size = os.get_terminal_size(self.stream.fileno())
        except (OSError, ValueError):  # not a terminal; a stream without a file
            return shutil.get_terminal_size()
        return size if size.columns and size.lines else os.terminal_size((80, 24))


@functools.cache
def has_rich() -> bool:
    """Whether Rich is installed. Looks for it without importing it."""
    return importlib.util.find_spec("rich") is not None
