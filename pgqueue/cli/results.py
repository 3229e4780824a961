"""The commands for the outcome of a task: those that its taker gives, and those that wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from .._calls.results import Outcome
from .._sync.settle import KEEP
from .connecting import connect
from .plainly import nothing, plainly
from .printing import cell, column, compact, cut, document, echo, echo_all, state_column
from .tasks import HELD, IDS, each, task_of
from .values import CLAIM, JSON, SECONDS, TASK, json_lines, timeout

ID = click.argument("id", type=TASK)
KEPT = click.option("--keep", type=SECONDS, default=KEEP, show_default=True, help="Seconds to keep it for.")


@click.command()
@ID
@click.argument("result", type=JSON, default="null")
@HELD
@KEPT
@json_lines
@click.pass_obj
@plainly
def finish(dsn: str | None, id: int, result: Any, claim: int, keep: float, as_json: bool) -> None:
    """Ack the task ID and keep RESULT, which is JSON."""
    each(dsn, [id], claim, as_json, lambda task: task.finish(result, keep=keep).state)


@click.command()
@IDS
@click.option("--claim", type=CLAIM, help="Only if this claim still holds the tasks. Default: any holder.")
@click.option("--error", metavar="TEXT", help="The error; it is kept with the task.")
@KEPT
@json_lines
@click.pass_obj
@plainly
def fail(dsn: str | None, ids: Sequence[int], claim: int | None, error: str | None, keep: float, as_json: bool) -> None:
    """Bury tasks and record that they failed for good."""
    each(dsn, ids, claim, as_json, lambda task: task.fail(error, keep=keep).state)


@click.command()
@ID
@click.argument("value", type=JSON)
@HELD
@click.pass_obj
@plainly
def progress(dsn: str | None, id: int, value: Any, claim: int) -> None:
    """Report how far the taken task ID is, with VALUE, which is JSON."""
    with connect(dsn) as client:
        task_of(client, id, claim).progress(value)


@click.command()
@IDS
@json_lines
@click.pass_obj
@plainly
def outcome(dsn: str | None, ids: Sequence[int], as_json: bool) -> None:
    """List the outcomes of tasks, also after their end."""
    with connect(dsn) as client:
        found = [client.results.outcome(id) for id in ids]
    _list(found, as_json)


@click.command()
@ID
@timeout
@json_lines
@click.pass_obj
@plainly
def result(dsn: str | None, id: int, timeout: float | None, as_json: bool) -> None:
    """Wait for the result of the task ID, and print it. Exit code 3 if there was none in time.

    Exit code 4 if the task failed, was cancelled, or is done or gone without a result.
    """
    with connect(dsn) as client:
        try:
            value = client.results.get(id, timeout)
        except TimeoutError:
            nothing()
    echo({"id": id, "result": value}, document(value), as_json)


@click.command()
@ID
@timeout
@json_lines
@click.pass_obj
@plainly
def follow(dsn: str | None, id: int, timeout: float | None, as_json: bool) -> None:
    """Print the outcome of the task ID now and after each change, until it ends. Exit code 3 if the time was over."""
    with connect(dsn) as client:
        try:
            for one in client.results.follow(id, timeout):
                shown = [one.result if one.state == "done" else one.progress, one.error]
                told = [compact(shown[0]) if shown[0] is not None else None, cell(shown[1]) if shown[1] else None]
                echo(asdict(one), " ".join(filter(None, [str(one.id), one.state, *told])), as_json)
        except TimeoutError:
            nothing()


@click.command()
@ID
@HELD
@json_lines
@click.pass_obj
@plainly
def results(dsn: str | None, id: int, claim: int, as_json: bool) -> None:
    """List the outcomes of the tasks that the taken task ID was put after, in that order."""
    with connect(dsn) as client:
        found = task_of(client, id, claim).results()
    _list(found, as_json)


def _list(found: Sequence[Outcome], as_json: bool) -> None:
    headings = (
        "ID",
        column("QUEUE", folds=True),
        state_column(),
        column("ATTEMPTS", 1),
        column("PROGRESS", 2, folds=True),
        column("RESULT", folds=True),
        column("ERROR", folds=True),
    )
    echo_all(
        found,
        as_json,
        asdict,
        headings,
        lambda o: (o.id, o.queue, o.state, o.attempts, _json(o.progress), _json(o.result), cut(o.error)),
    )


def _json(value: Any) -> str | None:
    return None if value is None else cut(compact(value))
