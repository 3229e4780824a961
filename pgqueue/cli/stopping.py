"""The end of a command that runs without limit: in order at the first SIGTERM or SIGINT, at once at the second."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any


def until_signal() -> None:
    """Sleep until SIGTERM or SIGINT; then both have their usual effect again. In the main thread only.

    The interpreter writes into a pipe at the signal itself, so a signal just before the sleep ends it too.
    """
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    before: dict[int, Any] = {}

    def caught(number: int, frame: FrameType | None) -> None:
        while before:
            signal.signal(*before.popitem())

    wakeup = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, caught)
        os.read(ours, 1)
    finally:
        caught(0, None)
        signal.set_wakeup_fd(wakeup)
        os.close(ours)
        os.close(theirs)
