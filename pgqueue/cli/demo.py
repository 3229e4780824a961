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
@click.option("--kill/--no-kill", default=True, help="Kill one worker meanwhile, and start another.")
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=8, show_default=True, help="How long to work, at least."
)
@click.option("--dsn", "own_dsn", help="As the option of `pgqueue` itself.")
@click.pass_obj
@plainly
def demo(dsn: str | None, folder: Path | None, workers: int, kill: bool, seconds: float, own_dsn: str | None) -> None:
    """Show what pgqueue does, in about 15 seconds.

    Every file of a folder is a task. Worker processes digest the files, one of them is killed, other workers do its
    tasks, and the result is checked. Exit code 1: the check failed, or no worker could be killed.
    """
    from .. import demo as demonstration
    from ..demo.files import standard_library

    sys.exit(0 if demonstration.run(folder or standard_library(), workers, kill, seconds, own_dsn or dsn) else 1)
