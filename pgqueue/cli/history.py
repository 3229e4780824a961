"""`pgqueue history`: the calls of queues, and their lengths, period by period."""

from __future__ import annotations

from collections.abc import Sequence

import click

from .._calls.history import HOUR, QueuePeriod
from ..terminal import duration
from .connecting import connect
from .plainly import plainly
from .printing import column, echo_all
from .values import DURATION, QUEUE, json_lines

#: The columns, and when each is left out of a narrow table: the highest number first.
NUMBERS = {
    "puts": 0,
    "takes": 5,
    "acks": 8,
    "done": 0,
    "releases": 4,
    "buries": 3,
    "timeouts": 6,
    "ready": 0,
    "most_ready": 7,
    "taken": 2,
    "delayed": 9,
    "buried": 2,
    "blocked": 10,
}


@click.command()
@click.argument("queues", type=QUEUE, nargs=-1)
@click.option("--since", type=DURATION, default=HOUR, help="How long ago it begins, as 90m, 12h or 30d. [default: 1h]")
@click.option("--every", type=DURATION, help="The length of a period, as 5m or 1d. [default: what gives up to 100]")
@json_lines
@click.pass_obj
@plainly
def history(dsn: str | None, queues: Sequence[str], since: float, every: float | None, as_json: bool) -> None:
    """Show the calls of QUEUES, or of all queues, and their lengths, period by period.

    A period in which a queue was empty and had no call has no line.
    """
    with connect(dsn) as client:
        for name in queues:
            client.queue(name).info()
        found = client.history(queues or None, since, every)
    echo_all(
        found,
        as_json,
        lambda one: one._asdict() | {"at": one.at.isoformat()},
        (
            column("QUEUE", folds=True),
            column("AT"),
            *(column(name.upper(), spare, style=lambda n: "" if n else "dim") for name, spare in NUMBERS.items()),
            column("OLDEST", 1, shown=duration, right=False),
        ),
        _row,
    )


def _row(one: QueuePeriod) -> list[object]:
    return [one.queue, one.at, *(getattr(one, name) for name in NUMBERS), one.oldest_ready_age]
