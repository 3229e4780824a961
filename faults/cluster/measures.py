"""How long a worker began no task while some were ready, and how long a put took.

A bound in seconds is a promise about pgqueue. A machine that gives no process a turn, and a disk that does not write,
delay whatever runs; so a control beats beside the load, and the time in which it stood still does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from ..journal import Life
from ..ledger import Violation, Window
from ..programs.work import LANES
from .programs import BEAT, CONTROL, WORK, WORKERS

Span = tuple[float, float]

STALL = 2 * BEAT  # seconds between two beats that are a stall; a busy machine has many short ones
IDLE = 1.0  # seconds; the bound of a worker that begins no task
SLOW = 0.5  # seconds; the bound of a put while a server is away
WAITS = 2.0 + SLOW  # seconds; that of a put in a lane of a server that does not answer: it waits for connect_timeout
SILENT = "silent"  # the name of the window in which a server accepts connections and answers none
SHIFT = 43  # an id above this bit is the number of its server


class Control:
    """When the machine stood still."""

    def __init__(self, lives: Iterable[Life]) -> None:
        beats = [line.at for life in lives if life.name == CONTROL for line in life.lines]
        self._stalls = [(first + BEAT, second) for first, second in pairwise(beats) if second - first > STALL]

    def lost(self, since: float, until: float) -> float:
        return sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in self._stalls)

    def length(self, span: Span) -> float:
        return span[1] - span[0] - self.lost(*span)


def server(id: str) -> int:
    return int(id) >> SHIFT


def tell_servers(lives: Iterable[Life]) -> None:
    """Name the server in each lane of the journals: the order of a lane is a promise of one server."""
    lives = list(lives)
    ids = {line.fields[0]: line.fields[1] for life in lives for line in life.lines if line.event == "put"}
    for life in lives:
        for place, line in enumerate(life.lines):
            if line.event == "putting" and line.fields[1] != "-" and line.fields[2] in ids:
                queue, lane, label = line.fields
                life.lines[place] = line._replace(fields=(queue, f"{lane} of server {server(ids[label])}", label))


def idle(lives: Sequence[Life], absent: Iterable[tuple[int, Window]], until: float) -> Iterator[tuple[str, Span]]:
    """The spans in which a worker began no task, and some were ready all the time. `until`: the end of the load.

    Args:
        absent: servers, and when they were away: their tasks were not ready then.
    """
    ready = list(_merged(_ready(lives, list(absent))))
    for life in lives:
        if life.name not in WORKERS:
            continue
        begun = [line.at for line in life.lines if line.event == "took" and line.at < until]
        for since, next in pairwise([*begun, until]):
            for first, last in ready:
                span = max(first, since), min(last, next)
                if span[0] < span[1]:
                    yield str(life), span


def _ready(lives: Iterable[Life], absent: Sequence[tuple[int, Window]]) -> Iterator[Span]:
    """From the end of its put to its first run: the tasks that have neither a delay nor a lane."""
    lines = sorted(line for life in lives for line in life.lines)
    queued = {line.fields[2] for line in lines if line.event == "putting" and line.fields[0] == WORK}
    took: dict[str, float] = {}
    for line in lines:
        if line.event == "took":
            took.setdefault(line.fields[0], line.at)
    for line in lines:
        if line.event != "put" or line.fields[0] not in queued:
            continue
        since, until = line.at, took.get(line.fields[0], float("inf"))
        for number, window in absent:
            if number == server(line.fields[1]) and since < window.ended and until > window.began:
                yield since, min(window.began, until)
                since = window.ended
        yield since, until


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    last: Span | None = None
    for span in sorted(span for span in spans if span[0] < span[1]):
        if last is not None and span[0] <= last[1]:
            last = last[0], max(last[1], span[1])
        else:
            if last is not None:
                yield last
            last = span
    if last is not None:
        yield last


def puts(lives: Iterable[Life]) -> Iterator[tuple[str, bool, Span]]:
    """The label of each put, whether it has a lane, and from its call to its end, whether it succeeded or not."""
    for life in lives:
        began: dict[str, tuple[float, bool]] = {}
        for line in life.lines:
            if line.event == "putting":
                began[line.fields[2]] = line.at, line.fields[0] == LANES
            elif line.event in ("put", "unput"):
                at, lane = began[line.fields[0]]
                yield line.fields[0], lane, (at, line.at)


def check(
    lives: Sequence[Life], absent: Sequence[tuple[int, Window]], until: float, control: Control
) -> Iterator[Violation]:
    """The two bounds."""
    for name, span in idle(lives, absent, until):
        if (length := control.length(span)) > IDLE:
            yield Violation(span[0], "idle", f"{name} began no task for {length:.3f} s, and some were ready")
    for label, lane, span in puts(lives):
        during = [window for _, window in absent if window.began <= span[1] and span[0] <= window.ended]
        bound = WAITS if lane and any(window.fault == SILENT for window in during) else SLOW
        if during and (length := control.length(span)) > bound:
            yield Violation(span[0], "slow put", f"the put of {label} took {length:.3f} s while a server was away")
