"""The commands for tasks by their ids: those that settle a claimed task, and those that need no claim."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any

import click

from .. import Client, Queue, Task
from .._calls.pick import TaskStats
from .._records.task import bind, home_of
from ..errors import ClaimDoesNotExist, TaskError, TaskNotFound
from ..terminal import Progress, duration
from .asking import confirm
from .connecting import connect
from .plainly import GONE, Fault, plainly
from .printing import OUT, column, echo, echo_all, echo_attempt, echo_task
from .take import LIMITS, TTR
from .values import CLAIM, JSON, POSITIVE_SECONDS, PRIORITY, QUEUE, SECONDS, TASK, json_lines, yes

IDS = click.argument("ids", metavar="ID...", type=TASK, nargs=-1, required=True)
HELD = click.option("--claim", type=CLAIM, required=True, help="The claim that `pgqueue take` printed.")
ERROR = click.option(
    "--error", metavar="TEXT", help="The error of a failed attempt; it is kept with the task and counts as an attempt."
)
CHANGED = click.option("--priority", type=PRIORITY, help="The priority from now on.")


@click.command()
@IDS
@HELD
@json_lines
@click.pass_obj
@plainly
def ack(dsn: str | None, ids: Sequence[int], claim: int, as_json: bool) -> None:
    """Ack tasks: they are done."""
    each(dsn, ids, claim, as_json, lambda task: task.ack().state)


@click.command()
@IDS
@HELD
@click.option("--delay", type=SECONDS, default=0.0, help="Seconds until the tasks are ready.")
@click.option("--hold-lane", is_flag=True, help="Let the lanes of the tasks wait for them during the delay.")
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
    hold_lane: bool,
    priority: int | None,
    error: str | None,
    as_json: bool,
) -> None:
    """Release tasks, to be taken again."""

    def release_one(task: Task) -> str:
        return task.release(delay, hold_lane=hold_lane, priority=priority, error=error).state

    each(dsn, ids, claim, as_json, release_one)


@click.command()
@IDS
@HELD
@json_lines
@click.pass_obj
@plainly
def requeue(dsn: str | None, ids: Sequence[int], claim: int, as_json: bool) -> None:
    """Release tasks behind all others of their priority. Each gets a new id, which is printed."""
    with connect(dsn) as client:

        def one(id: int) -> None:
            done = task_of(client, id, claim).requeue()
            echo({"id": done.id, "state": done.state, "old_id": id}, f"{done.id} {done.state}", as_json)

        _tolerant(ids, one)


@click.command()
@click.argument("id", type=TASK)
@click.argument("queue", type=QUEUE)
@click.argument("data", type=JSON, required=False)
@HELD
@json_lines
@click.pass_obj
@plainly
def forward(dsn: str | None, id: int, queue: str, data: Any, claim: int, as_json: bool) -> None:
    """Ack the task ID and put a new task into QUEUE, in one step. DATA is JSON; default: the task's own."""

    def one(task: Task) -> str:
        return task.forward(queue, task.peek().data if data is None else data).state

    each(dsn, [id], claim, as_json, one)


@click.command()
@IDS
@click.option("--claim", type=CLAIM, help="Only if this claim still holds the tasks. Default: any holder.")
@CHANGED
@ERROR
@json_lines
@click.pass_obj
@plainly
def bury(
    dsn: str | None, ids: Sequence[int], claim: int | None, priority: int | None, error: str | None, as_json: bool
) -> None:
    """Bury tasks: they are set aside until a kick."""
    each(dsn, ids, claim, as_json, lambda task: task.bury(priority=priority, error=error).state)


@click.command()
@IDS
@click.option("--reason", metavar="TEXT", help="Why; kept with the task, and shown to its taker.")
@json_lines
@click.pass_obj
@plainly
def cancel(dsn: str | None, ids: Sequence[int], reason: str | None, as_json: bool) -> None:
    """Cancel tasks: they are removed, or their takers are told to stop.

    Prints the state of each: cancelled; cancelling, while it is taken; or the state in which it ended before.
    """

    def one(task: Task) -> str:
        state = task.cancel(reason)
        if state == "unknown":
            raise TaskNotFound(f"task {task.id} was not found: it is gone, or was never put", task.id)
        return state

    each(dsn, ids, None, as_json, one)


