"""`pgqueue completion`: the completion script of a shell, and the queue names that it completes."""

from __future__ import annotations

import os

import click
import psycopg
from click.shell_completion import get_completion_class

from .. import embedded
from .._calls.queue import queues
from .._engine import dsn
from .plainly import plainly

PATIENCE = 2  # seconds that the tab key may take


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
@plainly
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell. For example `source <(pgqueue completion bash)`."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "pgqueue", "_PGQUEUE_COMPLETE").source())


def queue_names(given: str | None, incomplete: str) -> list[str]:
    """The queue names that begin with `incomplete`; none if the database does not answer soon. Starts no server."""
    call = queues(incomplete, None, 100)
    conninfo = given or os.environ.get("PGQUEUE_DSN") or os.environ.get("DATABASE_URL")
    try:
        conninfo = conninfo or embedded.status().dsn
        if not conninfo:
            return []
        with psycopg.connect(dsn.plain(conninfo), autocommit=True, connect_timeout=PATIENCE) as conn:
            conn.execute(f"SET statement_timeout = '{PATIENCE}s'")
            return [info.name for info in call.read(conn.execute(call.sql, call.args).fetchall())]
    except Exception:  # of any kind: a traceback would be printed into the command line that is being typed
        return []
