"""The commands for tasks that are named by their ids: settling what was taken, and what anybody may do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import click

from .. import Client, Queue, Task
from .._records.task import bind, home_of
from ..errors import ClaimDoesNotExist, TaskError
from .asking import confirm
from .plainly import GONE, Fault, plainly
from .printing import echo, echo_task
from .take import LIMITS, TTR
from .values import CLAIM, POSITIVE_SECONDS, PRIORITY, SECONDS, TASK, json_lines, yes

IDS = click.argument("ids", metavar="ID...", type=TASK, nargs=-1, required=True)
HELD = click.option("--claim", type=CLAIM, required=True, help="The claim that `pgqueue take` printed.")
ERROR = click.option("--error", metavar="TEXT", help="Why it failed; counts as an attempt and is kept with it.")
CHANGED = click.option("--priority", type=PRIORITY, help="From now on.")


@click.command()
@IDS
@HELD
@json_lines
@click.pass_obj
@plainly
def ack(dsn: str | None, ids: Sequence[int], claim: int, as_json: bool) -> None:
    """Say that tasks are done."""
    _each(dsn, ids, claim, as_json, lambda task: task.ack().state)


@click.command()
@IDS
@HELD
@click.option("--delay", type=SECONDS, default=0.0, help="Seconds until they are ready.")
@CHANGED
@ERROR
@json_lines
@click.pass_obj
@plainly
def release(
    dsn: str | None,
    ids: Sequence[int],
    claim: int,
    delay: float,
    priority: int | None,
    error: str | None,
    as_json: bool,
) -> None:
    """Give tasks back, to be taken again."""
    _each(dsn, ids, claim, as_json, lambda task: task.release(delay, priority=priority, error=error).state)


@click.command()
@IDS
@click.option("--claim", type=CLAIM, help="Only if this claim still holds them. Default: whoever does.")
@CHANGED
@ERROR
@json_lines
@click.pass_obj
@plainly
def bury(
    dsn: str | None, ids: Sequence[int], claim: int | None, priority: int | None, error: str | None, as_json: bool
) -> None:
    """Set tasks aside, until somebody kicks them."""
    _each(dsn, ids, claim, as_json, lambda task: task.bury(priority=priority, error=error).state)


@click.command()
@IDS
@HELD
@click.option("--ttr", type=POSITIVE_SECONDS, default=TTR, show_default=True, help="Seconds from now.")
@json_lines
@click.pass_obj
@plainly
def touch(dsn: str | None, ids: Sequence[int], claim: int, ttr: float, as_json: bool) -> None:
    """Keep tasks for longer, and all that was taken with them: a claim has one end."""

    def one(task: Task) -> str:
        found = task.peek()
        messages = Queue(home_of(found), found.queue).messages
        messages.limits = LIMITS
        held = messages.get(claim)
        if task.id not in {message.id for message in held.messages}:
            raise TaskError(f"task {task.id} is not held by claim {claim}: it is {found.state}", task.id)
        held.renew(ttr, 0)
        return found.state

    _each(dsn, ids, claim, as_json, one)


@click.command()
@IDS
@yes
@json_lines
@click.pass_obj
@plainly
def delete(dsn: str | None, ids: Sequence[int], yes: bool, as_json: bool) -> None:
    """Remove tasks, in whatever state, whoever holds them."""
    confirm(f"Delete {len(ids)} task(s), whoever holds them?", yes)

    def one(task: Task) -> str:
        task.delete()
        return "deleted"

    _each(dsn, ids, None, as_json, one)


@click.command("kick-task")
@IDS
@json_lines
@click.pass_obj
@plainly
def kick_task(dsn: str | None, ids: Sequence[int], as_json: bool) -> None:
    """Make tasks ready that are buried or delayed; others stay as they are."""

    def one(task: Task) -> str:
        task.kick()
        return task.peek().state

    _each(dsn, ids, None, as_json, one)


@click.command()
@IDS
@json_lines
@click.pass_obj
@plainly
def peek(dsn: str | None, ids: Sequence[int], as_json: bool) -> None:
    """Show tasks as they are now, whoever holds them."""
    with Client(dsn) as client:
        for task in (_task(client, id, None).peek() for id in ids):
            echo_task(task, as_json)


def _each(dsn: str | None, ids: Sequence[int], claim: int | None, as_json: bool, verb: Callable[[Task], str]) -> None:
    """Do it to each, and print its state. One that is gone does not keep the others from it."""
    lost = False
    with Client(dsn) as client:
        for id in ids:
            try:
                state = verb(_task(client, id, claim))
            except (TaskError, ClaimDoesNotExist) as error:
                Fault(str(error)).show()
                lost = True
            else:
                echo({"id": id, "state": state}, f"{id} {state}", as_json)
    if lost:
        sys.exit(GONE)


def _task(client: Client, id: int, claim: int | None) -> Task:
    """The task by its id, which says all: what is not asked for is left empty. A claim's id is its tasks' token."""
    return bind(Task(id=id, queue="", state="", data=None, token=claim), client.shell)
