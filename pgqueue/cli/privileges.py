"""`pgqueue privileges`, `grant`, `revoke` and `restrict`: the privileges of roles on queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click

from .. import Client
from .._calls.privileges import VERBS, Privilege, Verb
from .._values import arguments
from .connecting import connect
from .plainly import plainly
from .printing import column, echo_json, echo_table
from .values import QUEUE, Checked, json_lines

PATTERN = Checked("pattern", lambda text: arguments.text(text, "a pattern"))


@click.command()
@click.option("-r", "--role", help="Only the privileges of this role.")
@click.option("-q", "--queue", type=QUEUE, help="Only the privileges of this very queue, without those of patterns.")
@json_lines
@click.pass_obj
@plainly
def privileges(dsn: str | None, role: str | None, queue: str | None, as_json: bool) -> None:
    """List the privileges of roles: on one queue, or on those whose names match a pattern.

    The owner of the schema and monitors see all privileges, another role sees its own.
    """
    with connect(dsn) as client:
        found = client.privileges.list(role, queue)
    if as_json:
        for privilege in found:
            echo_json(asdict(privilege))
        return
    echo_table([column(name, folds=True) for name in ("ROLE", "QUEUE", "PATTERN", "VERBS")], _rows(found))


def _rows(found: Sequence[Privilege]) -> list[tuple[str, str | None, str | None, str]]:
    """One row for each grant, with its verbs."""
    grants: dict[tuple[str, str | None, str | None], list[str]] = {}
    for one in found:
        grants.setdefault((one.role, one.queue, one.pattern), []).append(one.verb)
    return [(*grant, " ".join(verbs)) for grant, verbs in grants.items()]


def of_a_grant(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments of grant and of revoke."""
    for decorate in (
        click.option("-p", "--pattern", type=PATTERN, help="The queues whose names match; * is any characters."),
        click.option("-q", "--queue", type=QUEUE, help="One queue."),
        click.argument("verbs", metavar="[VERB]...", type=click.Choice(VERBS), nargs=-1),
        click.argument("role"),
    ):
        command = decorate(command)
    return command


@click.command()
@of_a_grant
@click.pass_obj
@plainly
def grant(dsn: str | None, role: str, verbs: Sequence[Verb], queue: str | None, pattern: str | None) -> None:
    """Let ROLE use all queues, one queue, or those of a pattern. For the owner of the schema.

    The VERBs are put, take (and settle), look, manage, share (objects that belong to no queue) and monitor (no data).
    Without one: put, take, look and manage, and share if neither --queue nor --pattern is given. A grant does not keep
    other roles out: see `pgqueue restrict`.
    """
    check_scope(queue, pattern)
    with connect(dsn) as client:
        give(client, role, verbs, queue, pattern)


@click.command()
@of_a_grant
@click.pass_obj
@plainly
def revoke(dsn: str | None, role: str, verbs: Sequence[Verb], queue: str | None, pattern: str | None) -> None:
    """Undo `pgqueue grant` with the same arguments, and no other grant. For the owner of the schema."""
    check_scope(queue, pattern)
    with connect(dsn) as client:
        if queue is None:
            client.privileges.revoke_from(role, verbs or None, "*" if pattern is None else pattern)
        else:
            client.privileges.revoke(queue, role, *_named(verbs))


@click.command()
@click.argument("queue", type=QUEUE)
@click.option("--off", is_flag=True, help="Open the queue again.")
@click.pass_obj
@plainly
def restrict(dsn: str | None, queue: str, off: bool) -> None:
    """Keep QUEUE for the roles that were granted this very queue. For the owner of the schema."""
    with connect(dsn) as client:
        client.privileges.restrict(queue, not off)


def give(client: Client, role: str, verbs: Sequence[Verb], queue: str | None, pattern: str | None) -> None:
    if queue is None:
        client.privileges.grant_to(role, verbs or None, "*" if pattern is None else pattern)
    else:
        client.privileges.grant(queue, role, *_named(verbs))


def _named(verbs: Sequence[Verb]) -> tuple[Sequence[Verb], ...]:
    """The argument `verbs`, or no argument if none was named."""
    return (verbs,) if verbs else ()


def check_scope(queue: str | None, pattern: str | None) -> None:
    if queue is not None and pattern is not None:
        raise click.UsageError("give either --queue or --pattern")
