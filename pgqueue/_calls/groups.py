"""Calls of groups, which are nodes below /groups: 6_families/nodes.sql."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._values import data
from .._values.record import Record
from .call import Call, Rows, call, query
from .nodes import CREATED, Node, Seen, created, part, path


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Record):
    """A member of a group.

    Attributes:
        name: its name within the group.
        data: its data, as given to join().
        holder: the client that joined: host, process id and program.
    """

    name: str
    data: Any
    holder: str | None


def group_path(group: object) -> str:
    return path("/groups/" + part(group, "a group's name"))


def join(group: str, value: Any, text: str, name: str | None) -> Callable[[int | None], Call[Node]]:
    path(f"{group_path(group)}/{'member-0000000000' if name is None else part(name, 'the name of a member')}")
    return lambda session: call(
        "join_group",
        CREATED,
        lambda rows: created(rows, value, True),
        name=group,
        data=text,
        member=name,
        session=session,
    )


def members(group: str) -> Call[Seen[list[Member]]]:
    """The members, in the order in which they joined."""

    def read(rows: Rows) -> Seen[list[Member]]:
        ids = [id for _, id, *_ in rows if id is not None]
        found = [
            Member(name=at.rpartition("/")[2], data=data.shown(text), holder=holder)
            for _, id, at, text, holder in rows
            if id is not None
        ]
        return Seen(found, rows[0][0], 0, ids)

    return query(
        "SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text, n.id, n.path, n.data::pg_catalog.text, n.holder"
        " FROM (SELECT %s::pg_catalog.text) asked(path)"
        " LEFT JOIN pgqueue.nodes n ON n.parent OPERATOR(pg_catalog.=) asked.path ORDER BY n.id",
        (group_path(group),),
        read,
    )
