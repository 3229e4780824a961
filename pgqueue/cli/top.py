"""`pgqueue top`: the overview of the dashboard in a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import click
import psycopg

from .. import Client
from .._calls.call import Call
from .._calls.health import Check
from .._calls.rows import Row
from .._values import printable
from ..errors import ClosedError, Error
from ..monitors.overview import PAGE, STATES, overview
from ..monitors.words import ALL_WELL, GRADES, HEADINGS, Words, filled
from ..terminal import duration, figure
from .connecting import connect
from .live import show
from .plainly import plainly
from .printing import OUT, STYLES, cell, column, table, wrapped
from .values import POSITIVE_SECONDS

T = TypeVar("T")
Look: TypeAlias = dict[str, Any]

INDENT = " " * 6
PATIENCE = 5.0  # seconds for an answer
NARROW = {"delayed": 3, "blocked": 4, "kept": 5}  # states, and when their columns are left out


@click.command()
@click.option("-m", "--match", default="", help="Only queues with this text in their names.")
@click.option("-i", "--interval", type=POSITIVE_SECONDS, default=2.0, show_default=True, help="Seconds between looks.")
@click.option("--once", is_flag=True, help="Look once.")
@click.pass_obj
@plainly
def top(dsn: str | None, match: str, interval: float, once: bool) -> None:
    """Show the faults, in words with the remedy, and the queues: live, until Ctrl-C.

    It has the words and the numbers of the dashboard's overview. While the database is away it says so, and shows the
    last state that it read.
    """
    with connect(dsn) as client:
        if once:
            for line in _lines(_look(client, match)):
                click.echo(line, color=True)  # without colour there are no escape sequences in it
        else:
            show(_looks(client, match, interval))


def _looks(client: Client, match: str, interval: float) -> Iterator[Sequence[str]]:
    """The lines of each look. The first one raises if the database does not answer."""
    lines = _lines(_look(client, match))
    while True:
        due = time.monotonic() + interval  # looks that were missed are not made up for
        yield lines
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            lines = _lines(_look(client, match))
        except ClosedError:
            raise
        except (Error, psycopg.Error) as error:
            yield [*_away(error), "", *lines]
        else:
            yield lines


def _look(client: Client, match: str) -> Look:
    """The overview, whose coroutine awaits only `read`, which returns at once."""

    async def read(call: Call[T], times: float = 1.0) -> T:
        return client.shell.run(call, within=PATIENCE)

    look = overview(read, match)
    try:
        look.send(None)
    except StopIteration as done:
        found: Look = done.value
        return found
    raise RuntimeError("the overview waits for something")


def _away(error: Exception) -> list[str]:
    said = printable.line(" ".join(str(error).split()) or type(error).__name__)
    return [OUT.styled(f"The database does not answer: {said}", STYLES["bad"]), "This is what was seen last."]


def _lines(look: Look) -> list[str]:
    lines = [line for finding in look["findings"] for line in _of_finding(**finding)]
    if not lines:
        lines = _graded("ok", ALL_WELL)
    for part, heading in HEADINGS.items():
        if look[part]:
            lines += ["", f"{heading}:"]
            for one in look[part]:
                lines += wrapped(f"{printable.line(one['queue'])}: {_of_reasons(one['reasons'])}", "  ")
    lines += ["", *_queues(look["queues"])]
    return (
        [*lines, *wrapped(f"There are more than {PAGE} queues: --match shows those of a name.")]
        if look["more"]
        else lines
    )


def _of_finding(check: Check, words: Words, names: Mapping[str, str]) -> Iterator[str]:
    yield from _graded(check.status, printable.line(words.said))
    yield from wrapped(_amount(check) + (f": {printable.line(check.detail)}" if check.detail else ""), INDENT)
    if words.remedy:
        yield from wrapped(printable.line(filled(words.remedy, names)), INDENT)


def _graded(status: str, said: str) -> list[str]:
    """A sentence behind its grade, which is coloured."""
    grade = GRADES[status]
    first, *others = wrapped(f"{grade}  {said}")
    return [OUT.styled(grade, STYLES[status]) + first.removeprefix(grade), *(INDENT + other for other in others)]


def _amount(check: Check) -> str:
    if check.unit in ("s", "seconds"):
        return duration(check.value) if check.value < float("inf") else "for ever"
    return f"{figure(check.value)} {check.unit.removesuffix('s') if check.value == 1 else check.unit}"


def _of_reasons(reasons: Sequence[Row]) -> str:
    said = [f"{_because(one)} {filled(one['words'].remedy, one['names'])}" for one in reasons]
    return printable.line(" ".join(" ".join(said).split())) or "nothing is known to hold it up."


def _because(one: Row) -> str:
    said, detail = str(one["words"].said), str(one["detail"] or "")
    return f"{said.removesuffix('.')}: {detail.removesuffix('.')}." if detail else said


def _queues(rows: Sequence[Row]) -> list[str]:
    columns = [
        column("QUEUE", folds=True),
        *(column(state.upper(), NARROW.get(state, 0), style=_counted(state)) for state in STATES),
        column("OLDEST", 2, shown=duration, right=False),
        column("PUT/s", 1, plain=cell, shown=figure),
        column("DONE/s", 1, plain=cell, shown=figure),
        column("EMPTY IN", 6, shown=duration, right=False),
    ]
    return (
        table(columns, [_row(row) for row in rows], "`pgqueue stats --json` shows all")
        if rows
        else ["There is no queue."]
    )


def _counted(state: str) -> Any:
    return lambda number: STYLES.get(state, "") if number else "dim"


def _row(row: Row) -> list[Any]:
    marks = [word for word, on in (("paused", row["paused_until"]), ("draining", row["draining"])) if on]
    name = f"{row['queue']} ({', '.join(marks)})" if marks else row["queue"]
    return [
        name,
        *(row[state] for state in STATES),
        *(row[key] for key in ("oldest", "puts", "done_rate", "drained_in")),
    ]
