"""`pgqueue exchanges` and `pgqueue bindings`: where what is published goes."""

from __future__ import annotations

from dataclasses import asdict

import click

from .. import Client
from .plainly import plainly
from .printing import echo_json, table
from .values import QUEUE, json_lines


@click.command()
@json_lines
@click.pass_obj
@plainly
def exchanges(dsn: str | None, as_json: bool) -> None:
    """List the exchanges, with how many bindings and retained messages each has."""
    with Client(dsn) as client:
        found = client.exchanges.list()
    if as_json:
        for exchange in found:
            echo_json(asdict(exchange))
        return
    rows = [(e.name, e.type, e.durable, e.bindings, e.retained, e.created_at) for e in found]
    for line in table(("EXCHANGE", "TYPE", "DURABLE", "BINDINGS", "RETAINED", "CREATED"), rows):
        click.echo(line)


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
    if as_json:
        for binding in found:
            echo_json(asdict(binding))
        return
    rows = [(b.exchange, b.key, b.queue) for b in found]
    for line in table(("EXCHANGE", "KEY", "QUEUE"), rows):
        click.echo(line)
