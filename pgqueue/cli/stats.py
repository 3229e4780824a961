"""`pgqueue stats`: the numbers of all queues, once or as a live view."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from .. import Client
from .._calls.stats import VERBS, Stats
from ..terminal import duration, figure
from .connecting import connect
from .live import show
from .plainly import plainly
from .printing import STYLES, cell, column, echo_json, table
from .values import POSITIVE_SECONDS, QUEUE, json_lines

STATES = {
    "ready": 0,
    "delayed": 3,
    "taken": 0,
    "buried": 0,
    "blocked": 4,
    "done": 5,
    "kept": 6,
}  # and when to leave out
RATES = ("put", "take", "ack")


@click.command()
@click.argument("queues", type=QUEUE, nargs=-1)
@click.option("-w", "--watch", is_flag=True, help="Look repeatedly, and show rates a second too.")
@click.option(
    "-i", "--interval", type=POSITIVE_SECONDS, default=2.0, show_default=True, help="Seconds between looks of --watch."
)
@json_lines
@click.pass_obj
@plainly
def stats(dsn: str | None, queues: Sequence[str], watch: bool, interval: float, as_json: bool) -> None:
    """Show the number of tasks in each state: of QUEUES, or of all queues."""
    with connect(dsn) as client:
        if not watch:
            _print(_look(client, queues), as_json)
            return
        looks = _looks(client, queues, interval)
        if as_json:
            for look in looks:
                _print(look, as_json=True)
        else:
            show(_table(look, with_rates=True) for look in looks)


@dataclass(frozen=True, slots=True)
class Look:
    """The stats of the queues at a time of this machine's clock, and the look before."""

    found: Mapping[str, Stats]
    at: float
    before: Look | None = None

    def rates(self, queue: str) -> dict[str, float | None]:
        """The calls of each verb a second since the look before; None if that is unknown."""
        if self.before is None or queue not in self.before.found:
            return dict.fromkeys(VERBS)
        then, now = self.before.found[queue]["calls"], self.found[queue]["calls"]
        if any(now[verb] < then[verb] for verb in VERBS):  # the counts began again: a crash, or a new queue
            return dict.fromkeys(VERBS)
        return {verb: round((now[verb] - then[verb]) / (self.at - self.before.at), 1) for verb in VERBS}


def _look(client: Client, queues: Sequence[str], before: Look | None = None) -> Look:
    """Read the stats. Raises NoQueue for a queue that does not exist."""
    if not queues:
        every: dict[str, Stats] = client.stats()
        return Look(every, time.monotonic(), before)
    for name in queues:
        client.queue(name).info()
    return Look({name: client.queue(name).stats() for name in queues}, time.monotonic(), before)


def _looks(client: Client, queues: Sequence[str], interval: float) -> Iterator[Look]:
    look = None
    began = time.monotonic()
    for n in itertools.count(1):
        look = _look(client, queues, None if look is None else Look(look.found, look.at))
        yield look
        time.sleep(max(0.0, began + n * interval - time.monotonic()))


def _print(look: Look, as_json: bool) -> None:
    if not as_json:
        for line in _table(look, with_rates=False):
            click.echo(line, color=True)  # without colour there are no escape sequences in it
        return
    for queue, found in sorted(look.found.items()):
        per_second = {} if look.before is None else {"per_second": look.rates(queue)}
        echo_json({"queue": queue, **found, **per_second})


def _table(look: Look, with_rates: bool) -> list[str]:
    shown = RATES if with_rates else ()
    columns = [
        column("QUEUE", folds=True),
        *(column(state.upper(), spare, style=_counted(state)) for state, spare in STATES.items()),
        column("OLDEST", 2, plain=_age, shown=duration, right=False),
        *(column(f"{verb.upper()}/s", 1, plain=cell, shown=figure, style=_busy) for verb in shown),
    ]
    return table(columns, [_row(queue, look, shown) for queue in sorted(look.found)])


def _counted(state: str) -> Callable[[int], str]:
    """The style of a number of tasks in this state: 0 has no colour."""
    return lambda number: STYLES.get(state, "") if number else "dim"


def _busy(rate: float) -> str:
    return "" if rate else "dim"


def _row(queue: str, look: Look, shown: Sequence[str]) -> list[Any]:
    found, rates = look.found[queue], look.rates(queue)
    counts: Mapping[str, Any] = found
    return [
        queue,
        *(counts[state] for state in STATES),
        found["oldest_ready_age"],
        *(rates[verb] for verb in shown),
    ]


def _age(seconds: float) -> str:
    """An age in its two largest units, as scripts get it."""
    left = int(seconds)
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        n, left = divmod(left, size)
        parts.append((n, unit))
    first = next((at for at, (n, _) in enumerate(parts) if n), len(parts) - 1)
    return " ".join(f"{n}{unit}" for n, unit in parts[first : first + 2])
