"""`pgqueue server`"""

from __future__ import annotations

import sys

import click

from .grouping import Group
from .plainly import plainly


@click.group(cls=Group)
def server() -> None:
    """The embedded PostgreSQL server."""


@server.command()
@plainly
def start() -> None:
    """Start the embedded server, which then stays until `stop`."""
    from .. import embedded

    click.echo(embedded.start().dsn)


@server.command()
@plainly
def stop() -> None:
    """Stop the embedded server, even if it is in use."""
    from .. import embedded

    click.echo("stopped" if embedded.stop() else "it was not running")


@server.command("status")
@plainly
def server_status() -> None:
    """Show the server's directory and its users; exit code 1 if it does not run."""
    from .. import embedded

    found = embedded.status()
    users = "unknown" if found.users is None else ", ".join(map(str, found.users)) or "none"
    for name, value in {
        "running": f"yes, process {found.pid}" if found.running else "no",
        "kept": "until `pgqueue server stop`" if found.kept else "while a process uses it",
        "version": found.version,
        "data": found.data,
        "log": found.log,
        "users": users,
        "dsn": found.dsn or "-",
    }.items():
        click.echo(f"{name:<8} {value}")
    sys.exit(0 if found.running else 1)


@server.command("dsn")
@plainly
def server_dsn() -> None:
    """Print the server's DSN; exit code 1 if it does not run."""
    from .. import embedded

    found = embedded.status()
    if not found.running:
        raise click.ClickException("the embedded server does not run: `pgqueue server start`")
    click.echo(found.dsn)
