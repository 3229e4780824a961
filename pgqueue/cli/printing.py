"""The output: one JSON object a line for scripts, plain columns for people."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click

from .._calls.attempts import Attempt
from .._records.task import TaskRecord
from .._values import printable

T = TypeVar("T")

CELL = 60  # characters of data or of an error in a table: `peek` and --json show all of it


def echo(values: Mapping[str, Any], text: str, as_json: bool) -> None:
    """Print one line: the values as JSON, or the text."""
    click.echo(compact(values) if as_json else text)


def echo_json(values: Mapping[str, Any]) -> None:
    """Print a line of JSON and flush it, for a program that reads line by line."""
    click.echo(compact(values))


def compact(value: Any) -> str:
    """JSON on one line, which no terminal obeys; times in ISO 8601."""
    return printable.json_text(json.dumps(value, ensure_ascii=False, default=datetime.isoformat))


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
    headings: Sequence[str],
    row: Callable[[T], Sequence[Any]],
) -> None:
    """Print a list: each as a line of JSON with its values, or all as a table with a row for each."""
    if as_json:
        for one in found:
            echo_json(values(one))
    else:
        for line in table(headings, map(row, found)):
            click.echo(line)


def echo_task(task: TaskRecord, as_json: bool) -> None:
    """Print a task: JSON, or for people one name and value a line, without empty values."""
    values = as_dict(task)
    if as_json:
        echo_json(values)
        return
    shown = {name: cell(value) for name, value in values.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        click.echo(f"{name:<{width}}  {value}")


def echo_attempt(attempt: Attempt) -> None:
    """Print a failed attempt for people: a line about it, and its traceback."""
    began = "" if attempt.began_at is None else f" after {(attempt.ended_at - attempt.began_at).total_seconds():.3f} s"
    said = f"attempt {attempt.number}  {attempt.state} at {cell(attempt.ended_at)}{began}"
    click.echo(f"{said}, by {cell(attempt.worker)}: {cell(attempt.error)}")
    if attempt.traceback:
        click.echo(printable.multiline(attempt.traceback))


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Lines of aligned columns: numbers to the right, other values to the left."""
    every = [list(row) for row in rows]
    columns = zip(*every, strict=True) if every else [() for _ in headings]
    aligned = [_aligned(heading, column) for heading, column in zip(headings, columns, strict=True)]
    return ["  ".join(line).rstrip() for line in zip(*aligned, strict=True)]


def _aligned(heading: str, column: Sequence[Any]) -> list[str]:
    texts = [heading, *map(cell, column)]
    width = max(map(len, texts))
    align = str.rjust if any(isinstance(value, int | float) for value in column) else str.ljust
    return [align(text, width) for text in texts]


def cell(value: Any) -> str:
    """A value as one line that no terminal obeys."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.astimezone().isoformat(" ", "seconds")
    return printable.line(value) if isinstance(value, str) else compact(value)


def cut(text: str | None) -> str | None:
    """The beginning of a text that may be long."""
    return text if text is None or len(text) <= CELL else text[: CELL - 1] + "…"


def flush() -> None:
    """Flush standard output: the caller's next step relies on it."""
    if sys.stdout is not None:  # None after `>&-`
        sys.stdout.flush()


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def screen() -> tuple[int, int]:
    """Columns and lines of the terminal."""
    size = shutil.get_terminal_size()
    return size.columns, size.lines
