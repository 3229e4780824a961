"""The commands for exchanges and their bindings, and `pgqueue publish`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from .asking import confirm
from .connecting import connect
from .plainly import nothing, plainly
from .printing import column, echo_all
from .values import JSON, MOMENT, POSITIVE_SECONDS, PRIORITY, QUEUE, SECONDS, TASK, json_lines, yes


@click.command()
@json_lines
@click.pass_obj
@plainly
def exchanges(dsn: str | None, as_json: bool) -> None:
    """List the exchanges: how many bindings and retained messages each has, and how many matched no binding."""
    with connect(dsn) as client:
        found = client.exchanges.list()
    columns = (
        column("EXCHANGE", folds=True),
        "TYPE",
        column("DURABLE", 3),
        "BINDINGS",
        column("RETAINED", 1),
        "UNMATCHED",
        column("CREATED", 2),
    )
    echo_all(
        found,
        as_json,
        asdict,
        columns,
        lambda e: (e.name, e.type, e.durable, e.bindings, e.retained, e.unmatched, e.created_at),
    )


@click.command()
@click.option("-e", "--exchange", help="Only the bindings of this exchange.")
@click.option("-q", "--queue", type=QUEUE, help="Only the bindings of this queue.")
@json_lines
@click.pass_obj
@plainly
def bindings(dsn: str | None, exchange: str | None, queue: str | None, as_json: bool) -> None:
    """List the bindings: the queue that gets the messages published to an exchange under a key."""
    with connect(dsn) as client:
        found = client.exchanges.bindings(exchange, queue)
    echo_all(
        found,
        as_json,
        asdict,
        [column(name, folds=True) for name in ("EXCHANGE", "KEY", "QUEUE")],
        lambda b: (b.exchange, b.key, b.queue),
    )


@click.command("create-exchange")
@click.argument("exchange")
@click.option(
    "--type",
    "kind",
    type=click.Choice(["direct", "fanout", "topic", "mqtt"]),
    default="direct",
    show_default=True,
    help="How keys match.",
)
@click.pass_obj
@plainly
def create_exchange(dsn: str | None, exchange: str, kind: str) -> None:
    """Create EXCHANGE, unless it exists already with this type."""
    with connect(dsn) as client:
        client.exchanges.declare(exchange, kind)


@click.command("delete-exchange")
@click.argument("exchange")
@yes
@click.pass_obj
@plainly
def delete_exchange(dsn: str | None, exchange: str, yes: bool) -> None:
    """Delete EXCHANGE with its bindings and retained messages."""
    with connect(dsn) as client:
        confirm(f"Delete the exchange {exchange} with its bindings and retained messages?", yes)
        client.exchanges.delete(exchange)


@click.command()
@click.argument("queue", type=QUEUE)
@click.argument("exchange")
@click.argument("key", default="")
@click.pass_obj
@plainly
def bind(dsn: str | None, queue: str, exchange: str, key: str) -> None:
    """Let QUEUE have the tasks that are published to EXCHANGE under a key that matches KEY. Both must exist."""
    with connect(dsn) as client:
        client.exchanges.bind(queue, exchange, key)


@click.command()
@click.argument("queue", type=QUEUE)
@click.argument("exchange")
@click.argument("key", default="")
@click.pass_obj
@plainly
def unbind(dsn: str | None, queue: str, exchange: str, key: str) -> None:
    """Remove the binding of QUEUE to EXCHANGE under KEY. Exit code 3 if there is none."""
    with connect(dsn) as client:
        if not client.exchanges.unbind(queue, exchange, key):
            nothing()


@click.command()
@click.argument("exchange")
@click.argument("key")
@click.argument("data", type=JSON)
@click.option("--mandatory", is_flag=True, help="Fail if no queue is bound with a matching key.")
@click.option("--retain", is_flag=True, help="Keep it as the last message of KEY, for queues that are bound later.")
@click.option("--priority", type=PRIORITY, help="The lowest is taken first.")
@click.option("--delay", type=SECONDS, help="Seconds until the tasks are ready.")
@click.option("--at", "run_at", type=MOMENT, help="When they are ready, as 2030-01-31T08:00:00Z; not with --delay.")
@click.option("--ttr", type=POSITIVE_SECONDS, help="Time to run, seconds.")
@click.option("--ttl", type=POSITIVE_SECONDS, help="Time to live, seconds.")
@click.pass_obj
@plainly
def publish(
    dsn: str | None, exchange: str, key: str, data: Any, run_at: datetime | None, delay: float | None, **options: Any
) -> None:
    """Put a task with DATA into each queue that is bound to EXCHANGE with a key that matches KEY.

    DATA is JSON. Prints the number of queues; it is 0 if none is bound. The exchange '' is the queue named KEY.
    """
    if run_at is not None and delay is not None:
        raise click.UsageError("give --delay or --at, not both")
    with connect(dsn) as client:
        click.echo(client.exchanges.publish(exchange, key, data, run_at=run_at, delay=delay, **options))


@click.command()
@click.argument("id", type=TASK)
@json_lines
@click.pass_obj
@plainly
def deaths(dsn: str | None, id: int, as_json: bool) -> None:
    """List the queues in which the dead letter ID died, the last death first."""
    with connect(dsn) as client:
        found = client.exchanges.deaths(id)
    echo_all(
        found, as_json, asdict, ("QUEUE", "REASON", "COUNT", "TIME"), lambda d: (d.queue, d.reason, d.count, d.time)
    )
