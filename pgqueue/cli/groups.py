"""`pgqueue group`: the members of a group of processes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict

import click

from .._calls.groups import Member
from .connecting import connect
from .grouping import Group
from .plainly import nothing, plainly
from .printing import cell, column, echo, echo_all
from .values import COUNT, json_lines, timeout


@click.group(cls=Group)
def group() -> None:
    """Show the members of a group of processes, or wait for changes of the members."""


@group.command()
@click.argument("group")
@json_lines
@click.pass_obj
@plainly
def members(dsn: str | None, group: str, as_json: bool) -> None:
    """List the members of GROUP that are alive, in the order in which they joined."""
    with connect(dsn) as client:
        found = client.groups.members(group)
    echo_all(
        found,
        as_json,
        asdict,
        [column(name, folds=True) for name in ("MEMBER", "HOLDER", "DATA")],
        lambda one: (one.name, one.holder, _data(one)),
    )


@group.command()
@click.argument("group")
@click.option("-n", "--count", type=COUNT, help="End after this number of lines.")
@timeout
@json_lines
@click.pass_obj
@plainly
def watch(dsn: str | None, group: str, count: int | None, timeout: float | None, as_json: bool) -> None:
    """Print the members of GROUP in one line, now and after each change. Exit code 3 if nothing changed in time."""
    with connect(dsn) as client, client.groups.watch(group) as watch:
        for _ in itertools.count() if count is None else range(count):
            try:
                found = watch.get(timeout)
            except TimeoutError:
                nothing()
            echo({"group": group, "members": list(map(asdict, found))}, _names(found), as_json)


def _names(members: Sequence[Member]) -> str:
    return " ".join(cell(member.name) for member in members) or "-"


def _data(member: Member) -> str:
    return cell(member.data)
