"""`pgqueue batch`: batches and how far they are."""

from __future__ import annotations

import click

from .._calls.flows import BatchInfo
from ..terminal import Column
from .connecting import connect
from .plainly import plainly
from .printing import cell, column, cut, echo_json, echo_table, state_column
from .values import json_lines


@click.command("batch")
@click.argument("id", type=click.IntRange(1), required=False)
@click.option("-n", "--limit", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="The most lines.")
@json_lines
@click.pass_obj
@plainly
def show_batches(dsn: str | None, id: int | None, limit: int, as_json: bool) -> None:
    """Show the newest batches and how far they are; or the batch ID, with its tasks that failed."""
    with connect(dsn) as client:
        found = client.batches.newest(limit) if id is None else [client.batches.get(id)]
        failures = [] if id is None else client.batches.failures(id)[:limit]
    if as_json:
        for batch in found:
            echo_json(batch.as_dict())
        for failure in failures:
            echo_json({"id": failure.id, "queue": failure.queue, "state": failure.state, "error": failure.error})
        return
    columns = ("ID", column("NAME", folds=True), state_column(), "TOTAL", "DONE", _failed_column(), "OPEN")
    echo_table(columns, map(_row, found))
    if failures:
        click.echo()
        rows = [(f.id, cell(f.queue), f.state, cut(f.error or "")) for f in failures]
        echo_table(("FAILED TASK", column("QUEUE", folds=True), state_column(), column("ERROR", folds=True)), rows)


def _failed_column() -> Column:
    return column("FAILED", style=lambda number: "red" if number else "dim")


def _row(batch: BatchInfo) -> tuple[object, ...]:
    return (batch.id, cut(batch.name or ""), batch.state, batch.total, batch.done, batch.failed, batch.open)
