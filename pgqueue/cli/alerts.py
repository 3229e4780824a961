"""`pgqueue alerts`"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from .. import Client
from ..monitors.alerts import Monitor
from ..monitors.thresholds import AGE, FAILURES, LATE, LENGTH, SNAPSHOT, UNTAKEN
from .plainly import plainly
from .stopping import until_signal
from .values import DURATION, POSITIVE_SECONDS, QUEUE, Checked, number

OFF = "none"


def _off(read: Callable[[str], float | None]) -> Callable[[str], float | None]:
    return lambda text: None if text == OFF else read(text)


def _of_queue(read: Callable[[str], float | None]) -> Callable[[str], tuple[str | None, float | None]]:
    """[QUEUE=]VALUE; a queue's name may have a `=`, a value has none."""

    def pair(text: str) -> tuple[str | None, float | None]:
        queue, given, value = text.rpartition("=")
        return queue if given else None, _off(read)(value)

    return pair


def _label(text: str) -> tuple[str, str]:
    name, given, value = text.partition("=")
    if not given:
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value


def _limit(name: str, read: Callable[[str], float | None], usual: float, what: str) -> Callable[..., Any]:
    """An option with a threshold for each queue."""
    return click.option(
        f"--{name}",
        type=Checked(name, _of_queue(read)),
        multiple=True,
        metavar="[QUEUE=]LIMIT",
        help=f"Alert when {what}; for each queue, or for one. Default: {usual:g}.",
    )


def _target(name: str, variable: str, what: str, **attributes: Any) -> Callable[..., Any]:
    return click.option(f"--{name}", metavar="URL", envvar=variable, show_envvar=True, help=what, **attributes)


@click.command()
@click.option("--queue", "queues", type=QUEUE, multiple=True, help="Only this queue; can be repeated. Default: all.")
@_target("webhook", "PGQUEUE_WEBHOOK", "Where to POST each alert as JSON.")
@_target("slack", "PGQUEUE_SLACK", "An incoming webhook of Slack.")
@_target("alertmanager", "PGQUEUE_ALERTMANAGER", "An Alertmanager of Prometheus; can be repeated.", multiple=True)
@click.option(
    "--label", "labels", type=Checked("label", _label), multiple=True, metavar="NAME=VALUE", help="For Alertmanager."
)
@click.option("--mail", metavar="ADDRESS", multiple=True, help="Send e-mail to this address; can be repeated.")
@_target(
    "smtp",
    "PGQUEUE_SMTP",
    "The mail server: smtp://user:password@host:587, or smtps://host.",
    default="smtp://localhost",
    show_default=True,
)
@click.option("--mail-from", metavar="ADDRESS", help="The sender. Default: the user of --smtp if that is an address.")
@_limit("length", number, LENGTH, "a queue has this number of ready tasks")
@_limit("age", DURATION.read, AGE, "a task has been ready for this time: seconds, or as 15m, 1h")
@_limit("failures", number, FAILURES, "this number of attempts failed in a minute")
@_limit("untaken", DURATION.read, UNTAKEN, "nothing has taken a queue's ready tasks for this time")
@_limit("late-schedule", DURATION.read, LATE, "a schedule of the queue is late by this time")
@click.option(
    "--snapshot",
    type=Checked("snapshot", _off(DURATION.read)),
    default=SNAPSHOT,
    metavar="LIMIT",
    help=f"Alert when a snapshot has been held for this time. Default: {SNAPSHOT:g}.",
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
def alerts(dsn: str | None, queues: Sequence[str], labels: Sequence[tuple[str, str]], **options: Any) -> None:
    """Report alerts on standard error, and to each target that is given, until SIGTERM or SIGINT.

    An alert reports that a queue is too long, by a limit or compared with its moving average, too slow, by the age of
    its oldest ready task, or failing; that nothing takes from it; that a schedule is late, a snapshot held for long, or
    a check of `pgqueue health` bad. It is reported once, and once more when it is over.

    A LIMIT of `none` is off; --length mail=1000 --length none is for one queue alone. URLs that are secrets belong into
    the environment: all accounts see command lines.
    """
    for name in ("length", "age", "failures", "untaken", "late_schedule"):
        options[name] = dict(options[name])
    with Client(dsn) as client:
        client.state()  # fail now rather than in a thread
        with Monitor(client, queues or None, labels=dict(labels), **options):
            until_signal()
