"""`pgqueue audit`: the audit trail."""

from __future__ import annotations

import click

from .._calls.audit import Deed
from .connecting import connect
from .plainly import plainly
from .printing import column, echo_all, when
from .values import COUNT, QUEUE, json_lines


@click.command()
@click.option("-q", "--queue", type=QUEUE, help="Only what was done to this queue.")
@click.option("-n", type=COUNT, default=50, show_default=True, help="At most so many.")
@json_lines
@click.pass_obj
@plainly
def audit(dsn: str | None, queue: str | None, n: int, as_json: bool) -> None:
    """Show the audit trail: calls of operators' verbs, the newest first.

    The ROLE is from the server. The ACTOR is the name that the session gave itself. The owner of the schema and
    monitors see all calls, another role sees its own.
    """
    with connect(dsn) as client:
        found = client.audit.list(queue, n)
    echo_all(
        found,
        as_json,
        Deed.as_dict,
        (
            column("AT", folds=True, shown=when),
            column("ROLE", folds=True),
            column("ACTOR", 4, folds=True),
            column("VERB"),
            column("QUEUE", folds=True),
            column("OBJECT", 1, folds=True),
            column("TASKS", 2),
            column("DETAIL", 3, folds=True),
        ),
        lambda one: (one.at, one.role, one.actor, one.verb, one.queue, one.object, one.count, one.detail),
    )
