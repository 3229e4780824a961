"""`flask pgqueue ...`: the commands of `pgqueue`, on the database of the application; and a worker for its jobs."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
from flask import current_app
from flask.cli import AppGroup, with_appcontext

from ...cli import COMMANDS, log_to_stderr, main
from ...cli.plainly import plainly
from ...cli.worker import work
from ...cli.worker import worker as plain_worker
from .isolated import import_path

WITHOUT = {"completion", "demo", "server"}  # they do not use an application's database


class Commands(AppGroup):
    """A group that loads a command when it is used."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(COMMANDS.keys() - WITHOUT)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name == "worker":
            return worker
        return main.get_command(context, name) if name in COMMANDS.keys() - WITHOUT else None


@click.group("pgqueue", cls=Commands, context_settings=main.context_settings)
@click.option("-v", "--verbose", is_flag=True, help="Write a log to standard error.")
@with_appcontext
@click.pass_context
def commands(context: click.Context, verbose: bool) -> None:
    """The task queues of this application."""
    if verbose:  # else the application's own log is enough
        log_to_stderr(verbose)
    context.obj = current_app.extensions["pgqueue"].client.shell.settings.dsn


@with_appcontext
@click.pass_context
@plainly
def serve(context: click.Context, **options: Any) -> None:
    """Run the application's jobs and handlers until SIGTERM or SIGINT."""
    make = current_app.extensions["pgqueue"].extension.worker
    work(context, partial(make, app=import_path(context)), **options)


worker = click.Command(
    "worker",
    params=[option for option in plain_worker.params if isinstance(option, click.Option)],
    callback=serve,
    help=serve.__doc__,
)
