"""`pgqueue status`: a value under a key, and waiting until it is as wanted."""

from __future__ import annotations

from typing import Any

import click

from .connecting import connect
from .grouping import Group
from .plainly import nothing, plainly
from .printing import document, echo
from .values import JSON, POSITIVE_SECONDS, json_lines, timeout

NAME = click.argument("key")


@click.group(cls=Group)
def status() -> None:
    """Read, set and delete the status of a key, or wait for it. A status is a JSON value."""


@status.command()
@NAME
@json_lines
@click.pass_obj
@plainly
def get(dsn: str | None, key: str, as_json: bool) -> None:
    """Print the status of KEY. Exit code 3 if it has none."""
    with connect(dsn) as client:
        value = client.statuses.get(key)
    if value is None:
        nothing()
    _echo(key, value, as_json)


@status.command("set")
@NAME
@click.argument("value", type=JSON)
@click.option("--ttl", type=POSITIVE_SECONDS, help="Seconds after which the status ends. Default: never.")
@click.option("--if-absent", is_flag=True, help="Only if KEY has no status. Exit code 3 if it has one.")
@click.pass_obj
@plainly
def set_(dsn: str | None, key: str, value: Any, ttl: float | None, if_absent: bool) -> None:
    """Set the status of KEY to VALUE, for example `pgqueue status set page '"converted"'`."""
    if value is None:
        raise click.UsageError("a status cannot be null: `pgqueue status delete` removes it")
    with connect(dsn) as client:
        if not client.statuses.set(key, value, ttl=ttl, if_absent=if_absent):
            nothing()


@status.command()
@NAME
@click.argument("value", type=JSON, required=False)
@timeout
@json_lines
@click.pass_obj
@plainly
def wait(dsn: str | None, key: str, value: Any, timeout: float | None, as_json: bool) -> None:
    """Wait until the status of KEY is VALUE, by default any value, and print it. Exit code 3 if it was not in time."""
    with connect(dsn) as client:
        try:
            found = client.statuses.wait(key, value, timeout)
        except TimeoutError:
            nothing()
    _echo(key, found, as_json)


@status.command()
@NAME
@click.pass_obj
@plainly
def delete(dsn: str | None, key: str) -> None:
    """Remove the status of KEY. Exit code 3 if it has none."""
    with connect(dsn) as client:
        if not client.statuses.delete(key):
            nothing()


def _echo(key: str, value: Any, as_json: bool) -> None:
    echo({"key": key, "value": value}, document(value), as_json)
