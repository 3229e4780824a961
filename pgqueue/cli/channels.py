"""`pgqueue wait`, `post` and `subscribe`."""

from __future__ import annotations

import itertools
import sys

import click

from .._values import printable
from .connecting import connect
from .plainly import WRONG, Fault, nothing, plainly
from .printing import echo
from .values import CHANNEL, COUNT, json_lines, timeout


@click.command()
@click.argument("channel", type=CHANNEL)
@timeout
@json_lines
@click.pass_obj
@plainly
def wait(dsn: str | None, channel: str, timeout: float | None, as_json: bool) -> None:
    """Print the next payload that is posted to CHANNEL. Exit code 3 if there was none in time.

    Control characters are printed as escapes, except line feeds and tabs; --json has the exact payload.
    """
    with connect(dsn) as client:
        try:
            payload = client.wait(channel, timeout)
        except TimeoutError:
            nothing()
    _echo(channel, payload, printable.multiline(payload), as_json)


@click.command()
@click.argument("channel", type=CHANNEL)
@click.argument("payload", default="")
@click.pass_obj
@plainly
def post(dsn: str | None, channel: str, payload: str) -> None:
    """Send PAYLOAD to all processes that wait on CHANNEL; with `-`, all of standard input."""
    if payload == "-":
        payload = _read()
    with connect(dsn) as client:
        client.post(channel, payload)


@click.command()
@click.argument("channel", type=CHANNEL)
@click.option("-n", "--count", type=COUNT, help="End after this number of payloads.")
@timeout
@json_lines
@click.pass_obj
@plainly
def subscribe(dsn: str | None, channel: str, count: int | None, timeout: float | None, as_json: bool) -> None:
    """Print each payload that is posted to CHANNEL from now on, one a line. Exit code 3 if there was none in time.

    Control characters and line feeds are printed as escapes; --json has the exact payload.
    """
    with connect(dsn) as client, client.subscribe(channel) as subscription:
        for _ in itertools.count() if count is None else range(count):
            try:
                payload = subscription.get(timeout)
            except TimeoutError:
                nothing()
            _echo(channel, payload, printable.line(payload), as_json)


def _read() -> str:
    if sys.stdin is None:
        raise click.UsageError("there is no standard input")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise Fault(f"standard input is not UTF-8: byte {error.start + 1}", WRONG) from None


def _echo(channel: str, payload: str, shown: str, as_json: bool) -> None:
    echo({"channel": channel, "payload": payload}, shown, as_json)
