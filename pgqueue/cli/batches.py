"""`pgqueue batch`: batches and how far they are."""

from __future__ import annotations

import click

from .. import Client
from .._calls.flows import BatchInfo
from .plainly import plainly
from .printing import cell, cut, echo_json, table
from .values import json_lines


@click.command("batch")
@click.argument("id", type=click.IntRange(1), required=False)
@click.option("-n", "--limit", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="The most lines.")
@json_lines
@click.pass_obj
@plainly
def show_batches(dsn: str | None, id: int | None, limit: int, as_json: bool) -> None:
    """Show the newest batches and how far they are; or the batch ID, with its tasks that failed."""
    with Client(dsn) as client:
        found = client.batches.newest(limit) if id is None else [client.batches.get(id)]
        failures = [] if id is None else client.batches.failures(id)[:limit]
    if as_json:
        for batch in found:
            echo_json(batch.as_dict())
        for failure in failures:
            echo_json({"id": failure.id, "queue": failure.queue, "state": failure.state, "error": failure.error})
        return
    for line in table(("ID", "NAME", "STATE", "TOTAL", "DONE", "FAILED", "OPEN"), [_row(batch) for batch in found]):
        click.echo(line)
    if failures:
        click.echo()
        rows = [(f.id, cell(f.queue), f.state, cut(f.error or "")) for f in failures]
        for line in table(("FAILED TASK", "QUEUE", "STATE", "ERROR"), rows):
            click.echo(line)


def _row(batch: BatchInfo) -> tuple[object, ...]:
    return (batch.id, cut(batch.name or ""), batch.state, batch.total, batch.done, batch.failed, batch.open)
