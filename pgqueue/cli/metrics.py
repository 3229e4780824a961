"""`pgqueue metrics`"""

from __future__ import annotations

import sys
from contextlib import ExitStack

import click

from .. import Client
from .._engine import dsn as dsns
from .plainly import FAILED, Fault, plainly
from .stopping import until_signal
from .values import POSITIVE_SECONDS, QUEUE


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=9187, show_default=True, help="0: any free port.")
@click.option("--queue", "queues", type=QUEUE, multiple=True, help="Only this queue; can be repeated. Default: all.")
@click.option(
    "--timeout", type=POSITIVE_SECONDS, default=5.0, show_default=True, help="Seconds to wait for the database."
)
@click.option("--once", is_flag=True, help="Print the metrics instead; exit code 1 if the database does not answer.")
@click.pass_obj
@plainly
def metrics(dsn: str | None, host: str, port: int, queues: tuple[str, ...], timeout: float, once: bool) -> None:
    """Serve metrics of the queues to Prometheus, at /metrics, until SIGTERM or SIGINT; print the URL.

    They are read at each scrape. While the database is away, pgqueue_up is 0.
    """
    try:
        from ..monitors.prometheus import PgqueueCollector
        from ..monitors.serving import PATH, serving
    except ImportError as error:
        raise Fault(str(error)) from error

    with Client(dsns.resolve(dsn), connect_timeout=timeout) as client:
        collector = PgqueueCollector(client, queues or None, timeout=timeout)
        if once:
            text = collector.text()
            click.echo(text, nl=False)
            sys.exit(0 if b"\npgqueue_up 1.0\n" in text else FAILED)
        with ExitStack() as stack:
            try:
                listening = stack.enter_context(serving(collector, host, port))
            except OSError as error:
                raise Fault(f"cannot listen at {host}:{port}: {error.strerror}") from error
            click.echo(f"serving on http://{f'[{host}]' if ':' in host else host}:{listening}{PATH}")
            until_signal()
