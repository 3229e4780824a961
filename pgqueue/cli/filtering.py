"""The options that choose tasks, for example by their job; and `kick-all`, `cancel-all`, `delete-all`, `put-again-all`
and `release-all`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast, get_args

import click

from .. import Queue
from .._calls.find import Filter, FilterArguments, State
from ..terminal import Progress
from .asking import confirm
from .connecting import connect
from .plainly import plainly
from .values import DURATION, JSON, QUEUE, yes

JOB = click.option("--job", help="Only tasks of the job with this name.")
ERROR = click.option("--error", help="Only tasks with an error that has this part, for example ValueError.")
OLDER = click.option("--older", type=DURATION, help="Only tasks that were put so long ago: seconds, or as 15m, 1h, 2d.")
KEY = click.option("--key", help="Only the task with this key; of done tasks several may have it.")
LANE = click.option("--lane", help="Only tasks of this lane.")
CONTAINS = click.option(
    "--contains", type=JSON, help='Only tasks whose data contains this JSON, for example \'{"args": {"to": "ada"}}\'.'
)
OPTIONS = (JOB, ERROR, OLDER, KEY, LANE, CONTAINS)


def filtered(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command with the options of a filter, which it gets as `which`."""

    @functools.wraps(command)
    def chosen(*args: Any, **options: Any) -> Any:
        which = cast(FilterArguments, {name: options.pop(name) for name in FilterArguments.__annotations__})
        Filter.of(**which)  # an argument that is not valid fails before the command connects
        return command(*args, which=which, **options)

    return functools.reduce(lambda made, option: option(made), reversed(OPTIONS), chosen)


def _of_states(*states: str, **default: Any) -> Callable[..., Any]:
    """Without a `default` the option is required; click takes a default of None for one that was given."""
    return click.option(
        "-s",
        "--state",
        type=click.Choice(states),
        required=not default,
        show_default=True,
        help="The state of the tasks.",
        **default,
    )


@click.command("kick-all")
@click.argument("queue", type=QUEUE)
@_of_states("buried", "delayed", default="buried")
@filtered
@click.pass_obj
@plainly
def kick_all(dsn: str | None, queue: str, state: State, which: FilterArguments) -> None:
    """Make all buried tasks of QUEUE ready, or those that the options choose; print their number."""
    with connect(dsn) as client:
        of = client.queue(queue)
        with Progress("kick-all", _total(of, state, which)) as progress:
            n = of.kick_all(state, **which, on_progress=progress.show)
    click.echo(n)


@click.command("cancel-all")
@click.argument("queue", type=QUEUE)
@_of_states(*get_args(State))
@filtered
@yes
@click.pass_obj
@plainly
def cancel_all(dsn: str | None, queue: str, state: State, which: FilterArguments, yes: bool) -> None:
    """Cancel the tasks of QUEUE in a state, or those of them that the options choose; print their number."""
    with connect(dsn) as client:
        confirm(f"Cancel these tasks of {queue} that are {state}?", yes)
        of = client.queue(queue)
        with Progress("cancel-all", _total(of, state, which)) as progress:
            n = of.cancel_all(state, **which, on_progress=progress.show)
    click.echo(n)


@click.command("delete-all")
@click.argument("queue", type=QUEUE)
@_of_states(*get_args(State))
@filtered
@yes
@click.pass_obj
@plainly
def delete_all(dsn: str | None, queue: str, state: State, which: FilterArguments, yes: bool) -> None:
    """Delete the tasks of QUEUE in a state, or those of them that the options choose; print their number."""
    with connect(dsn) as client:
        confirm(f"Delete these tasks of {queue} that are {state}?", yes)
        of = client.queue(queue)
        with Progress("delete-all", _total(of, state, which)) as progress:
            n = of.delete_all(state, **which, on_progress=progress.show)
    click.echo(n)


@click.command("put-again-all")
@click.argument("queue", type=QUEUE)
@_of_states("buried", "done", default="done")
@filtered
@yes
@click.pass_obj
@plainly
def put_again_all(dsn: str | None, queue: str, state: State, which: FilterArguments, yes: bool) -> None:
    """Put the tasks of QUEUE that are done, or buried, once more, or those that the options choose; print their number.

    Each new task has the data, priority, lane and time to run of the old one, which stays as it is.
    """
    with connect(dsn) as client:
        confirm(f"Put these tasks of {queue} that are {state} again?", yes)
        of = client.queue(queue)
        with Progress("put-again-all", _total(of, state, which)) as progress:
            n = of.put_again_all(state, **which, on_progress=progress.show)
    click.echo(n)


@click.command("release-all")
@click.argument("queue", type=QUEUE)
@filtered
@yes
@click.pass_obj
@plainly
def release_all(dsn: str | None, queue: str, which: FilterArguments, yes: bool) -> None:
    """Release the tasks of QUEUE that are taken, or those that the options choose; print their number.

    It releases the tasks of all clients. The late acks of their takers are refused. A task may thus be done twice.
    """
    with connect(dsn) as client:
        confirm(f"Release the tasks of {queue} that are taken, while their takers work on them?", yes)
        # Without a filter it is one statement, which reports nothing before its end.
        with Progress("release-all", unit="" if Filter.of(**which) == Filter() else "tasks") as progress:
            n = client.queue(queue).release_all(**which, on_progress=progress.show)
    click.echo(n)


def _total(queue: Queue, state: State, which: FilterArguments) -> int | None:
    """The number of tasks to act on; None if that is not counted."""
    counted = {"ready": "ready", "delayed": "delayed", "buried": "buried", "done": "kept"}.get(state)
    found: dict[str, Any] = {**queue.stats()}
    return found[counted] if counted and Filter.of(**which) == Filter() else None
