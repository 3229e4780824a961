"""`pgqueue cluster`: the servers of a cluster, and the actions on all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click

from .. import Client
from .._calls.privileges import Verb
from .._engine import dsn as dsns
from .._engine.cluster import operating
from .._engine.cluster.moving import Moved
from .._values import arguments, printable
from ..terminal import Column, Progress
from .grouping import Group
from .plainly import FAILED, plainly
from .printing import column, echo_all, state_column
from .privileges import check_scope, give, of_a_grant
from .values import Checked, json_lines

NUMBER = click.IntRange(0, 1023)
DSN = Checked("dsn", lambda text: arguments.text(text, "a DSN"))


SECTIONS = {"Servers": ("status", "add", "drain", "move", "remove"), "All servers": ("migrate", "grant")}


class Sections(Group):
    """The commands of a cluster by purpose."""

    sections = SECTIONS


@click.group(cls=Sections)
def cluster() -> None:
    """Show and change the servers of a cluster. The --dsn before it is that of any of them."""


@cluster.command()
@json_lines
@click.pass_obj
@plainly
def status(given: str | None, as_json: bool) -> None:
    """List the servers: their state, tasks, versions of the schema and of the table. Exit code 1 if one has a problem.

    TABLE is the version of the server's copy of this table; clients use the newest. TIMELINE grows with each promotion
    of a standby. For the owner of the schema.
    """
    found = operating.status(dsns.resolve(given))
    columns: list[Column | str] = ["SERVER", state_column(), "HOME", column("TASKS", right=True), "SCHEMA"]
    columns += [column("TABLE", 2), column("TIMELINE", 3), column("DSN", 1, folds=True), column("PROBLEM", folds=True)]
    echo_all(found, as_json, operating.Status.as_dict, columns, _row)
    if any(one.problem for one in found):
        sys.exit(FAILED)


def _row(one: operating.Status) -> Sequence[object]:
    return (one.number, one.state, one.is_home, one.tasks, one.schema, one.copy, one.timeline, one.dsn, one.problem)


@cluster.command()
@click.argument("dsn", type=DSN)
@click.option("--listen-dsn", type=DSN, help="For what waits, if DSN leads through a transaction pooler.")
@click.option("--number", type=click.IntRange(1, 1023), help="Its number. Default: the one that it has, or the next.")
@click.pass_obj
@plainly
def add(given: str | None, dsn: str, listen_dsn: str | None, number: int | None) -> None:
    """Add the server at DSN: number it, install or upgrade its schema, and tell all servers. Prints its number.

    The first server that is added is the home server, which has locks, schedules and channels for all. A server that is
    in the cluster already gets another DSN. DSN must not have a password: see `Growing` in the guide.
    """
    with Progress("adding the server", unit=""):
        number, missed = operating.add(dsns.resolve(given), dsn, listen_dsn, number)
    click.echo(f"server {number} is in the cluster")
    _tell(missed)


@cluster.command()
@click.argument("number", type=NUMBER)
@click.option("--off", is_flag=True, help="End it: the server gets tasks again.")
@click.pass_obj
@plainly
def drain(given: str | None, number: int, off: bool) -> None:
    """Put no more tasks on server NUMBER that may be elsewhere. Takes work as before."""
    _tell(operating.drain(dsns.resolve(given), number, off))


@cluster.command()
@click.argument("queue", required=False)
@click.option("--from", "source", type=NUMBER, required=True, help="The server that has the tasks.")
@click.option(
    "--to", "targets", type=NUMBER, multiple=True, help="A server that gets some; may be repeated. Default: all active."
)
@click.pass_obj
@plainly
def move(given: str | None, queue: str | None, source: int, targets: tuple[int, ...]) -> None:
    """Move the tasks of QUEUE, or of all queues, from one server to others. Exit code 1 if some stay.

    Tasks stay that are taken, whose result a client awaits, that are in a batch or have dependencies, or that are in a
    lane with such a task: repeat the command once these have ended. Drain the server before, or new tasks arrive there.
    If the command is cut off, no task is lost; some may be done twice.
    """
    with Progress("moving", unit=" tasks") as progress:
        found = list(operating.move(dsns.resolve(given), source, targets, queue, progress.show))
    for name, done in found:
        click.echo(_moved(name, done))
    if any(done.staying for _, done in found):
        sys.exit(FAILED)


def _moved(queue: str, done: Moved) -> str:
    text = f"{queue}: {done.copied:,} moved"
    if done.met:
        text += f", {done.met:,} met a task with their key"
    if done.staying:
        text += f", {sum(done.staying.values()):,} stay: " + ", ".join(
            f"{n:,} {why}" for why, n in done.staying.items()
        )
    return printable.line(text)


@cluster.command()
@click.argument("number", type=NUMBER)
@click.option("--force", is_flag=True, help="Leave the tasks that it has, or a server that cannot be reached.")
@click.pass_obj
@plainly
def remove(given: str | None, number: int, force: bool) -> None:
    """Have clients leave server NUMBER, once it is drained and empty. Its number stays taken."""
    _tell(operating.remove(dsns.resolve(given), number, force))


@cluster.command()
@click.pass_obj
@plainly
def migrate(given: str | None) -> None:
    """Upgrade the schema of every server, the home server last. None is upgraded unless all can be reached."""
    for number, before, after in operating.migrate_all(dsns.resolve(given)):
        changed = f"upgraded from version {before} to {after}" if before != after else f"is at version {after}"
        click.echo(f"server {number} {changed}")


@cluster.command()
@of_a_grant
@click.pass_obj
@plainly
def grant(given: str | None, role: str, verbs: Sequence[Verb], queue: str | None, pattern: str | None) -> None:
    """Give ROLE rights on every server, as `pgqueue grant` does on one. None is changed unless all can be reached."""
    check_scope(queue, pattern)

    def on(dsn: str) -> None:
        with Client(dsn) as client:
            give(client, role, verbs, queue, pattern)

    for number in operating.on_each(dsns.resolve(given), on):
        click.echo(f"server {number}: granted")


def _tell(missed: Iterable[str]) -> None:
    """Name the servers that did not get the table; clients take the newest copy that they find."""
    for line in missed:
        click.echo(f"Warning: {line}", err=True)
