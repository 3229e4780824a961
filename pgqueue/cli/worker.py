"""`pgqueue worker`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import click

from .. import Client, Cluster, Worker
from .._engine.outages import COMING
from .._values import printable
from ..worker.health import address, answering
from ..worker.leaving import leaving
from ..worker.shares import read
from ..worker.supervisor import follow, own_line, supervise
from .applications import load, load_anew
from .plainly import plainly
from .values import QUEUE, Checked

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
@click.option(
    "-q", "--queue", "queues", type=QUEUE, multiple=True, help="Serve this queue; repeatable. Default: all of them."
)
@click.option("--exclude", type=QUEUE, multiple=True, help="Do not serve this queue; repeatable.")
@click.option("-c", "--concurrency", type=COUNT, default=8, show_default=True, help="Handlers that run at once.")
@click.option(
    "--share",
    "shares",
    type=Checked("queue=n", read),
    multiple=True,
    metavar="QUEUE=N",
    help="At most N handlers of this queue at once; repeatable. Default: all but one, of four or more.",
)
@click.option("--max-attempts", type=COUNT, default=20, show_default=True, help="Failed attempts before a burial.")
@click.option(
    "--retry-delay", type=SECONDS, default=1.0, show_default=True, help="Seconds, doubled after each attempt."
)
@click.option("--time-limit", type=SECONDS, help="Seconds for a handler; then its attempt has failed. Default: none.")
@click.option(
    "--grace", type=GRACE, default="30", show_default=True, help="Seconds for handlers under way at a stop, or none."
)
@click.option("--schedules/--no-schedules", default=True, help="Whether to fire schedules. Default: yes.")
@click.option("--spread", type=COUNT, metavar="K", help="Serve K of a cluster's servers. Default: all of them.")
@click.option("--soft-time-limit", type=SECONDS, help="Seconds until SoftTimeLimit is raised in a handler.")
@click.option("--max-child-tasks", type=COUNT, help="Tasks after which a process of isolated jobs is replaced.")
@click.option("--max-child-memory", type=COUNT, help="Bytes of memory after which it is replaced.")
@click.option("--processes", type=COUNT, help="Run so many worker processes, and start those again that die.")
@click.option("--health", metavar="[HOST:]PORT", help="Answer GET /live and /ready there. Default host: 127.0.0.1.")
@click.option("--quiet", is_flag=True, help="Do not say at the start what is served.")
@click.option("--check", is_flag=True, help="Import, connect, print what would be served, and exit with 0 or 1.")
@click.pass_context
@plainly
def worker(context: click.Context, app: str, **options: Any) -> None:
    """Run the jobs and handlers of MODULE:CLIENT until SIGTERM or SIGINT.

    CLIENT is a pgqueue.Client in MODULE, with functions registered by @client.job(...) or @client.handler(queue), or a
    pgqueue.Cluster likewise.
    SIGHUP loads MODULE and its submodules again: the old code finishes the tasks under way.
    """
    if context.obj:
        os.environ["PGQUEUE_DSN"] = context.obj  # for a client that is made without one
    work(context, lambda **given: Worker(load(app), load=lambda: load_anew(app), **given), **options)


def work(
    context: click.Context,
    make: Callable[..., Worker],
    *,
    processes: int | None,
    health: str | None,
    quiet: bool,
    check: bool,
    **options: Any,
) -> None:
    """Run the command with its options; `make` makes the worker. Also for the command of a framework."""
    place, line = _place(health), own_line()
    options["queues"], options["shares"] = options["queues"] or None, dict(options["shares"])
    silent = quiet or line is not None or _is_verbose(context)
    if processes is not None and line is None and not check:
        if not silent:
            at_once = options["concurrency"]
            click.echo(f"starting {processes} worker processes, each with {at_once} handlers at once", err=True)
        supervisor = supervise(processes, options["grace"])
        with answering(place, supervisor.report):
            code = supervisor.run()
        context.exit(code)
    working = make(**options)
    with _closing(working):
        if check:
            working.home.check()
            click.echo(f"would work on {working.banner()}")
            return
        with contextlib.suppress(*COMING):  # an absent server: run() waits for it
            working.home.conninfo(0)
        if not silent:
            click.echo(f"working on {printable.line(working.banner())}", err=True)
        with answering(place if line is None else None, working.report), leaving([working]):
            if line is not None:
                follow(line, working.report, working.stop)
            working.run()


def _is_verbose(context: click.Context | None) -> bool:
    """Whether -v was given, to `pgqueue` or to `flask pgqueue`."""
    while context is not None:
        if context.params.get("verbose"):
            return True
        context = context.parent
    return False


def _place(health: str | None) -> tuple[str, int] | None:
    try:
        return None if health is None else address(health)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--health") from None


@contextlib.contextmanager
def _closing(working: Worker) -> Iterator[None]:
    try:
        yield
    finally:
        if isinstance(working.client, Client | Cluster):
            working.client.close()
