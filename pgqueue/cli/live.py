"""A table that is drawn repeatedly: in place on a terminal, one below the other elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

import click

from .printing import is_terminal, screen

HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
OTHER_SCREEN, FIRST_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


def show(tables: Iterable[Sequence[str]]) -> None:
    """Show the tables until they end, or the user interrupts."""
    if not is_terminal() or os.environ.get("TERM", "dumb") == "dumb":
        for lines in tables:
            _write("\n".join([_now(), *lines, "", ""]))
        return
    last: Sequence[str] = ()
    _write(OTHER_SCREEN)
    try:
        for lines in tables:
            last = lines
            _write(_drawn([_now(), *lines]))
    finally:
        _write(FIRST_SCREEN + "".join(f"{line}\n" for line in last))  # the last table stays on the screen


def _drawn(lines: Sequence[str]) -> str:
    """The lines that fit on the screen. They overwrite the old ones, which are not cleared, so nothing flickers."""
    columns, rows = screen()
    shown = [line[:columns] for line in lines]
    if len(shown) > rows - 1:
        hidden = len(shown) - rows + 2
        shown[rows - 2 :] = [f"and {hidden} more"[:columns]]
    return HOME + "".join(f"{line}{REST_OF_LINE}\n" for line in shown) + REST_OF_SCREEN


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _write(text: str) -> None:
    click.echo(text, nl=False, color=True)  # the text has escape sequences that move the cursor
