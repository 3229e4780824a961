"""`pgqueue demo`"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .plainly import plainly


@click.command()
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Default: the running Python's standard library.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes.")
@click.option("--kill/--no-kill", default=True, help="Kill one worker during it, and start another.")
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=8, show_default=True, help="How long to work, at least."
)
@click.option(
    "--nodes",
    type=click.IntRange(2, 8),
    help="Run on so many embedded servers, and kill a server in place of a worker. Each has one worker process.",
)
@click.option("--dsn", "own_dsn", help="As the option of `pgqueue` itself.")
@click.pass_obj
@plainly
def demo(
    dsn: str | None,
    folder: Path | None,
    workers: int,
    kill: bool,
    seconds: float,
    nodes: int | None,
    own_dsn: str | None,
) -> None:
    """Show what pgqueue does, in about 15 seconds.

    Every file of a folder is a task. Worker processes digest the files, one of them is killed, other workers do its
    tasks, and the result is checked. Exit code 1: the check failed, or no worker could be killed.
    """
    from .. import demo as demonstration
    from ..demo.files import standard_library

    given = folder or standard_library()
    if nodes is None:
        sys.exit(0 if demonstration.run(given, workers, kill, seconds, own_dsn or dsn) else 1)
    if own_dsn or dsn:
        raise click.UsageError("--nodes starts servers of its own, so it goes without --dsn")
    sys.exit(0 if demonstration.run_cluster(given, nodes, kill, seconds) else 1)
