"""Calls of 6_families/nodes.sql."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, LiteralString, TypeVar

from .._values import arguments, data
from .._values.record import Record
from ..errors import BadVersion, EphemeralParent, NodeError, NodeExists, NoNode, NotEmpty
from .call import Call, Rows, call, query, scalar

T = TypeVar("T")
_TRANSACTION = re.compile("[0-9]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Record):
    """A node as it was when it was read.

    Attributes:
        path: for example `/app/config`.
        data: any JSON.
        version: the number of times that the data was set. `nodes.set` and `nodes.delete` can require it.
        ephemeral: whether it is deleted when the session of the client that created it ends.
        holder: the client that created an ephemeral node: host, process id and program.
        created_at, updated_at: when it was created, and when its data was set last.
        id: distinguishes it from an earlier node of the same path.
    """

    path: str
    data: Any
    version: int
    ephemeral: bool
    holder: str | None
    created_at: datetime
    updated_at: datetime
    id: int

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class NodeEvent(Record):
    """The event that fired a watch.

    Attributes:
        kind: `created`, `changed` or `deleted`; `children` for a watch of children.
        path: the path of the watched node.
    """

    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """The result of a look at a node. `snapshot`, `id` and `state` tell which later changes are news."""

    value: T
    snapshot: str
    id: int | None
    state: object

    def covers(self, transaction: int) -> bool:
        """Whether the look has seen that transaction's changes, as PostgreSQL's pg_visible_in_snapshot."""
        low, high, running = self.snapshot.split(":")
        return transaction < int(low) or (transaction < int(high) and str(transaction) not in running.split(","))

    def news(self, heard: str, changes: str) -> str | None:
        """The news of a notification for a watch of the node's `changes`, or None."""
        kind, _, transaction = heard.partition(" ")
        wanted = kind in ("created", "deleted", changes) and _TRANSACTION.fullmatch(transaction)
        return kind if wanted and not self.covers(int(transaction)) else None

    def difference(self, later: Seen[T], changes: str) -> str | None:
        """The news that a later look shows, or None."""
        if self.id != later.id:
            return "created" if self.id is None else "deleted"
        return changes if self.state != later.state else None


def path(value: object) -> str:
    """A node's path: `/`, or as `/a/b`. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"a path is a string, not {value!r}")
    arguments.text(value, "a path")
    if len(value) > 1024 or len(value.encode()) > 2048:
        raise ValueError(f"not a path: it has {len(value)} characters, 1024 and 2048 bytes are the limit")
    first, *parts = value.split("/")
    if value != "/" and (first or not parts or any(part in ("", ".", "..") for part in parts)):
        raise ValueError(f"not a path: {value!r}; one is / or as /a/b, and no part of it is empty, . or ..")
    return value


def part(value: object, what: str) -> str:
    """One part of a path. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is a string, not {value!r}")
    if "/" in value or value in ("", ".", ".."):
        raise ValueError(f"{what} cannot be {value!r}: it is one part of a path")
    return arguments.text(value, what)


def flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")
    return value


def channel(at: str) -> Call[str]:
    """The channel on which pgqueue._node_event notifies: a secret of those that may watch."""
    return call("watch_node", None, scalar, path=path(at))


def create(at: str, value: Any, text: str, ephemeral: bool, sequential: bool) -> Callable[[int | None], Call[Node]]:
    """A function from the session to the call. `text` is `value` as JSON."""
    known = path(at)
    flags: dict[str, Any] = {"ephemeral": flag("ephemeral", ephemeral), "sequential": flag("sequential", sequential)}
    return lambda session: call(
        "create_node",
        CREATED,
        lambda rows: created(rows, value, ephemeral),
        path=known,
        data=text,
        **flags,
        session=session,
    )


def get(at: str) -> Call[Node]:
    def read(rows: Rows) -> Node:
        if not rows:
            raise _problem("not found", at)
        return _node(rows[0])

    return query(
        "SELECT path, data::pg_catalog.text, version, ephemeral, holder, created_at, updated_at, id"
        " FROM pgqueue.nodes WHERE path OPERATOR(pg_catalog.=) %s::pg_catalog.text",
        (path(at),),
        read,
    )


