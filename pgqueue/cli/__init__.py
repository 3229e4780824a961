"""The command `pgqueue`. It is thin: a command reads its arguments, calls the library, and prints.

Each command, or group of commands, has a file of its own, which is loaded when the command is used.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

import click

from .. import __version__
from .._values import printable
from .grouping import Group

#: The name of each command, and the module that has it.
COMMANDS = {
    "ack": "tasks",
    "alerts": "alerts",
    "alter": "managing",
    "audit": "audit",
    "batch": "batches",
    "beanstalkd": "beanstalkd",
    "bind": "exchanges",
    "bindings": "exchanges",
    "bury": "tasks",
    "cancel": "tasks",
    "cancel-all": "filtering",
    "changes": "changes",
    "cluster": "cluster",
    "completion": "completion",
    "create-exchange": "exchanges",
    "create-queue": "managing",
    "dashboard": "dashboard",
    "deaths": "exchanges",
    "delete": "tasks",
    "delete-all": "filtering",
    "delete-exchange": "exchanges",
    "delete-queue": "managing",
    "demo": "demo",
    "drain": "managing",
    "elect": "locks",
    "exchanges": "exchanges",
    "fail": "results",
    "finish": "results",
    "follow": "results",
    "forward": "tasks",
    "grant": "privileges",
    "graphite": "graphite",
    "group": "groups",
    "health": "looking",
    "history": "history",
    "job": "job",
    "jobs": "workers",
    "kick": "managing",
    "kick-all": "filtering",
    "kick-task": "tasks",
    "limit": "limits",
    "list": "looking",
    "lock": "locks",
    "metrics": "metrics",
    "migrate": "migrate",
    "nodes": "nodes",
    "outcome": "results",
    "pause": "managing",
    "peek": "tasks",
    "peek-next": "looking",
    "pop": "pop",
    "post": "channels",
    "privileges": "privileges",
    "progress": "results",
    "publish": "exchanges",
    "put": "put",
    "put-again": "tasks",
    "put-again-all": "filtering",
    "queues": "looking",
    "release": "tasks",
    "release-all": "filtering",
    "rename-queue": "managing",
    "requeue": "tasks",
    "restrict": "privileges",
    "result": "results",
    "results": "results",
    "resume": "managing",
    "revoke": "privileges",
    "schedule": "schedules",
    "server": "server",
    "stats": "stats",
    "status": "statuses",
    "subscribe": "channels",
    "take": "take",
    "task-stats": "tasks",
    "top": "top",
    "touch": "tasks",
    "truncate": "managing",
    "unbind": "exchanges",
    "wait": "channels",
    "worker": "worker",
    "workers": "workers",
}


INTERRUPTED = 130  # a shell's exit code for SIGINT

#: The sections of the help: a user's purpose, and the commands for it.
SECTIONS = {
    "Put and take tasks": ("put", "take", "pop", "ack", "release", "touch", "bury", "fail", "finish", "progress"),
    "See and change tasks": (
        "list",
        "peek",
        "peek-next",
        "kick",
        "kick-task",
        "cancel",
        "delete",
        "requeue",
        "forward",
        "release-all",
        "kick-all",
        "cancel-all",
        "delete-all",
        "put-again",
        "put-again-all",
        "task-stats",
        "outcome",
        "result",
        "results",
        "follow",
        "batch",
    ),
    "Queues": (
        "queues",
        "stats",
        "history",
        "create-queue",
        "alter",
        "rename-queue",
        "pause",
        "resume",
        "drain",
        "limit",
        "truncate",
        "delete-queue",
    ),
    "Workers, jobs and schedules": ("worker", "workers", "job", "jobs", "schedule"),
    "Channels and exchanges": (
        "wait",
        "post",
        "subscribe",
        "publish",
        "exchanges",
        "create-exchange",
        "delete-exchange",
        "bind",
        "unbind",
        "bindings",
        "deaths",
    ),
    "Coordination": ("lock", "elect", "nodes", "status", "group", "changes"),
    "Monitoring": ("dashboard", "top", "health", "audit", "metrics", "graphite", "alerts"),
    "Other protocols": ("beanstalkd",),
    "Server, schema and rights": ("migrate", "server", "cluster", "privileges", "grant", "revoke", "restrict"),
    "Getting started": ("demo", "completion"),
}


class Commands(Group):
    """A group that loads a command when it is used."""

    sections = SECTIONS

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"{__name__}.{COMMANDS[name]}")
        return next(found for found in vars(module).values() if isinstance(found, click.Command) and found.name == name)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*args, **options)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:  # while a command is loaded or its arguments are read; click would print "Aborted!"
            sys.exit(INTERRUPTED)
        except click.ClickException as error:  # of click: it quotes most of its arguments, and not all
            if isinstance(error, click.NoSuchOption) and any(error.option_name in one.opts for one in self.params):
                said = f"{error.option_name} stands before the command: `pgqueue {error.option_name} ... COMMAND`"
                raise click.UsageError(said, error.ctx) from error
            error.message = printable.multiline(error.message)  # type: ignore[misc]  # final in its annotation only
            raise


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--dsn", help="PostgreSQL URI or conninfo. Default: PGQUEUE_DSN, DATABASE_URL, the embedded server.")
@click.option("-v", "--verbose", is_flag=True, help="Write a log to standard error.")
@click.version_option(__version__, prog_name="pgqueue")
@click.pass_context
def main(context: click.Context, dsn: str | None, verbose: bool) -> None:
    """A task queue that lives in the PostgreSQL you already run.

    `pgqueue COMMAND --help` describes a command and its options. `pgqueue demo` shows in 15 seconds how it works.
    """
    log_to_stderr(verbose)
    context.obj = dsn


def log_to_stderr(verbose: bool) -> None:
    """Write the log of a command to standard error, unless the program has a log already."""
    logging.basicConfig(level="INFO" if verbose else "WARNING", format="%(asctime)s %(levelname)s %(message)s")
    if not verbose:  # psycopg's log of a call that Ctrl-C cut off; the command prints its own message
        logging.getLogger("psycopg").setLevel(logging.ERROR)
    for handler in logging.getLogger().handlers:  # for the logs of psycopg and of handlers; our own have the filter
        handler.addFilter(printable.one_line)


if "_PGQUEUE_COMPLETE" in os.environ:  # before click looks for the shell's class
    from .completion import register

    register()
