"""`pgqueue alerts`"""

from __future__ import annotations

import click

from .. import Client
from ..monitors.alerts import Monitor
from .plainly import plainly
from .stopping import until_signal
from .values import POSITIVE_SECONDS, QUEUE


@click.command()
@click.option("--queue", "queues", type=QUEUE, multiple=True, help="Only this one; can be repeated. Default: all.")
@click.option("--webhook", metavar="URL", help="Where to POST each alert as JSON.")
@click.option(
    "--factor",
    "factors",
    type=float,
    multiple=True,
    default=(5.0, 10.0, 20.0),
    show_default=True,
    help="How many times its average a queue's length is alarming; can be repeated.",
)
@click.option("--age", type=POSITIVE_SECONDS, help="Seconds after which a ready task is alarming. Default: never.")
@click.option("--half-life", type=POSITIVE_SECONDS, default=86400.0, show_default=True, help="Of the average, seconds.")
@click.option(
    "--minimum-average", type=float, default=10.0, show_default=True, help="What a lower average counts as, in tasks."
)
@click.option("--health/--no-health", default=True, help="Tell when a check of the view pgqueue.health turns bad.")
@click.option("--interval", type=POSITIVE_SECONDS, default=10.0, show_default=True, help="Seconds between looks.")
@click.option("--elect", metavar="NAME", help="Of all that run with this name only one tells, an elected leader.")
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
    """Tell when a queue is too long or too slow, until SIGTERM or SIGINT: on standard error, and to a webhook.

    Too long is some times its moving average, too slow is an age of its oldest ready task. What is usual is learned
    from the start of this command on.
    """
    with Client(dsn) as client:
        client.state()  # fails now rather than in a thread
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
