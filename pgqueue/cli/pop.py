"""`pgqueue pop`: at most once, where `pgqueue take --ack` is at least once."""

from __future__ import annotations

import click

from .connecting import connect
from .plainly import nothing, plainly
from .printing import as_dict, compact, echo
from .values import COUNT, QUEUE, SECONDS, json_lines


@click.command()
@click.argument("queues", type=QUEUE, nargs=-1, required=True)
@click.option("-n", "--count", type=COUNT, default=1, show_default=True, help="How many at most.")
@click.option(
    "-t", "--timeout", type=SECONDS, default=0.0, help="Seconds to wait for the first; 0 does not wait. Default: 0."
)
@json_lines
@click.pass_obj
@plainly
def pop(dsn: str | None, queues: tuple[str, ...], count: int, timeout: float, as_json: bool) -> None:
    """Take and ack the next tasks of QUEUES in one step, and print their data. Exit code 3 if there was none.

    A task is lost if the output cannot be written: `pgqueue take --ack` acks a task once it is printed.
    """
    with connect(dsn) as client:
        tasks = client.queue(queues[0]).pop(count, timeout) if len(queues) == 1 else client.pop(queues, count, timeout)
    if not tasks:
        nothing()
    for task in tasks:
        echo(as_dict(task), compact(task.data), as_json)
