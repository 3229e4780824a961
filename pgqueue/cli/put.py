"""`pgqueue put`: tasks from arguments, or from lines on standard input, which are never all in memory."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO, get_args

import click

from .. import BadData, Queue
from .._values.arguments import IfExists
from ..terminal import Progress
from .connecting import connect
from .lines import Lines
from .plainly import Fault, nothing, plainly
from .printing import OUT, compact, echo_json
from .values import (
    COUNT,
    KEY,
    LANE,
    MOMENT,
    POSITIVE_SECONDS,
    PRIORITY,
    QUEUE,
    SECONDS,
    json_lines,
    read_json,
    read_text,
)

STEP = 100  # tasks between two figures of the progress


@click.command()
@click.argument("queue", type=QUEUE)
@click.argument("data", nargs=-1)
@click.option("--text", is_flag=True, help="DATA, or each line, is a plain string and not JSON.")
@click.option(
    "--priority", type=PRIORITY, help="The lowest is taken first. Default of this and the next four: the queue's."
)
@click.option("--delay", type=SECONDS, help="Seconds until the task is ready.")
@click.option("--at", "run_at", type=MOMENT, help="When the task is ready, as 2030-01-31T08:00:00Z; not with --delay.")
@click.option(
    "--ttr", type=POSITIVE_SECONDS, help="Time to run, seconds: a longer take ends, and the task is ready again."
)
@click.option("--ttl", type=POSITIVE_SECONDS, help="Time to live, seconds: a task that is not taken by then expires.")
@click.option("--lane", type=LANE, help="The tasks of a lane are handled strictly one after another.")
@click.option("--key", type=KEY, help="At most one task that is not done has this key. For one DATA.")
@click.option("--if-exists", type=click.Choice(get_args(IfExists)), help="If a task has this key already.")
@click.option(
    "-t",
    "--timeout",
    type=SECONDS,
    default=0.0,
    help="Seconds to wait for room in a full queue. For one DATA. Default: 0.",
)
@click.option("--batch", type=COUNT, help="Commit after this number of lines, for input that does not end.")
@json_lines
@click.pass_obj
@plainly
def put(
    dsn: str | None,
    queue: str,
    data: tuple[str, ...],
    text: bool,
    key: str | None,
    if_exists: IfExists | None,
    timeout: float,
    batch: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Put a task for each DATA into QUEUE, and print the ids.

    DATA is JSON. With `-`, or without DATA in a pipe, each line of standard input is one DATA. If one of them is not
    valid, no task is put.
    """
    piped = data in ((), ("-",))
    if not piped and batch:
        raise click.UsageError("--batch is for lines on standard input")
    if (piped or len(data) > 1) and (key or if_exists or timeout):
        raise click.UsageError("--key, --if-exists and --timeout go with one DATA")
    if options["run_at"] is not None and options["delay"] is not None:
        raise click.UsageError("give --delay or --at, not both")
    if if_exists and not key:
        raise click.UsageError("--if-exists goes with --key")
    lines = Lines(_input(asked=bool(data)), text) if piped else None
    items = [] if piped else [_argument(one, text) for one in data]
    with connect(dsn) as client:
        into = client.queue(queue)
        if lines is not None:
            _put_lines(into, lines, batch, as_json, options)
        elif len(items) > 1:
            _echo_ids(into, into.put_many(items, **options), as_json)
        else:
            if key:
                options |= {"key": key, "if_exists": if_exists or "ignore"}
            _put_one(into, items[0], timeout, as_json, options)


def _put_one(queue: Queue, item: Any, timeout: float, as_json: bool, options: dict[str, Any]) -> None:
    task = queue.put(item, timeout=timeout, **options)
    if task is None:
        nothing()
    if as_json:
        echo_json({"id": task.id, "queue": task.queue, "state": task.state, "existed": task.existed})
    else:
        click.echo(task.id)


def _put_lines(queue: Queue, lines: Lines, batch: int | None, as_json: bool, options: dict[str, Any]) -> None:
    done = 0
    try:
        with Progress("put", active=not (sys.stdin.isatty() or (batch and OUT.terminal))) as progress:
            for items in _batches(_counted(lines, progress), batch):
                ids = array("q", queue.put_many(items, **options))
                if not batch:
                    progress.close()  # before the ids are printed to the same terminal
                _echo_ids(queue, ids, as_json)
                done += len(ids)
    except (BadData, Fault) as error:
        fault = lines.fault(error, done) if isinstance(error, BadData) else error
        before = f"; {done} tasks of the lines before it were put" if batch else ""
        raise Fault(fault.message + before, fault.exit_code) from None


def _counted(lines: Lines, progress: Progress) -> Iterator[Any]:
    number = 0
    for number, item in enumerate(lines, 1):
        yield item
        if number % STEP == 0:
            progress.show(number, part=lines.part)
    progress.show(number, part=lines.part)


def _batches(items: Iterator[Any], size: int | None) -> Iterator[Iterable[Any]]:
    if size is None:
        yield items
        return
    while batch := list(islice(items, size)):
        yield batch


def _echo_ids(queue: Queue, ids: Iterable[int], as_json: bool) -> None:
    if sys.stdout is None:
        return
    for id in ids:  # not click.echo, which flushes after each line
        line = compact({"id": id, "queue": queue.name}) if as_json else str(id)
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _argument(given: str, text: bool) -> Any:
    try:
        return read_text(given) if text else read_json(given)
    except ValueError as error:
        hint = "" if text else "; a plain string needs --text"
        raise click.BadParameter(f"it is {error}{hint}", param_hint="'DATA'") from None


def _input(asked: bool) -> BinaryIO:
    """Standard input. At a terminal it is read only with `-`: a command without DATA would wait for lines."""
    if sys.stdin is None or (sys.stdin.isatty() and not asked):
        raise click.UsageError("give DATA, or JSON lines on standard input")
    return sys.stdin.buffer
