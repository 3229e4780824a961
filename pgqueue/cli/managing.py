"""The commands for a queue as a whole: create, alter, rename, pause, drain, truncate and drop; and kick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_args

import click

from .. import Client, Queue
from .._calls.find import State
from .._calls.options import named_options
from .._calls.queue import QueueOptions
from ..terminal import Progress
from .asking import confirm
from .connecting import connect
from .grouping import suggestion
from .plainly import plainly
from .values import COUNT, POSITIVE_SECONDS, QUEUE, read_json, yes

OPTIONS = click.argument("options", metavar="[OPTION=VALUE]...", nargs=-1)


@click.command("create-queue")
@click.argument("queue", type=QUEUE)
@OPTIONS
@click.option("--if-not-exists", is_flag=True, help="Keep an existing queue, with its options.")
@click.pass_obj
@plainly
def create_queue(dsn: str | None, queue: str, options: Sequence[str], if_not_exists: bool) -> None:
    """Create a queue with options, for example `pgqueue create-queue mail ttr=60 max_takes=5`.

    The options are those of Client.create_queue, in docs/guides/queues.md. A VALUE is JSON, or else a plain string. A
    queue without options need not be created: its first put creates it.
    """
    given = _options(options)
    for name in ("exclusive", "temporary"):
        if given.get(name):
            raise click.BadParameter(f"a queue that is {name} would end with this command", param_hint="'OPTION=VALUE'")
    with connect(dsn) as client:
        client.create_queue(queue, if_not_exists=if_not_exists, **given)


@click.command()
@click.argument("queue", type=QUEUE)
@OPTIONS
@click.pass_obj
@plainly
def alter(dsn: str | None, queue: str, options: Sequence[str]) -> None:
    """Change options of QUEUE, for example `pgqueue alter mail ttr=120 capacity=null`. null is the default."""
    given = _options(options)
    if not given:
        raise click.UsageError("give at least one option to change, for example ttr=120")
    with connect(dsn) as client:
        client.queue(queue).alter(**given)


@click.command("delete-queue")
@click.argument("queue", type=QUEUE)
@click.option("--if-empty", is_flag=True, help="Refuse while it holds tasks.")
@click.option("--if-unused", is_flag=True, help="Refuse while a client holds one of its tasks, or waits for one.")
@click.option("--force", is_flag=True, help="Delete it even if its tasks are taken.")
@yes
@click.pass_obj
@plainly
def delete_queue(dsn: str | None, queue: str, if_empty: bool, if_unused: bool, force: bool, yes: bool) -> None:
    """Delete QUEUE with its tasks, unless one of them is taken; print their number.

    It is one transaction. `pgqueue truncate` before it keeps that short for a queue with many tasks.
    """
    with connect(dsn) as client:
        total = _total(client.queue(queue))
        confirm(f"Delete {queue} and its {total} tasks?", yes)
        # One statement, which reports nothing before its end: in parts, a refusal would be raised after tasks were
        # removed.
        with Progress(f"deleting {total:,} tasks", unit=""):
            removed = client.delete_queue(queue, if_empty=if_empty, if_unused=if_unused, force=force)
    click.echo(removed)


@click.command()
@click.argument("queue", type=QUEUE)
@click.option(
    "-s",
    "--state",
    "states",
    type=click.Choice(get_args(State)),
    multiple=True,
    help="Only tasks in this state. May be given several times.",
)
@yes
@click.pass_obj
@plainly
def truncate(dsn: str | None, queue: str, states: Sequence[State], yes: bool) -> None:
    """Remove all tasks of QUEUE, in any state, also those that are taken; print their number.

    With `-s ready -s delayed` it leaves those that are taken. It commits after each 50,000 tasks. Ctrl-C leaves the
    others.
    """
    with connect(dsn) as client:
        total = _total(client.queue(queue))
        which = f"tasks of {queue} that are {' or '.join(states)}" if states else f"{total} tasks of {queue}"
        confirm(f"Remove the {which}?", yes)
        with Progress("truncate", None if states else total) as progress:
            removed = client.queue(queue).truncate(states=states or None, on_progress=progress.show)
    click.echo(removed)


@click.command()
@click.argument("queue", type=QUEUE)
@click.argument("seconds", type=POSITIVE_SECONDS)
@click.pass_obj
@plainly
def pause(dsn: str | None, queue: str, seconds: float) -> None:
    """Let no task be taken from QUEUE for this number of seconds."""
    with connect(dsn) as client:
        _there(client, queue).pause(seconds)


@click.command()
@click.argument("queue", type=QUEUE)
@click.pass_obj
@plainly
def resume(dsn: str | None, queue: str) -> None:
    """End a pause of QUEUE."""
    with connect(dsn) as client:
        _there(client, queue).pause(0)


@click.command("rename-queue")
@click.argument("queue", type=QUEUE)
@click.argument("name", type=QUEUE)
@click.pass_obj
@plainly
def rename_queue(dsn: str | None, queue: str, name: str) -> None:
    """Give QUEUE another NAME. Its tasks, their takes and its bindings stay."""
    with connect(dsn) as client:
        client.queue(queue).rename(name)


@click.command()
@click.argument("queue", type=QUEUE, required=False)
@click.option("--all", "every", is_flag=True, help="Drain the database: no task can be put into any queue.")
@click.option("--off", is_flag=True, help="End it: tasks can be put again.")
@click.pass_obj
@plainly
def drain(dsn: str | None, queue: str | None, every: bool, off: bool) -> None:
    """Let no task be put into QUEUE any more, until `pgqueue drain QUEUE --off`. Takes work as before."""
    if every == (queue is not None):
        raise click.UsageError("give a QUEUE or --all")
    with connect(dsn) as client:
        if queue is None:
            client.drain(not off)
        else:
            client.queue(queue).drain(not off)


@click.command()
@click.argument("queue", type=QUEUE)
@click.option("-n", "--count", type=COUNT, default=1, show_default=True, help="The most tasks to kick.")
@click.option("--delayed", is_flag=True, help="If no task is buried, kick delayed tasks.")
@click.pass_obj
@plainly
def kick(dsn: str | None, queue: str, count: int, delayed: bool) -> None:
    """Make buried tasks of QUEUE ready, the first by (priority, id); print their number."""
    with connect(dsn) as client:
        click.echo(_there(client, queue).kick(count, delayed=delayed))


def _there(client: Client, name: str) -> Queue:
    """The queue. Raises NoQueue: many verbs would otherwise create a queue for a mistyped name."""
    queue = client.queue(name)
    queue.info()
    return queue


def _total(queue: Queue) -> int:
    queue.info()
    return queue.stats()["total"]


def _options(given: Sequence[str]) -> dict[str, Any]:
    options = dict(map(_option, given))
    try:
        named_options(QueueOptions, options, "a queue")
    except ValueError as error:
        known = [field.name for field in fields(QueueOptions)]
        near = "".join(suggestion(name, known) for name in options if name not in known)
        raise click.BadParameter(str(error) + (f".{near}" if near else ""), param_hint="'OPTION=VALUE'") from None
    return options


def _option(given: str) -> tuple[str, Any]:
    name, separator, value = given.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{given!r} is not OPTION=VALUE", param_hint="'OPTION=VALUE'")
    try:
        return name.replace("-", "_"), read_json(value)
    except ValueError:
        return name.replace("-", "_"), value
