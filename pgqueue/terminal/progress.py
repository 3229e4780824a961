"""The progress of a long call: a bar with the rate and an estimate of the time left.

A thread draws it, because a call can consist of one statement that runs for a minute. The thread exists on a terminal
only, and Rich is imported after `after` seconds: a call that ends sooner costs nothing and shows nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from .._engine.owners import errand
from .._values import printable
from .console import Console
from .wording import duration, figure

WINDOW = 15.0  # seconds: the rate is that of the last ones, because input and servers change their pace
REDRAW = 0.1  # seconds


class Pace:
    """The recent rate, and the time left. Pure: the caller passes the time."""

    def __init__(self, began: float, window: float = WINDOW) -> None:
        self._window = window
        self._seen = deque([(began, 0.0, 0.0)])  # time, number done, part done

    def see(self, at: float, done: float, part: float | None) -> None:
        """Note how much is done; `part` is that number as a part of all, from 0 to 1."""
        self._seen.append((at, done, part or 0.0))
        while len(self._seen) > 2 and self._seen[1][0] <= at - self._window:
            self._seen.popleft()

    def rate(self) -> float | None:
        """The number done a second; None before anything is done."""
        return self._of(1)

    def left(self) -> float | None:
        """Seconds until all is done at this pace; None if that is unknown."""
        speed, part = self._of(2), self._seen[-1][2]
        return max(0.0, 1 - part) / speed if speed and part else None

    def _of(self, what: int) -> float | None:
        first, last = self._seen[0], self._seen[-1]
        return (last[what] - first[what]) / (last[0] - first[0]) if last[0] > first[0] and last[what] else None


class Progress:
    """Shows the progress of the block: `with Progress("put", unit="tasks") as progress: ... progress.show(done)`.

    Args:
        title: the activity, in one or two words.
        total: how many there are; None if that is unknown.
        unit: the things counted, in the plural; an empty text if none are.
        err: write to standard error, so that standard output keeps the result.
        after: seconds before it is first shown.
        plain: seconds between plain lines where no bar can be drawn. None: 5 on a terminal, and none elsewhere.
        stay: leave the bar on the screen at the end.
        active: whether to show anything.
        window: seconds of which the rate is the average. Longer for things that are counted in few steps.
    """

    def __init__(
        self,
        title: str,
        total: float | None = None,
        unit: str = "tasks",
        *,
        err: bool = True,
        after: float = 1.0,
        plain: float | None = None,
        stay: bool = False,
        active: bool = True,
        window: float = WINDOW,
    ) -> None:
        self._title = printable.line(title)
        self._unit = unit
        self._console = Console(err=err)
        self._after = after
        self._pause = plain if plain is not None else 5.0 if self._console.terminal else None
        self._stay = stay
        self._active = active
        self._total = total
        self._done = 0.0
        self._part: float | None = None
        self._remark = ""
        self._began = time.monotonic()
        self._pace = Pace(self._began, window)
        self._bar: Any = None  # of Rich, while it is drawn
        self._lock = threading.Lock()  # of plain lines, notes, and of whether there is a bar
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._active and (self._console.live or self._pause is not None):
            self._thread = errand("pgqueue progress", self._run)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def show(
        self, done: float, *, part: float | None = None, total: float | None = None, remark: str | None = None
    ) -> None:
        """Set how much is done. Cheap: it draws nothing.

        Args:
            done: the number done so far.
            part: that number as a part of all, from 0 to 1, where the total is unknown. Default: done / total.
            total: the total, if it is known now, or another one.
            remark: a few words behind the figures, for example "12 queued"; None: as before.
        """
        self._done = done
        if total is not None:
            self._total = total
        if part is not None:
            self._part = min(1.0, part)
        elif self._total:
            self._part = min(1.0, done / self._total)
        if remark is not None:
            self._remark = printable.line(remark)

    def note(self, text: str, style: str = "") -> None:
        """Write a line of its own, above the bar."""
        with self._lock:
            if self._bar is None:
                self._console.say(text, style)
            else:
                from rich.text import Text

                self._bar.console.print(Text(printable.multiline(text), style), soft_wrap=True)

    def close(self) -> None:
        """End it. The bar disappears, unless it was to stay."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def figures(self) -> str:
        """The text beside the bar: `412,000 of 1,000,000 tasks  41%  18,402/s  32 s left`."""
        self._pace.see(time.monotonic(), self._done, self._part)
        rate, left = self._pace.rate(), self._pace.left()
        if self._part == 1.0:  # now the whole time and the rate of all say more
            rate, left = self._done / max(time.monotonic() - self._began, 1e-3), None
        counted = figure(self._done) if self._total is None else f"{figure(self._done)} of {figure(self._total)}"
        parts = [
            f"{counted} {self._unit}" if self._unit else "",
            "" if self._part is None else f"{self._part:.0%}",
            "" if rate is None or rate < 0.1 or not self._unit else f"{figure(rate)}/s",
            f"{duration(time.monotonic() - self._began)}" if left is None else f"{duration(left)} left",
            self._remark,
        ]
        return "  ".join(part for part in parts if part)

    def _run(self) -> None:
        with suppress(OSError):  # the reader of a pipe has gone: the next line of the main thread meets the same error
            self._draw()

    def _draw(self) -> None:
        if self._over.wait(self._after):
            return
        if self._console.live:
            self._draw_bar()
            return
        while True:
            with self._lock:
                self._console.say(f"{self._title}: {self.figures()}")
            if self._over.wait(self._pause):
                break
        if self._stay:
            with self._lock:
                self._console.say(f"{self._title}: {self.figures()}")

    def _draw_bar(self) -> None:
        from .bars import bar

        with self._lock:
            self._bar, update = bar(self._console, self._title, transient=not self._stay)
        try:
            while True:
                update(self.figures(), self._part)
                if self._over.wait(REDRAW):
                    break
            update(self.figures(), self._part)
        finally:
            with self._lock:
                self._bar.stop()
                self._bar = None
