"""`pgqueue migrate`"""

from __future__ import annotations

import sys

import click

from .._engine import dsn
from ..terminal import Progress
from .grouping import Group
from .plainly import plainly


@click.group(cls=Group)
def migrate() -> None:
    """Upgrade or downgrade the schema `pgqueue`."""


@migrate.command()
@click.option("--revision", default="head", show_default=True, help="The revision to end at.")
@click.option(
    "--server",
    type=click.IntRange(1, 1023),
    help="The number of this server, one of several. It is given before the first put, and stays.",
)
@click.pass_obj
@plainly
def up(given: str | None, revision: str, server: int | None) -> None:
    """Install or upgrade the schema, and print the steps. Several processes may run it at once."""
    from .. import migrate as migrations

    conninfo = dsn.resolve(given)
    before = migrations.status(conninfo).current
    with Progress("upgrading the schema", unit=""):
        migrations.up(conninfo, revision=revision, server=server)
    after = migrations.status(conninfo).current
    if before == after:
        click.echo(f"schema pgqueue stays at version {after}; its functions and views were made again")
    elif before is None:
        click.echo(f"created schema pgqueue at version {after}")
    else:
        click.echo(f"upgraded schema pgqueue from version {before} to {after}")
    if server is not None:
        click.echo(f"this is server {server}")


@migrate.command()
@click.option("--revision", default="-1", show_default=True, help="-1: one step; base: everything.")
@click.option("--force", is_flag=True, help="Downgrade even if tasks are lost.")
@click.pass_obj
@plainly
def down(given: str | None, revision: str, force: bool) -> None:
    """Downgrade the schema, and print the steps. Refuses if tasks would be lost."""
    from .. import migrate as migrations

    conninfo = dsn.resolve(given)
    before = migrations.status(conninfo).current
    with Progress("downgrading the schema", unit=""):
        migrations.down(conninfo, revision=revision, force=force)
    after = migrations.status(conninfo).current
    if after is None:
        click.echo(f"removed schema pgqueue, which was at version {before}")
    else:
        click.echo(f"downgraded schema pgqueue from version {before} to {after}")


@migrate.command()
@click.pass_obj
@plainly
def status(given: str | None) -> None:
    """Compare the schema with this library; exit code 1 if it does not fit."""
    from .. import migrate as migrations

    found = migrations.status(dsn.resolve(given))
    click.echo(found)
    sys.exit(0 if found.state == "up to date" else 1)


@migrate.command()
@click.option(
    "--revision", default="head", show_default=True, help="The revision to end at; FROM:TO to begin at another one."
)
@click.option("--down", "downwards", is_flag=True, help="Print the downgrade FROM:TO.")
@plainly
def sql(revision: str, downwards: bool) -> None:
    """Print the SQL that `up` would run, for review or for psql. Needs no database."""
    from .. import migrate as migrations

    click.echo(migrations.sql(revision, down=downwards))
