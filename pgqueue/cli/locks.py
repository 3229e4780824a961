"""`pgqueue lock` and `elect`: a command that is run while a lock is held."""

from __future__ import annotations

import queue
import shutil
import sys

import click

from .._sync.elections import Election
from ..errors import LockLost, LockTimeout
from .connecting import connect
from .holding import Held
from .plainly import GONE, nothing, plainly
from .values import SECONDS, timeout

KILL_AFTER = 10.0  # seconds
COMMAND = click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
KILL = click.option(
    "--kill-after",
    type=SECONDS,
    default=KILL_AFTER,
    show_default=True,
    help="Seconds from the loss of the lock until COMMAND is killed, if it does not end by itself.",
)


@click.command()
@click.argument("name")
@COMMAND
@timeout
@click.option("--shared", is_flag=True, help="Share the lock with other shared locks.")
@KILL
@click.pass_obj
@plainly
def lock(
    dsn: str | None, name: str, command: tuple[str, ...], timeout: float | None, shared: bool, kill_after: float
) -> None:
    """Run COMMAND while the lock NAME is held; wait for the lock first. Exit code 3 if it was not granted in time.

    The exit code is that of COMMAND. PGQUEUE_FENCE in its environment is the fence of the lock. Signals are passed on.
    If the lock is lost, COMMAND gets SIGTERM, and the exit code is 4.

    \b
    pgqueue lock nightly -- ./report.sh            waits for its turn
    pgqueue lock nightly -t 0 -- ./report.sh       ends at once if another process has the lock
    """
    _known(command)
    held = Held(command, kill_after, f"the lock {name}")
    with connect(dsn) as client:
        try:
            with client.lock(name, timeout, shared=shared, on_lost=lambda _: held.lose()) as lock:
                code = held.run({"PGQUEUE_FENCE": lock.fence})
        except LockTimeout:
            nothing()
        except LockLost:  # lose() has printed why, unless the command ended before
            sys.exit(GONE if held.lost else code)
    sys.exit(GONE if held.lost else code)


@click.command()
@click.argument("name")
@COMMAND
@KILL
@click.pass_obj
@plainly
def elect(dsn: str | None, name: str, command: tuple[str, ...], kill_after: float) -> None:
    """Run COMMAND while this process is the one leader under NAME; wait until it is elected.

    When it is no longer the leader, COMMAND gets SIGTERM, and is run again at the next election. When COMMAND ends by
    itself, this process resigns, and ends with the exit code of COMMAND. PGQUEUE_FENCE in its environment is the fence.
    """
    _known(command)
    terms: queue.SimpleQueue[tuple[Held, int]] = queue.SimpleQueue()
    leading: list[Held] = []

    def gained(election: Election) -> None:
        leading[:] = [Held(command, kill_after, f"the leadership {name}")]
        terms.put((leading[0], election.fence))

    with connect(dsn) as client:
        client.dsn()  # connects: a campaign waits for an absent server; a DSN that is wrong is an error now
        with client.elect(name, gained, lambda _: leading[0].lose()):
            while True:
                held, fence = terms.get()
                code = held.run({"PGQUEUE_FENCE": fence})
                if held.told or not held.lost:  # a signal to end counts also if the leadership was lost by then
                    break
    sys.exit(code)


def _known(command: tuple[str, ...]) -> None:
    if shutil.which(command[0]) is None:
        raise click.BadParameter(f"there is no program {command[0]!r}", param_hint="'COMMAND'")
