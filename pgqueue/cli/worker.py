"""`pgqueue worker`, and how it finds its client."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from .. import AsyncClient, Client, Worker
from ..worker.handlers import describe
from ..worker.leaving import leaving
from .plainly import plainly

COUNT = click.IntRange(min=1)
SECONDS = click.FloatRange(min=0)


class _Grace(click.FloatRange):
    """Seconds, or `none` for no limit."""

    name = "seconds|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return None if value == "none" else super().convert(value, param, ctx)


GRACE = _Grace(min=0)


@click.command()
@click.argument("app", metavar="MODULE:CLIENT")
@click.option("-c", "--concurrency", type=COUNT, default=8, show_default=True, help="Handlers that run at once.")
@click.option("--max-attempts", type=COUNT, default=20, show_default=True, help="Failed attempts before a burial.")
@click.option(
    "--retry-delay", type=SECONDS, default=1.0, show_default=True, help="Seconds, doubled after each attempt."
)
@click.option("--time-limit", type=SECONDS, help="Seconds for a handler; then its attempt has failed. Default: none.")
@click.option(
    "--grace", type=GRACE, default="30", show_default=True, help="Seconds for handlers under way at a stop, or none."
)
@click.pass_obj
@plainly
def worker(dsn: str | None, app: str, **options: Any) -> None:
    """Run the handlers of MODULE:CLIENT until SIGTERM or SIGINT.

    CLIENT is a pgqueue.Client in MODULE, with handlers registered by @client.handler(queue). SIGHUP loads MODULE and
    its submodules again: the old code finishes the tasks under way.
    """
    if dsn:
        os.environ["PGQUEUE_DSN"] = dsn  # for a client that is made without one
    working = Worker(_load(app), load=lambda: _load_anew(app), **options)
    with leaving([working]):
        working.run()
    if isinstance(working.client, Client):
        working.client.close()


def _load(app: str) -> AsyncClient | Client:
    """The client that MODULE:CLIENT names, searched from the current directory."""
    path, _, name = app.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(path)
    except Exception as error:  # of any kind: the module's code raised it
        why = str(error) if isinstance(error, ImportError) else describe(error)
        raise click.BadParameter(f"{path} cannot be loaded: {why}", param_hint="MODULE:CLIENT") from error
    name = name or "client"
    found = getattr(module, name, None)
    if not isinstance(found, AsyncClient | Client):
        what = f"a {type(found).__name__}, not a Client" if hasattr(module, name) else "not there"
        raise click.BadParameter(f"{name} of {path} is {what}", param_hint="MODULE:CLIENT")
    return found


def _load_anew(app: str) -> AsyncClient | Client:
    """Load the client again, from the present files, in new modules: tasks under way go on in the old modules."""
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
