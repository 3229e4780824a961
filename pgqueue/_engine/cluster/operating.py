"""Operations on the servers of a cluster, for its commands: each connects to the servers and changes their tables.

The home server's table is changed first, and the others get copies. A server that is away then gets its copy with the
next change, or when `add` names it again: clients take the newest copy that they find. A change that all servers must
have, a migration or a grant, begins only if all of them can be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ... import migrate
from ..._calls import limits
from ..._calls import servers as calls
from ..._calls.call import Call, query
from ..._calls.put import queue_ids
from ..._calls.server import Whereabouts, database
from ..._calls.servers import Member, Table
from ..._calls.sqlstates import translate
from ..._values.conninfo import plain
from ..._values.record import Record
from ...errors import ClusterError, Error, SchemaError, ServerError
from ..dsn import describe, unreachable
from . import standing
from .moving import Moved, Mover
from .servers import placed_among

T = TypeVar("T")
Conn = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Status(Record):
    """A server of a cluster, as it is now.

    Attributes:
        number, state, is_home, dsn: by the table of servers.
        schema: the version of its schema; None: it could not be asked.
        copy: the version of its copy of the table; None: it has none, or could not be asked.
        tasks: how many tasks it has.
        timeline: of its write-ahead log; each promotion of a standby begins a higher one.
        problem: why it cannot be used as the table says; None if it can.
    """

    number: int
    state: str
    is_home: bool
    dsn: str
    schema: str | None = None
    copy: int | None = None
    tasks: int | None = None
    timeline: int | None = None
    problem: str | None = None


def status(dsn: str) -> list[Status]:
    """Each server of the cluster that a server belongs to, but those that are gone."""
    table = _table(dsn)
    return [_status(member) for member in _present(table)]


def add(dsn: str, new: str, listen_dsn: str | None = None, number: int | None = None) -> tuple[int, list[str]]:
    """Add a server, or change the DSNs of one: number it, migrate it, and copy the table to all servers.

    Args:
        dsn: a server of the cluster; the new one itself, to begin a cluster with it as the home server.
        number: the new server's number; None: the one that it has, else the next one that is free.

    Returns:
        The number, and a line for each server that did not get the table.

    Raises:
        ClusterError: a DSN has a password; the servers have different versions of the schema; the new server is a
            standby, or another server of the cluster has its number.
        ServerError: a server that is needed cannot be reached.
        SchemaError: the server has another number, or has put tasks.
    """
    for name, given in (("dsn", new), ("listen_dsn", listen_dsn)):
        if given is not None and {"password", "sslpassword"} & conninfo_to_dict(plain(given)).keys():
            raise ClusterError(
                f"the {name} has a password, which every role that uses queues could read: leave it out, and let it be"
                " in a password file (PGPASSFILE) or a service file"
            )
    found = standing.look(new, database)
    if found.timeline is None:
        raise ClusterError(f"{describe(new)} is a standby: give the DSN of its primary")
    table = _table_or_none(dsn)
    if table is None and standing.look(dsn, database) != found:
        raise ClusterError(f"{describe(dsn)} belongs to no cluster: add it first, as the home server")
    home = new if table is None else table.home.dsn
    if table is not None:
        _check_versions(table)
    chosen = _number(new, table, number)
    if table is not None and (other := table.numbered(chosen)) is not None:
        _check_same(other, found)
    migrate.up(new, server=chosen or None)
    if table is not None:
        _copy_limits(home, new)
    _run(home, calls.add(chosen, new, listen_dsn))
    return chosen, _copy(home)


def drain(dsn: str, number: int, off: bool = False) -> list[str]:
    """Set a server draining, or active again. Returns a line for each server that did not get the table."""
    home = _table(dsn).home.dsn
    _run(home, calls.set_state(number, "active" if off else "draining"))
    return _copy(home)


def remove(dsn: str, number: int, force: bool = False) -> list[str]:
    """Have clients leave a draining server that has no task. Returns as drain().

    Args:
        force: also if it cannot be asked, or has tasks, which then stay there.

    Raises:
        ClusterError: it is not draining, or has tasks: the text says how many in each queue.
        ServerError: it cannot be reached.
    """
    table = _table(dsn)
    if (member := table.numbered(number)) is not None and member.state == "draining" and not force:
        left = _run(member.dsn, LEFT)
        if left:
            raise ClusterError(
                f"server {number} still has {', '.join(f'{n} of queue {queue}' for queue, n in left)}:"
                " wait until they are taken, or move them with `pgqueue cluster move`"
            )
    _run(table.home.dsn, calls.remove(number))
    return _copy(table.home.dsn)


def move(
    dsn: str, source: int, targets: Sequence[int], queue: str | None, on_progress: Callable[[int], None]
) -> Iterator[tuple[str, Moved]]:
    """Move tasks of a queue from one server to others, or of all its queues. Yields each queue, with the result.

    Args:
        targets: the numbers of the others; none: all active ones.
        on_progress: gets the number of tasks of a queue so far, after each step.

    Raises:
        ClusterError: the cluster has no such server, or no other one to move to.
        ServerError, ConnectionLost, QueueNotFound, PutRefused: as Mover.move().
    """
    members = {member.number: member for member in _present(_table(dsn))}
    chosen = list(targets) or [number for number, member in members.items() if member.state == "active"]
    for number in (source, *chosen):
        if number not in members:
            raise ClusterError(f"the cluster has no server {number}")
    to = [members[number] for number in dict.fromkeys(chosen) if number != source]
    if not to:
        raise ClusterError(f"there is no server to move to: {source} is the only one, or no other one is active")
    numbers = [one.number for one in to]
    with Mover(members[source].dsn, [one.dsn for one in to], partial(placed_among, numbers), numbers) as mover:
        for name in [queue] if queue is not None else mover.queues():
            yield name, mover.move(name, on_progress)


def migrate_all(dsn: str) -> Iterator[tuple[int, str | None, str | None]]:
    """Migrate each server, the home server last. Yields its number, and its versions before and after.

    Raises:
        ClusterError: before the first migration: a server cannot be reached, or is not the one that the table means; or
            their versions differ in another way than by a migration that was cut off.
        SchemaError: in the midst. The servers before are migrated, and another call goes on with the rest.
    """
    table = _table(dsn)
    members = _all_there(table)
    states = {member.number: migrate.status(member.dsn) for member in members}
    head = next(iter(states.values())).head
    behind = {state.current for state in states.values() if state.current != head}
    if len(behind) > 1 or any(state.state == "newer than this library" for state in states.values()):
        raise ClusterError(f"the servers have different versions of the schema: {_versions(states)}; library: {head}")
    for member in sorted(members, key=lambda member: member.is_home):
        migrate.up(member.dsn)
        yield member.number, states[member.number].current, head


def on_each(dsn: str, act: Callable[[str], object]) -> Iterator[int]:
    """Do something with the DSN of every server, if all can be reached. Yields the number of each, when it is done."""
    for member in _all_there(_table(dsn)):
        act(member.dsn)
        yield member.number


LEFT: Call[list[tuple[str, int]]] = query(
    "SELECT q.name, pg_catalog.count(*) FROM pgqueue.task t JOIN pgqueue.queue q"
    " ON q.id OPERATOR(pg_catalog.=) t.queue_id WHERE t.state OPERATOR(pg_catalog.<>) 'F' GROUP BY q.name"
    " ORDER BY q.name",
    (),
    lambda rows: [(name, n) for name, n in rows],
)


# --- the table


def _table(dsn: str) -> Table:
    table = _table_or_none(dsn)
    if table is None:
        raise ClusterError(f"{describe(dsn)} belongs to no cluster: `pgqueue cluster add` adds it, as the home server")
    return table


def _table_or_none(dsn: str) -> Table | None:
    """The home server's table, or while it is away the copy of the server that is asked."""
    try:
        near = _run(dsn, calls.servers())
    except SchemaError:
        return None
    if near is None:
        return None
    try:
        return _run(near.home.dsn, calls.servers()) or near
    except ServerError:
        return near


