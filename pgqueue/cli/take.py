"""`pgqueue take`: takes for a process that ends at once.

A take lives as long as the process that made it, and a shell command ends soon. So there are three ways: a claim, which
belongs to no process and has an end; a command that is run while the task is held; and an ack as soon as the task is
printed.
"""

from __future__ import annotations

import shutil
import sys

import click

from .. import Queue
from .._calls.messages import MessageLimits
from .._values.arguments import MAX_INT, MAX_SECONDS
from ..jobs.retry import Retry
from ..worker.policy import policy
from .connecting import connect
from .plainly import FAILED, nothing, plainly
from .printing import as_dict, compact, echo, flush
from .running import run
from .values import COUNT, POSITIVE_SECONDS, QUEUE, SECONDS, json_lines, timeout

TTR = 60.0  # seconds that a claim lasts by default
LIMITS = MessageLimits(messages=MAX_INT, shortest=0, longest=MAX_SECONDS)


@click.command()
@click.argument("queue", type=QUEUE)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("-n", "--count", type=COUNT, default=1, show_default=True, help="The most tasks to take.")
@timeout
@click.option("--ttr", type=POSITIVE_SECONDS, help=f"Seconds to hold the tasks for, without COMMAND. Default: {TTR:g}.")
@click.option("--ack", is_flag=True, help="Print only the data, and ack the task once it is printed.")
@click.option(
    "--max-attempts", type=COUNT, help="With COMMAND: bury a task after this number of failed attempts. Default: 20."
)
@click.option("--retry-delay", type=SECONDS, help="With COMMAND: seconds, doubled after each attempt. Default: 1.")
@json_lines
@click.pass_obj
@plainly
def take(
    dsn: str | None,
    queue: str,
    command: tuple[str, ...],
    count: int,
    timeout: float | None,
    ttr: float | None,
    ack: bool,
    max_attempts: int | None,
    retry_delay: float | None,
    as_json: bool,
) -> None:
    """Take the next tasks of QUEUE; wait for the first one. Exit code 3 if there was none.

    \b
    pgqueue take mail                   prints id, claim and data: settle it with `pgqueue ack ID --claim CLAIM`
    pgqueue take mail -- ./send.sh -v   runs ./send.sh -v with the data on its standard input, and acks if it succeeds
    pgqueue take mail --ack             prints the data and acks
    """
    if command and (ttr or ack or as_json):
        raise click.UsageError("--ttr, --ack and --json cannot be used with a COMMAND")
    if not command and (max_attempts or retry_delay is not None):
        raise click.UsageError("--max-attempts and --retry-delay need a COMMAND")
    if ack and ttr:
        raise click.UsageError("--ttr cannot be used with --ack, which acks at once")
    if command and shutil.which(command[0]) is None:
        raise click.BadParameter(f"there is no program {command[0]!r}", param_hint="'COMMAND'")
    with connect(dsn) as client:
        of = client.queue(queue)
        if command:
            how = policy(max_attempts=max_attempts or 20, retry_delay=1.0 if retry_delay is None else retry_delay)
            _run(of, command, count, timeout, how)
        elif ack:
            _ack(of, count, timeout, as_json)
        else:
            _claim(of, count, timeout, ttr or TTR, as_json)


def _claim(queue: Queue, count: int, timeout: float | None, ttr: float, as_json: bool) -> None:
    queue.messages.limits = LIMITS
    claim = queue.messages.claim(count, ttr, 0, timeout=timeout)
    if claim is None:
        nothing()
    for task in claim.messages:
        values = as_dict(task) | {"claim": str(claim.id)}  # a string: readers of JSON round numbers above 2**53
        echo(values, f"{task.id} {claim.id} {compact(task.data)}", as_json)


def _ack(queue: Queue, count: int, timeout: float | None, as_json: bool) -> None:
    tasks = queue.take_many(count, timeout)
    if not tasks:
        nothing()
    for task in tasks:
        echo(as_dict(task), compact(task.data), as_json)
    flush()
    queue.ack_many(tasks)


def _run(queue: Queue, command: tuple[str, ...], count: int, timeout: float | None, policy: Retry) -> None:
    ran = failed = 0
    while ran < count and (task := queue.take(timeout)):
        ran += 1
        failed += not run(command, task, policy)
    if failed:
        sys.exit(FAILED)
    if not ran:
        nothing()