@click.command()
@IDS
@HELD
@click.option("--ttr", type=POSITIVE_SECONDS, default=TTR, show_default=True, help="Seconds from now.")
@json_lines
@click.pass_obj
@plainly
def touch(dsn: str | None, ids: Sequence[int], claim: int, ttr: float, as_json: bool) -> None:
    """Hold tasks for longer, together with all other tasks of the claim, since a claim has one end."""

    def one(task: Task) -> str:
        found = task.peek()
        messages = Queue(home_of(found), found.queue).messages
        messages.limits = LIMITS
        held = messages.get(claim)
        if task.id not in {message.id for message in held.messages}:
            raise TaskError(f"task {task.id} is not held by claim {claim}: it is {found.state}", task.id)
        held.renew(ttr, 0)
        return found.state

    each(dsn, ids, claim, as_json, one)


@click.command()
@IDS
@yes
@json_lines
@click.pass_obj
@plainly
def delete(dsn: str | None, ids: Sequence[int], yes: bool, as_json: bool) -> None:
    """Remove tasks in any state, also those that are taken."""
    confirm(f"Delete {len(ids)} task(s), even if they are taken?", yes)

    def one(task: Task) -> str:
        task.delete()
        return "deleted"

    each(dsn, ids, None, as_json, one)


@click.command("kick-task")
@IDS
@json_lines
@click.pass_obj
@plainly
def kicktask_of(dsn: str | None, ids: Sequence[int], as_json: bool) -> None:
    """Make buried or delayed tasks ready; other tasks stay as they are."""

    def one(task: Task) -> str:
        task.kick()
        return task.peek().state

    each(dsn, ids, None, as_json, one)


@click.command("put-again")
@IDS
@json_lines
@click.pass_obj
@plainly
def put_again(dsn: str | None, ids: Sequence[int], as_json: bool) -> None:
    """Put new tasks with the data, priority, lane and time to run of these, which stay; print the new ids."""
    with connect(dsn) as client:

        def one(id: int) -> None:
            new = client.put_again(id)
            echo({"id": id, "new_id": new}, f"{id} {new}", as_json)

        _tolerant(ids, one)


@click.command("task-stats")
@IDS
@json_lines
@click.pass_obj
@plainly
def task_stats(dsn: str | None, ids: Sequence[int], as_json: bool) -> None:
    """List how often tasks were taken, released, buried and kicked, and how old they are, in seconds."""
    with connect(dsn) as client:
        found = [task_of(client, id, None).stats() for id in ids]
    names = [field.name for field in fields(TaskStats)]
    columns = [  # the last are left out first
        column(name.upper(), spare, folds=True, shown=duration if name in ("ttr", "age", "time_left") else None)
        for spare, name in enumerate(names)
    ]
    echo_all(found, as_json, asdict, columns, lambda one: list(asdict(one).values()))


@click.command()
@IDS
@json_lines
@click.pass_obj
@plainly
def peek(dsn: str | None, ids: Sequence[int], as_json: bool) -> None:
    """Show tasks as they are now, also those that are taken."""
    with connect(dsn) as client:
        for task in (task_of(client, id, None).peek() for id in ids):
            echo_task(task, as_json)
            if not as_json:
                for attempt in client.results.attempts(task):
                    echo_attempt(attempt)


def each(dsn: str | None, ids: Sequence[int], claim: int | None, as_json: bool, verb: Callable[[Task], str]) -> None:
    """Call the verb for each task, and print its state. A task that is gone does not stop the others."""
    with connect(dsn) as client:

        def one(id: int) -> None:
            state = verb(task_of(client, id, claim))
            echo({"id": id, "state": state}, f"{id} {state}", as_json)

        _tolerant(ids, one)


def _tolerant(ids: Sequence[int], one: Callable[[int], None]) -> None:
    """Call the function for each id. A task that is gone does not stop the others."""
    lost = False
    name = click.get_current_context().info_name or ""
    with Progress(name, len(ids), active=not OUT.terminal) as progress:  # the lines on a terminal show as much
        for n, id in enumerate(ids, 1):
            try:
                one(id)
            except (TaskError, ClaimDoesNotExist) as error:
                progress.note(f"Error: {Fault(str(error)).format_message()}")
                lost = True
            progress.show(n)
    if lost:
        sys.exit(GONE)


def task_of(client: Client, id: int, claim: int | None) -> Task:
    """A task with only its id, and the claim's id as its token."""
    return bind(Task(id=id, queue="", state="", data=None, token=claim), client.shell)
