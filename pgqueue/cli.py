"""The command `pgqueue`. Thin: it reads arguments, calls the library, and prints.

Exit codes: 0 done, 1 it failed (one line on standard error says why), 2 the command line is wrong.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import psycopg

from . import Client, Error, Worker, __version__, dsn
from .base import ClientBase
from .worker.handlers import describe

COUNT = click.IntRange(min=1)
SECONDS = click.FloatRange(min=0)


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """An error that the library or the server explains is a line for the user, not a traceback. Nor is `| head`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            try:
                return function(*args, **kwargs)
            finally:
                sys.stdout.flush()  # what is left for the interpreter's end fails there, with a complaint
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what the buffer still holds
            sys.exit(1)
        except (Error, ValueError, psycopg.Error) as error:
            raise click.ClickException(" ".join(str(error).split())) from error

    return wrapper


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--dsn", help="PostgreSQL URI or conninfo. Default: PGQUEUE_DSN, DATABASE_URL, the embedded server.")
@click.option("-v", "--verbose", is_flag=True, help="Log what happens to standard error.")
@click.version_option(__version__, prog_name="pgqueue")
@click.pass_context
def main(context: click.Context, dsn: str | None, verbose: bool) -> None:
    """A task queue that lives in the PostgreSQL you already run."""
    logging.basicConfig(level="INFO" if verbose else "WARNING", format="%(asctime)s %(levelname)s %(message)s")
    if not verbose:  # of a connection that Ctrl-C cut off in the middle of a call; what matters of it is told by us
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    context.obj = dsn


@main.command()
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Default: the running Python's standard library.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes.")
@click.option("--kill/--no-kill", default=True, help="Kill a worker in the middle, and start another.")
@click.option("--dsn", "own_dsn", help="As the option of `pgqueue` itself.")
@click.pass_obj
@plainly
def demo(dsn: str | None, folder: Path | None, workers: int, kill: bool, own_dsn: str | None) -> None:
    """Digest every file of a folder with worker processes, one of which is killed, and check the result."""
    from . import demo as demonstration
    from .demo.files import standard_library

    sys.exit(0 if demonstration.run(folder or standard_library(), workers, kill, own_dsn or dsn) else 1)


@main.command()
@click.argument("app", metavar="MODULE:CLIENT")
@click.option("-c", "--concurrency", type=COUNT, default=8, show_default=True, help="Handlers at once.")
@click.option("--max-attempts", type=COUNT, default=20, show_default=True, help="Then a failing task is buried.")
@click.option("--retry-delay", type=SECONDS, default=1.0, show_default=True, help="Seconds, doubled at each attempt.")
@click.pass_obj
@plainly
def worker(dsn: str | None, app: str, concurrency: int, max_attempts: int, retry_delay: float) -> None:
    """Run the handlers of MODULE:CLIENT until SIGTERM or SIGINT.

    CLIENT is a pgqueue.Client in MODULE, with handlers registered by @client.handler(queue). SIGHUP loads MODULE, and
    what lies below it, anew: tasks in hand are finished by the old code.
    """
    if dsn:
        os.environ["PGQUEUE_DSN"] = dsn  # for a client that is made without one
    working = Worker(
        _load(app),
        concurrency=concurrency,
        max_attempts=max_attempts,
        retry_delay=retry_delay,
        load=lambda: _load_anew(app),
    )
    working.run()
    if isinstance(working.client, Client):
        working.client.close()


@main.group()
def migrate() -> None:
    """Bring the schema `pgqueue` up or down."""


@migrate.command()
@click.option("--revision", default="head", show_default=True, help="Where to end.")
@click.pass_obj
@plainly
def up(given: str | None, revision: str) -> None:
    """Install or upgrade the schema. Safe when several run at once."""
    from . import migrate as migrations

    conninfo = dsn.resolve(given)
    migrations.up(conninfo, revision=revision)
    click.echo(migrations.status(conninfo))


@migrate.command()
@click.option("--revision", default="-1", show_default=True, help="-1: one step; base: everything.")
@click.option("--force", is_flag=True, help="Even if tasks are lost.")
@click.pass_obj
@plainly
def down(given: str | None, revision: str, force: bool) -> None:
    """Downgrade the schema. Refuses if tasks would be lost."""
    from . import migrate as migrations

    conninfo = dsn.resolve(given)
    migrations.down(conninfo, revision=revision, force=force)
    click.echo(migrations.status(conninfo))


@migrate.command()
@click.pass_obj
@plainly
def status(given: str | None) -> None:
    """Compare the schema with this library; exit code 1 if it does not fit."""
    from . import migrate as migrations

    found = migrations.status(dsn.resolve(given))
    click.echo(found)
    sys.exit(0 if found.state == "up to date" else 1)


@migrate.command()
@click.option("--revision", default="head", show_default=True, help="Where to end; FROM:TO to begin elsewhere.")
@click.option("--down", "downwards", is_flag=True, help="The downgrade FROM:TO.")
@plainly
def sql(revision: str, downwards: bool) -> None:
    """Print what `up` would run, for review or for psql. Needs no database."""
    from . import migrate as migrations

    click.echo(migrations.sql(revision, down=downwards))


@main.group()
def server() -> None:
    """The embedded PostgreSQL server."""


@server.command()
@plainly
def start() -> None:
    """Start it so that it stays until `stop`."""
    from . import embedded

    click.echo(embedded.start().dsn)


@server.command()
@plainly
def stop() -> None:
    """Stop it, even if it is in use."""
    from . import embedded

    click.echo("stopped" if embedded.stop() else "it was not running")


@server.command("status")
@plainly
def server_status() -> None:
    """Show where it is and who uses it; exit code 1 if it does not run."""
    from . import embedded

    found = embedded.status()
    users = "unknown" if found.users is None else ", ".join(map(str, found.users)) or "none"
    for name, value in {
        "running": f"yes, process {found.pid}" if found.running else "no",
        "kept": "until `pgqueue server stop`" if found.kept else "while somebody uses it",
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
    """Print its DSN; exit code 1 if it does not run."""
    from . import embedded

    found = embedded.status()
    if not found.running:
        raise click.ClickException("the embedded server does not run: `pgqueue server start`")
    click.echo(found.dsn)


def _load(app: str) -> ClientBase:
    """The client that MODULE:CLIENT names, as found from the current directory."""
    path, _, name = app.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(path)
    except Exception as error:  # whatever the module does wrong
        why = str(error) if isinstance(error, ImportError) else describe(error)
        raise click.BadParameter(f"{path} cannot be loaded: {why}", param_hint="MODULE:CLIENT") from error
    name = name or "client"
    found = getattr(module, name, None)
    if not isinstance(found, ClientBase):
        what = f"a {type(found).__name__}, not a Client" if hasattr(module, name) else "not there"
        raise click.BadParameter(f"{name} of {path} is {what}", param_hint="MODULE:CLIENT")
    return found


def _load_anew(app: str) -> ClientBase:
    """The same from the files as they are now. In new modules, since what is under way goes on in the old ones."""
    path = app.partition(":")[0]
    old = {name: module for name, module in sys.modules.items() if name == path or name.startswith(path + ".")}
    for name in old:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        return _load(app)
    except BaseException:
        sys.modules.update(old)
        raise


if __name__ == "__main__":
    main()