def exists(at: str) -> Call[bool]:
    return query(
        "SELECT EXISTS (SELECT FROM pgqueue.nodes WHERE path OPERATOR(pg_catalog.=) %s::pg_catalog.text)",
        (path(at),),
        lambda rows: bool(rows[0][0]),
    )


def set_data(at: str, value: Any, text: str, version: int | None) -> Call[Node]:
    def read(rows: Rows) -> Node:
        problem, found, *others = rows[0]
        if problem:
            raise _problem(problem, at, version, found)
        return _node((at, None, found, *others), value)

    columns: LiteralString = "problem, version, ephemeral, holder, created_at, updated_at, id"
    known = arguments.integer("version", version, 0)
    return call("set_node", columns, read, path=path(at), data=text, version=known)


def delete(at: str, version: int | None, id: int | None = None) -> Call[None]:
    """Delete a node. With an id, only the node of this id, not a later one of the same path."""

    def read(rows: Rows) -> None:
        problem, found = rows[0]
        if problem:
            raise _problem(problem, at, version, found)

    if path(at) == "/":
        raise ValueError("the root cannot be deleted")
    known = arguments.integer("version", version, 0)
    return call("delete_node", "problem, version", read, path=at, version=known, id=id)


def children(at: str) -> Call[list[str]]:
    def read(rows: Rows) -> list[str]:
        exists, names = rows[0]
        if not exists:
            raise _problem("not found", at)
        return list(names)

    return query(
        "SELECT EXISTS (SELECT FROM pgqueue.nodes WHERE path OPERATOR(pg_catalog.=) %s::pg_catalog.text),"
        " ARRAY (SELECT pgqueue.children(path => %s::pg_catalog.text))",
        (path(at), at),
        read,
    )


def look(at: str, children: bool) -> Call[Seen[tuple[Node | None, list[str] | None]]]:
    """The node, and with `children` the names of its children."""

    def read(rows: Rows) -> Seen[tuple[Node | None, list[str] | None]]:
        snapshot, names, ids, *row = rows[0]
        node = None if row[-1] is None else _node(row)
        if node is None:
            return Seen((None, names), snapshot, None, None)
        return Seen((node, names), snapshot, node.id, ids if children else node.version)

    return query(
        "SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text,"
        " CASE WHEN %s::boolean THEN ARRAY (SELECT pgqueue.children(path => asked.path)) END,"
        " CASE WHEN %s::boolean THEN"
        " ARRAY (SELECT c.id FROM pgqueue.nodes c WHERE c.parent OPERATOR(pg_catalog.=) asked.path ORDER BY c.id) END,"
        " n.path, n.data::pg_catalog.text, n.version, n.ephemeral, n.holder, n.created_at, n.updated_at, n.id"
        " FROM (SELECT %s::pg_catalog.text) asked(path)"
        " LEFT JOIN pgqueue.nodes n ON n.path OPERATOR(pg_catalog.=) asked.path",
        (flag("children", children), children, path(at)),
        read,
    )


def _node(row: Any, *value: Any) -> Node:
    at, text, version, ephemeral, holder, created_at, updated_at, id = row
    return Node(
        path=at,
        data=value[0] if value else data.shown(text),
        version=version,
        ephemeral=ephemeral,
        holder=holder,
        created_at=created_at,
        updated_at=updated_at,
        id=id,
    )


CREATED: LiteralString = "problem, path, version, holder, created_at, id"  # the columns of created()


def created(rows: Rows, value: Any, ephemeral: bool) -> Node:
    problem, at, version, holder, created_at, id = rows[0]
    if problem:
        raise _problem(problem, at)
    return _node((at, None, version, ephemeral, holder, created_at, created_at, id), value)


def _problem(problem: str, at: str, asked: int | None = None, found: int | None = None) -> NodeError:
    parent = at.rpartition("/")[0] or "/"
    if problem == "exists":
        return NodeExists(f"there is a node {at} already", at)
    if problem == "no parent":
        return NoNode(f"{at} cannot be created: there is no node {parent}", at)
    if problem == "ephemeral parent":
        return EphemeralParent(f"{at} cannot be created: {parent} is ephemeral, and such a node has no children", at)
    if problem == "not found":
        return NoNode(f"there is no node {at}", at)
    if problem == "version":
        return BadVersion(f"node {at} is at version {found}, not {asked}: it was changed meanwhile", at)
    return NotEmpty(f"node {at} has children: delete them first", at)