def _present(table: Table) -> list[Member]:
    return [member for member in table.members if member.state != "gone"]


def _copy(home: str) -> list[str]:
    """Copy the table to all servers. Returns a line for each that did not get it."""
    table = _table(home)
    missed = []
    for member in _present(table):
        try:
            _run(member.dsn, calls.copy(table))
        except (Error, psycopg.Error) as error:
            missed.append(f"server {member.number} has no copy of version {table.version} of the table yet: {error}")
    return missed


def _copy_limits(home: str, new: str) -> None:
    """Have a new server refuse the tasks of limits that another one keeps, before it gets any."""
    for one in _run(home, limits.list_limits(None)):
        if one.home is not None:
            terms = limits.Terms(
                concurrency=one.concurrency, rate=one.rate, per=one.per or 1, burst=one.burst, argument=one.argument
            )
            _run(new, queue_ids([one.queue]))
            _run(new, limits.set_limit(one.queue, one.job, terms, one.home))


# --- checks


def _status(member: Member) -> Status:
    known = (member.number, member.state, member.is_home, member.dsn)
    try:
        found = _seen(member)
        table = _run(member.dsn, calls.servers())
        left = _run(member.dsn, LEFT)
        schema = migrate.status(member.dsn).current
    except (Error, psycopg.Error) as error:
        return Status(*known, problem=str(error).strip())
    return Status(*known, schema, table.version if table else None, sum(n for _, n in left), found.timeline)


