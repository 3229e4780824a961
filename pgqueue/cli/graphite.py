"""`pgqueue graphite`"""

from __future__ import annotations

from typing import get_args
from urllib.parse import urlsplit

import click

from .. import Client
from ..monitors.graphite import USUAL, GraphiteReporter, Key
from ..monitors.links import PORT
from .plainly import plainly
from .stopping import until_signal
from .values import POSITIVE_SECONDS, QUEUE, Checked


def _address(text: str) -> tuple[str, int]:
    """Host and port from HOST, HOST:PORT or [IPv6]:PORT."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is not HOST[:PORT]: {error}") from None
    if not host or parts.netloc != text or parts.username is not None:
        raise ValueError(f"{text!r} is not HOST[:PORT]")
    return host, PORT if port is None else port


@click.command()
@click.argument("server", metavar="HOST[:PORT]", type=Checked("server", _address))
@click.option("--udp", is_flag=True, help="Send one datagram a line, instead of using a TCP connection.")
@click.option("--prefix", default="pgqueue", show_default=True, help="The beginning of each path.")
@click.option("--interval", type=POSITIVE_SECONDS, default=1.0, show_default=True, help="Seconds between reports.")
@click.option("--queue", "queues", type=QUEUE, multiple=True, help="Only this queue; can be repeated. Default: all.")
@click.option(
    "--key",
    "keys",
    type=click.Choice(get_args(Key)),
    multiple=True,
    default=USUAL,
    show_default=True,
    help="A figure to report; can be repeated.",
)
@click.option("--elect", metavar="NAME", help="Of all processes with this name only an elected leader reports.")
@click.pass_obj
@plainly
def graphite(
    dsn: str | None,
    server: tuple[str, int],
    udp: bool,
    prefix: str,
    interval: float,
    queues: tuple[str, ...],
    keys: tuple[Key, ...],
    elect: str | None,
) -> None:
    """Report the lengths of queues to a Graphite server until SIGTERM or SIGINT.

    PORT is that of its plaintext protocol, 2003 by default.
    """
    host, port = server
    with Client(dsn) as client:
        client.state()  # fail now rather than in a thread
        reporter = GraphiteReporter(
            client,
            host,
            port,
            "udp" if udp else "tcp",
            prefix=prefix,
            interval=interval,
            queues=queues or None,
            keys=keys,
            elect=elect,
        )
        with reporter:
            until_signal()
