"""`pgqueue limit`: how many tasks of a job or a queue run at once, and how many begin in a time."""

from __future__ import annotations

from typing import Any

import click

from .. import Cluster
from .._calls.limits import Limit, Scope
from .._engine import dsn as dsns
from .._values import arguments
from .connecting import connect
from .grouping import Group
from .plainly import plainly
from .printing import column, echo_all
from .values import POSITIVE_SECONDS, QUEUE, Checked, json_lines

JOB = Checked("job", lambda text: arguments.label("job", text))
ARGUMENT = Checked("argument", lambda text: arguments.label("argument", text))


@click.group(cls=Group)
def limit() -> None:
    """Show and change limits of tasks: how many run at once over all workers, and how many begin in a time."""


@limit.command("list")
@click.option("-q", "--queue", type=QUEUE, help="Only the limits of this queue.")
@json_lines
@click.pass_obj
@plainly
def list_limits(dsn: str | None, queue: str | None, as_json: bool) -> None:
    """List the limits, with the number of tasks that run and that wait."""
    with connect(dsn) as client:
        found = client.limits.list(queue)
    columns = (
        column("QUEUE", folds=True),
        column("JOB", folds=True),
        "CONCURRENCY",
        "RATE",
        column("BY", 2),
        "RUNNING",
        "WAITING",
        column("HOME", 3),
        column("SET BY", 1),
    )
    echo_all(found, as_json, Limit.as_dict, columns, _row)


def _row(one: Limit) -> tuple[str | int | None, ...]:
    rate = None if one.rate is None else f"{one.rate} in {one.per:g} s"
    by = "a program" if one.declared else "hand"
    return one.queue, one.job, one.concurrency, rate, one.argument, one.running, one.waiting, one.home, by


@limit.command("set")
@click.argument("queue", type=QUEUE)
@click.option("-j", "--job", type=JOB, help="Only tasks of this job. Default: all whose job has no limit of its own.")
@click.option("-c", "--concurrency", type=click.IntRange(1, 100_000), help="So many run at once, at most.")
@click.option("-r", "--rate", type=click.IntRange(1, 1_000_000), help="So many begin in each period, at most.")
@click.option("--per", type=POSITIVE_SECONDS, default=1.0, show_default=True, help="The period of --rate, in seconds.")
@click.option("--burst", type=click.IntRange(1, 1_000_000), help="So many may begin at once after a pause.")
@click.option("--by", type=ARGUMENT, help="Count for each value of this argument by itself.")
@click.option(
    "--scope",
    type=click.Choice(["server", "home"]),
    help="Set it on every server of the cluster, which each count their own tasks, or have them all at home.",
)
@click.pass_obj
@plainly
def set_limit(
    dsn: str | None,
    queue: str,
    job: str | None,
    concurrency: int | None,
    rate: int | None,
    per: float,
    burst: int | None,
    by: str | None,
    scope: Scope | None,
) -> None:
    """Limit the tasks of QUEUE, or of one of its jobs. Tasks that run go on; others wait for their turn.

    Without --scope the limit is set on this server alone. With --scope home the new tasks of the limit go to the home
    server of the cluster, so that it holds over all servers: see `Growing` in the guide.
    """
    if concurrency is None and rate is None:
        raise click.UsageError("give --concurrency, --rate, or both: `pgqueue limit drop` removes a limit")
    terms: dict[str, Any] = {"concurrency": concurrency, "rate": rate, "per": per, "burst": burst, "argument": by}
    if scope is None:
        with connect(dsn) as client:
            client.limits.set(queue, job, **terms)
    else:
        with Cluster.from_server(dsns.resolve(dsn)) as cluster:
            cluster.limits.set(queue, job, **terms, scope=scope)


@limit.command("drop")
@click.argument("queue", type=QUEUE)
@click.option("-j", "--job", type=JOB, help="The limit of this job. Default: that of the queue.")
@click.pass_obj
@plainly
def drop_limit(dsn: str | None, queue: str, job: str | None) -> None:
    """Remove the limit of QUEUE, or of one of its jobs. The tasks that wait for it become ready."""
    with connect(dsn) as client:
        if not client.limits.drop(queue, job):
            what = "no limit of its own" if job is None else f"no limit of the job {job!r}"
            raise click.ClickException(f"the queue {queue!r} has {what}")
