"""A table that is drawn repeatedly: in place on a terminal, one below the other elsewhere."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterable, Sequence
from types import FrameType

import click

from ..terminal import Console

TERMINATED = 128 + signal.SIGTERM  # a shell's exit code


def show(tables: Iterable[Sequence[str]]) -> None:
    """Show the tables until they end, or the user interrupts. The last one stays on the screen."""
    console = Console()
    if not console.live:
        for lines in tables:
            _write([_now(), *lines, "", ""], end="")
        return
    from ..terminal.screens import Screen

    def stop(number: int, frame: FrameType | None) -> None:
        sys.exit(TERMINATED)  # so that the screen is given back

    before = signal.signal(signal.SIGTERM, stop)
    last: Sequence[str] = ()
    try:
        with Screen(console) as screen:
            for lines in tables:
                last = lines
                screen.draw([_now(), *lines])
    finally:
        signal.signal(signal.SIGTERM, before)
        _write(last)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _write(lines: Sequence[str], end: str = "\n") -> None:
    if lines:
        click.echo("\n".join(lines) + end, nl=False, color=True)  # escape sequences are in it only where they work
