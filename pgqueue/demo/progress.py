"""A bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 30


class Progress:
    """Shows how many of `total` tasks are done, at which rate, and how many are queued."""

    def __init__(self, total: int, out: TextIO | None = None) -> None:
        self._total = total
        self._out = out or sys.stdout
        self._terminal = self._out.isatty()
        self._began = self._shown_at = time.monotonic()
        self._shown = 0

    def show(self, done: int, queued: int, *, last: bool = False) -> None:
        now = time.monotonic()
        if not last and now - self._shown_at < (0.1 if self._terminal else 1.0):
            return
        rate = (done - self._shown) / max(now - self._shown_at, 1e-3)
        self._shown_at, self._shown = now, done
        text = f"{done}/{self._total} files  {rate:,.0f}/s  {queued} queued"
        if self._terminal:
            filled = WIDTH * done // max(self._total, 1)
            self._write(f"\r\033[K[{'#' * filled}{'.' * (WIDTH - filled)}] {text}" + ("\n" if last else ""))
        else:
            self._write(text + "\n")

    def note(self, text: str) -> None:
        """Print a line of its own."""
        self._write(("\r\033[K" if self._terminal else "") + text + "\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