def _seen(member: Member) -> Whereabouts:
    """Where a server of the table is. Raises ClusterError if it is not the one that the table means."""
    found = standing.look(member.dsn)
    if found.timeline is None:
        raise ClusterError(f"server {member.number} ({describe(member.dsn)}) is a standby")
    if found.number != member.number:
        raise ClusterError(
            f"server {member.number} ({describe(member.dsn)}) has the number {found.number} in its database"
        )
    return found


def _all_there(table: Table) -> list[Member]:
    members = _present(table)
    problems = []
    for member in members:
        try:
            _seen(member)
        except Error as error:
            problems.append(f"server {member.number}: {error}")
    if problems:
        raise ClusterError(f"nothing was begun, since not all servers can be used: {'; '.join(problems)}")
    return members


def _check_versions(table: Table) -> None:
    """All servers that can be reached have this library's version, so that a new one, which gets it, fits."""
    states = {}
    for member in _present(table):
        with suppress(psycopg.OperationalError):
            states[member.number] = migrate.status(member.dsn)
    if any(state.state != "up to date" for state in states.values()):
        raise ClusterError(
            f"the servers do not all have the schema of this library: {_versions(states)};"
            " run `pgqueue cluster migrate`"
        )


def _versions(states: dict[int, migrate.Status]) -> str:
    return ", ".join(f"server {number} has {state.current or 'none'}" for number, state in states.items())


def _number(new: str, table: Table | None, asked: int | None) -> int:
    """The number for a new server. Server 0 is only a home server that has put tasks before it was numbered."""
    given, used = _run(new, NUMBERED) if _has_schema(new) else (0, False)
    if given or (used and table is None and asked is None):
        return given
    return asked or (1 if table is None else max(member.number for member in table.members) + 1)


NUMBERED: Call[tuple[int, bool]] = query(
    "SELECT pgqueue.server_number(), s.is_called FROM pgqueue.task_id_seq s", (), lambda rows: rows[0]
)


def _has_schema(dsn: str) -> bool:
    return migrate.status(dsn).current is not None


def _check_same(other: Member, found: Whereabouts) -> None:
    """A server may get other DSNs, but no other server its number."""
    try:
        there = standing.look(other.dsn)
    except ServerError:  # it is away: by its number the new DSN leads to it, or to its promoted standby
        return
    if standing.is_older(there, found) or there._replace(number=0) == found:
        return
    if there.number == other.number:
        raise ClusterError(
            f"server {other.number} of the cluster is another one ({describe(other.dsn)}): number each server by itself"
        )


# --- statements


def _run(dsn: str, call: Call[T]) -> T:
    with _connected(dsn) as conn:
        try:
            return call.read(conn.execute(call.sql.encode(), call.args).fetchall())
        except psycopg.Error as error:
            raise translate(error, lost=conn.closed) from error


@contextmanager
def _connected(dsn: str) -> Iterator[Conn]:
    try:
        conn = psycopg.connect(plain(dsn), autocommit=True, connect_timeout=2)
    except psycopg.Error as error:
        raise unreachable(dsn, error) from error
    with conn:
        yield conn
