"""Running the measures one after the other, each within a limit, and keeping what each found."""

from __future__ import annotations

import math
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pgqueue.terminal import Progress

from .bench import Bench
from .findings import Findings
from .measures import MEASURES
from .options import Options
from .store import Kept, Run

LIMIT = 600  # seconds for one measure


def chosen(run: Run, options: Options) -> list[str]:
    """The measures to run: with --missing, those whose findings are not in the file yet."""
    if not options.missing:
        return options.only
    return [name for name in options.only if name not in run.measures or run.measures[name].failed]


def run(bench: Bench, into: Run, names: list[str], keep: Callable[[], None]) -> int:
    """Run the measures; returns how many failed. `keep` is called after each."""
    failed = 0
    with Progress("benchmarks", len(names), "measures", window=math.inf) as progress:
        for number, name in enumerate(names, 1):
            progress.show(number - 1, remark=name)
            kept = _one(bench, name)
            into.measures[name] = kept
            failed += bool(kept.failed)
            keep()
            progress.note(f"{number} of {len(names)}, {name}: {kept.seconds:.0f} s {kept.failed}")
    return failed


def _one(bench: Bench, name: str) -> Kept:
    settings = f"{bench.rounds} rounds" + (", shortened (--quick)" if bench.quick else "")
    began = time.monotonic()
    found, failure = Findings(), ""
    try:
        with _within(LIMIT):
            found = MEASURES[name](bench)
    except Exception as error:  # the other measures may still succeed
        failure = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    return Kept(found, time.monotonic() - began, settings, failure)


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    """TimeoutError if the block takes longer."""

    def late(signal_number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"it took longer than {seconds} s")

    former = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
