"""The output: one JSON object a line for scripts, plain columns for people."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click

from .._calls.attempts import Attempt
from .._records.task import TaskRecord
from .._values import printable
from .._values.marked import written
from ..terminal import Column, Console, Table, ago, drawn

T = TypeVar("T")

OUT = Console()
STYLES = {  # of states: of tasks, batches, workers and checks
    "ready": "green",
    "delayed": "cyan",
    "taken": "yellow",
    "buried": "red",
    "blocked": "magenta",
    "done": "dim",
    "failed": "red",
    "cancelled": "dim",
    "open": "yellow",
    "active": "green",
    "draining": "yellow",
    "running": "green",
    "stopping": "yellow",
    "ok": "green",
    "warn": "yellow",
    "bad": "bold red",
}

IDS = {"ID", "TASK", "FAILED TASK"}  # headings of numbers that are typed again: 1234, where a count is 1,234
CELL = 60  # characters of data or of an error in a table: `peek` and --json show all of it


def echo(values: Mapping[str, Any], text: str, as_json: bool) -> None:
    """Print one line, and flush it for a program that reads line by line: the values as JSON, or the text."""
    click.echo(compact(values) if as_json else text)


def echo_json(values: Mapping[str, Any]) -> None:
    """Print the values as echo() does with `as_json`."""
    click.echo(compact(values))


def compact(value: Any) -> str:
    """JSON on one line, which no terminal obeys; times in ISO 8601, bytes in base64 (_values/marked.py)."""
    return printable.json_text(json.dumps(value, ensure_ascii=False, default=_as_json))


def _as_json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else written(value)


def document(value: Any) -> str:
    """JSON as compact() gives it; if it is wider than a terminal, with a line for each member."""
    text = compact(value)
    if not OUT.terminal or len(text) <= OUT.width or not isinstance(value, dict | list):
        return text
    members = map(compact, value) if isinstance(value, list) else (f"{compact(k)}: {compact(value[k])}" for k in value)
    return f"{text[0]}\n" + ",\n".join(f"  {one}" for one in members) + f"\n{text[-1]}"


def as_dict(task: TaskRecord) -> dict[str, Any]:
    """The keys that --json prints for a task."""
    return {
        "id": task.id,
        "queue": task.queue,
        "state": task.state,
        "priority": task.priority,
        "attempts": task.attempts,
        "run_at": task.run_at,
        "buried_at": task.buried_at,
        "deadline": task.deadline,
        "holder": task.holder,
        "error": task.error,
        "lane": task.lane,
        "key": task.key,
        "data": task.data,
    }


def echo_all(
    found: Iterable[T],
    as_json: bool,
    values: Callable[[T], Mapping[str, Any]],
    columns: Sequence[Column | str],
    row: Callable[[T], Sequence[Any]],
) -> None:
    """Print a list: each as a line of JSON with its values, or all as a table with a row for each."""
    if as_json:
        for one in found:
            echo_json(values(one))
    else:
        echo_table(columns, map(row, found))


def echo_table(columns: Sequence[Column | str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table: fitted to a terminal, plain elsewhere."""
    for line in table(columns, rows):
        click.echo(line, color=True)  # without colour there are no escape sequences in it


def table(columns: Sequence[Column | str], rows: Iterable[Sequence[Any]], more: str = "--json shows all") -> list[str]:
    """The lines of a table, as echo_table() prints them.

    A string is a column that is always shown. A long text in it is folded, and an id is not. `more`: how to see columns
    that are left out.
    """
    every = [one if isinstance(one, Column) else column(one, folds=one not in IDS) for one in columns]
    return drawn(Table(every, [tuple(row) for row in rows], more), OUT)


def column(
    heading: str,
    spare: int = 0,
    *,
    folds: bool = False,
    plain: Callable[[Any], str] | None = None,
    shown: Callable[[Any], str] | None = None,
    style: Callable[[Any], str] | None = None,
    right: bool | None = None,
) -> Column:
    """A column of a table, with cell() and readable() as the texts of a value; see terminal.Column."""
    for_people = cell if heading in IDS else readable
    return Column(heading, spare, folds, plain or cell, shown or plain or for_people, style, right)


def state_column(heading: str = "STATE", spare: int = 0) -> Column:
    """A column of states, each in its colour."""
    return column(heading, spare, style=lambda state: STYLES.get(state, ""))


def echo_task(task: TaskRecord, as_json: bool) -> None:
    """Print a task: JSON, or for people one name and value a line, without empty values."""
    values = as_dict(task)
    if as_json:
        echo_json(values)
        return
    shown = {name: value for name, value in values.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        style = STYLES.get(value, "") if name == "state" else "red" if name == "error" else ""
        text = OUT.styled(when(value) if OUT.terminal and isinstance(value, datetime) else cell(value), style)
        click.echo(f"{OUT.styled(f'{name:<{width}}', 'dim')}  {text}", color=True)


def echo_attempt(attempt: Attempt) -> None:
    """Print a failed attempt for people: a line about it, and its traceback."""
    began = "" if attempt.began_at is None else f" after {(attempt.ended_at - attempt.began_at).total_seconds():.3f} s"
    said = f"attempt {attempt.number}  {attempt.state} at {cell(attempt.ended_at)}{began}"
    click.echo(f"{said}, by {cell(attempt.worker)}: {cell(attempt.error)}")
    if attempt.traceback:
        click.echo(printable.multiline(attempt.traceback))


def cell(value: Any) -> str:
    """A value as one line that no terminal obeys."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.astimezone().isoformat(" ", "seconds")
    if isinstance(value, str):
        return printable.line(value)
    return printable.readable(value) if isinstance(value, bytes | dict | list) else compact(value)


def when(at: datetime) -> str:
    """A time for people, with how long ago that was by this machine's clock: `2030-01-31 08:00:00 (3 min ago)`."""
    return f"{readable(at)} ({ago((datetime.now(at.tzinfo) - at).total_seconds())})"


def readable(value: Any) -> str:
    """A value as one line for people: a time of this machine's zone without the offset, and `yes` or `no`."""
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else cell(value)


def cut(text: str | None) -> str | None:
    """The beginning of a text that may be long."""
    return text if text is None or len(text) <= CELL else text[: CELL - 1] + "…"


def wrapped(text: str, indent: str = "") -> list[str]:
    """A sentence as a line behind an indentation; on a terminal as lines that break between words."""
    if not OUT.terminal:
        return [indent + text]
    return textwrap.wrap(
        text, OUT.width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def flush() -> None:
    """Flush standard output: the caller's next step relies on it."""
    if sys.stdout is not None:  # None after `>&-`
        sys.stdout.flush()
