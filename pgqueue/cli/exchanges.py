"""`pgqueue exchanges` and `pgqueue bindings`: where what is published goes."""

from __future__ import annotations

from dataclasses import asdict

import click

from .. import Client
from .plainly import plainly
from .printing import column, echo_all
from .values import QUEUE, json_lines


@click.command()
@json_lines
@click.pass_obj
@plainly
def exchanges(dsn: str | None, as_json: bool) -> None:
    """List the exchanges, with how many bindings and retained messages each has."""
    with Client(dsn) as client:
        found = client.exchanges.list()
    columns = (
        column("EXCHANGE", folds=True),
        "TYPE",
        column("DURABLE", 3),
        "BINDINGS",
        column("RETAINED", 1),
        column("CREATED", 2),
    )
    echo_all(
        found, as_json, asdict, columns, lambda e: (e.name, e.type, e.durable, e.bindings, e.retained, e.created_at)
    )


@click.command()
@click.option("-e", "--exchange", help="Only the bindings of this exchange.")
@click.option("-q", "--queue", type=QUEUE, help="Only the bindings of this queue.")
@json_lines
@click.pass_obj
@plainly
def bindings(dsn: str | None, exchange: str | None, queue: str | None, as_json: bool) -> None:
    """List the bindings: which queue gets what is published to which exchange under which key."""
    with Client(dsn) as client:
        found = client.exchanges.bindings(exchange, queue)
    echo_all(
        found,
        as_json,
        asdict,
        [column(name, folds=True) for name in ("EXCHANGE", "KEY", "QUEUE")],
        lambda b: (b.exchange, b.key, b.queue),
    )
