"""`pgqueue schedule`: list, set, pause, resume, run and delete schedules; their next times; and a clock."""

from __future__ import annotations

import math
from typing import Any, get_args

import click

from .. import Client
from .._calls.schedules import Missed, ScheduleInfo, schedule_name
from .._values.arguments import IfExists
from .._values.timetable import read_zone, timetable
from ..worker.scheduling import Scheduling
from .asking import confirm
from .connecting import connect
from .grouping import Group
from .plainly import plainly
from .printing import column, echo, echo_all, state_column, when
from .stopping import until_signal
from .values import COUNT, KEY, LANE, POSITIVE_SECONDS, PRIORITY, QUEUE, SECONDS, Checked, json_lines, read_json, yes

NAME = Checked("name", schedule_name)
COLUMNS = (
    column("NAME", folds=True),
    column("TIMES"),
    column("ZONE", 3),
    column("QUEUE", folds=True),
    column("NEXT", shown=lambda at: "paused" if at == "paused" else when(at)),
    column("LAST", 2, shown=when),
    column("TASK", 5),
    state_column("STATE", 1),
    column("DECLARED", 4, folds=True),
    column("ERROR", folds=True, style=lambda error: "red"),
)


@click.group(cls=Group)
def schedule() -> None:
    """Tasks that are put at set times. A worker fires them, or `pgqueue schedule clock`."""


@schedule.command("list")
@json_lines
@click.pass_obj
@plainly
def list_(dsn: str | None, as_json: bool) -> None:
    """List the schedules, with their next and last occurrence, and the state of the last task.

    DECLARED names the program whose code declares it; `removed`: its code no longer does so, and the schedule goes on.
    """
    with connect(dsn) as client:
        found = client.schedules.list()
    echo_all(found, as_json, ScheduleInfo.as_dict, COLUMNS, _row)


@schedule.command("set")
@click.argument("name", type=NAME)
@click.argument("queue", type=QUEUE)
@click.argument("data", default="null")
@click.option("--cron", help='A cron expression, as "0 9 * * mon-fri"; with six fields the first is seconds.')
@click.option("--every", type=POSITIVE_SECONDS, help="In place of --cron: seconds, at least 1.")
@click.option("--tz", default="UTC", show_default=True, help="The time zone of --cron, as Europe/Berlin.")
@click.option(
    "--missed",
    type=click.Choice(get_args(Missed)),
    default="one",
    show_default=True,
    help="What becomes of occurrences that no process was there to fire: no task, one for all of them, or all.",
)
@click.option("--priority", type=PRIORITY, help="Of each put, as of `pgqueue put`; so are the next six.")
@click.option("--delay", type=SECONDS, help="Seconds until each task is ready.")
@click.option("--ttr", type=POSITIVE_SECONDS, help="Time to run, seconds.")
@click.option("--ttl", type=POSITIVE_SECONDS, help="Time to live, seconds.")
@click.option("--lane", type=LANE, help="The tasks of a lane are handled strictly one after another.")
@click.option("--key", type=KEY, help="No task is put while the last one with this key is not done.")
@click.option("--if-exists", type=click.Choice(get_args(IfExists)), default="ignore", help="If a task has the key.")
@click.pass_obj
@plainly
def set_(
    dsn: str | None,
    name: str,
    queue: str,
    data: str,
    cron: str | None,
    every: float | None,
    tz: str,
    missed: Missed,
    **options: Any,
) -> None:
    """Make or change the schedule NAME: put DATA, which is JSON, into QUEUE at set times.

    Prints `created`, `changed`, or `kept` if it was the same before.
    """
    if (cron is None) == (every is None):
        raise click.UsageError("give --cron or --every, and not both")
    try:
        value = read_json(data)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="DATA") from None
    hint = "'--tz'"
    try:
        read_zone(tz)
        hint = "'--every'" if cron is None else "'--cron'"
        timetable(cron, every, tz)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=hint) from None
    with connect(dsn) as client:
        click.echo(client.schedules.set(name, cron, queue, value, every=every, tz=tz, missed=missed, **options))


@schedule.command()
@click.argument("name", type=NAME)
@click.pass_obj
@plainly
def pause(dsn: str | None, name: str) -> None:
    """Stop firing the schedule NAME until it is resumed."""
    with connect(dsn) as client:
        client.schedules.pause(name)


@schedule.command()
@click.argument("name", type=NAME)
@click.pass_obj
@plainly
def resume(dsn: str | None, name: str) -> None:
    """Go on with the schedule NAME, from now on."""
    with connect(dsn) as client:
        client.schedules.resume(name)


@schedule.command()
@click.argument("name", type=NAME)
@json_lines
@click.pass_obj
@plainly
def run(dsn: str | None, name: str, as_json: bool) -> None:
    """Put the task of the schedule NAME now, and print its id. The times of the schedule stay."""
    with connect(dsn) as client:
        id = client.schedules.run_now(name)
    echo({"id": id}, str(id), as_json)


@schedule.command()
@click.argument("name", type=NAME)
@yes
@click.pass_obj
@plainly
def delete(dsn: str | None, name: str, yes: bool) -> None:
    """Delete the schedule NAME. A worker whose code declares it sets it again when it starts."""
    with connect(dsn) as client:
        found = client.schedules.get(name)
        confirm(f"Delete the schedule {name} of {found.queue}?", yes)
        client.schedules.delete(name)


@schedule.command("next")
@click.argument("name", type=NAME)
@click.option("-n", "--count", type=COUNT, default=5, show_default=True, help="How many.")
@json_lines
@click.pass_obj
@plainly
def next_(dsn: str | None, name: str, count: int, as_json: bool) -> None:
    """Print the next times of the schedule NAME, in its time zone."""
    with connect(dsn) as client:
        for at in client.schedules.next(name, count):
            echo({"at": at}, at.isoformat(" "), as_json)


@schedule.command()
@click.pass_obj
@plainly
def clock(dsn: str | None) -> None:
    """Fire schedules until SIGTERM or SIGINT, without a worker. Any number of clocks and workers may run."""
    with Client(dsn) as client:
        scheduling = Scheduling(client, {})
        until_signal()
        scheduling.stop()
        scheduling.join(math.inf)


def _row(one: ScheduleInfo) -> tuple[Any, ...]:
    times = one.cron if one.cron is not None else f"every {one.every:g} s"
    declared = one.declared if one.removed_at is None else f"{one.declared} (removed)"
    coming = "paused" if one.paused else one.next_at
    zone = one.tz if one.cron is not None else None
    return one.name, times, zone, one.queue, coming, one.last_at, one.last_task, one.last_state, declared, one.error
