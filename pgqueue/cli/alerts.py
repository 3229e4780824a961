"""`pgqueue alerts`"""

from __future__ import annotations

import click

from .. import Client
from ..monitors.alerts import Monitor
from .plainly import plainly
from .stopping import until_signal
from .values import POSITIVE_SECONDS, QUEUE


@click.command()
@click.option("--queue", "queues", type=QUEUE, multiple=True, help="Only this queue; can be repeated. Default: all.")
@click.option(
    "--webhook",
    metavar="URL",
    envvar="PGQUEUE_WEBHOOK",
    show_envvar=True,
    help="Where to POST each alert as JSON. If the URL is a secret, set the variable: all accounts see command lines.",
)
@click.option(
    "--factor",
    "factors",
    type=float,
    multiple=True,
    default=(5.0, 10.0, 20.0),
    show_default=True,
    help="Alert when a queue's length reaches this multiple of its average; can be repeated.",
)
@click.option(
    "--age", type=POSITIVE_SECONDS, help="Alert when a task has been ready for this time, seconds. Default: never."
)
@click.option(
    "--half-life", type=POSITIVE_SECONDS, default=86400.0, show_default=True, help="Half-life of the average, seconds."
)
@click.option(
    "--minimum-average",
    type=float,
    default=10.0,
    show_default=True,
    help="A lower average counts as this one, in tasks.",
)
@click.option("--health/--no-health", default=True, help="Alert when a check of the view pgqueue.health turns bad.")
@click.option("--interval", type=POSITIVE_SECONDS, default=10.0, show_default=True, help="Seconds between looks.")
@click.option("--elect", metavar="NAME", help="Of all processes with this name only an elected leader sends alerts.")
@click.pass_obj
@plainly
def alerts(
    dsn: str | None,
    queues: tuple[str, ...],
    webhook: str | None,
    factors: tuple[float, ...],
    age: float | None,
    half_life: float,
    minimum_average: float,
    health: bool,
    interval: float,
    elect: str | None,
) -> None:
    """Report alerts on standard error and to a webhook, until SIGTERM or SIGINT.

    An alert reports that a queue is too long, compared with its moving average, or too slow, by the age of its oldest
    ready task. The average begins with the start of this command.
    """
    with Client(dsn) as client:
        client.state()  # fail now rather than in a thread
        monitor = Monitor(
            client,
            queues or None,
            webhook=webhook,
            factors=factors,
            age=age,
            half_life=half_life,
            minimum_average=minimum_average,
            health=health,
            interval=interval,
            elect=elect,
        )
        with monitor:
            until_signal()
