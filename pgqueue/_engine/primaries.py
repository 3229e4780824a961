"""Which of a DSN's hosts is the primary: the one on the newest timeline.

A DSN with several hosts finds the primary after a fail-over. But libpq takes the first host that accepts writes. An old
primary that comes back before it was made a standby accepts them too, and all that it takes is lost. A promotion begins
a new timeline, so of two primaries with one system identifier the one with the lower timeline is the old one.

So where a DSN has several hosts, each connection asks for its timeline, in one round trip. The process remembers the
newest timeline of each system, and refuses a connection to an older one. A new process remembers none. So before a
connection all hosts are asked, at most every SEEN seconds, and old primaries are left out of the connection string. A
host that is down, or silent for ASKED seconds, is no primary for now.

This does not keep out a client that reaches the old primary alone. Only the manager of the servers can: it stops the
old primary before it promotes a standby.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .bounded import BoundedConnection, Late

SEEN = 2.0  # seconds for which the answers of the hosts hold
ASKED = 1  # seconds that a host has for its answer
#: pg_control_checkpoint() shows the new timeline only after the first checkpoint on it.
WHERE: LiteralString = (
    "SELECT s.system_identifier, CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.substr("
    "pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8) END"
    " FROM pg_catalog.pg_control_system() s"
)


class OldPrimary(psycopg.OperationalError):
    """The connection leads to a primary in whose place another server has been promoted."""


class At(NamedTuple):
    """Where a connection leads. `timeline`: 0 on a standby."""

    system: int
    timeline: int


_newest: dict[int, int] = {}  # the newest timeline of each system that this process has met
_chosen: dict[str, tuple[float, str]] = {}  # by the connection string: until when it holds, and the one to use


def chosen(conninfo: str) -> str:
    """The connection string to use: if it has several hosts, without old primaries."""
    if not (hosts := each_host(conninfo)):
        return conninfo
    until, found = _chosen.get(conninfo, (0.0, conninfo))
    if time.monotonic() > until:
        with ThreadPoolExecutor(len(hosts), "pgqueue-primaries") as asking:
            answers = list(asking.map(_ask, hosts))
        for at in filter(None, answers):
            _meet(at)
        left = [host for host, at in zip(hosts, answers, strict=True) if at is None or not _is_old(at)]
        found = _together(conninfo, left) if left else conninfo
        _chosen[conninfo] = time.monotonic() + SEEN, found
    return found


def check(conn: psycopg.Connection[Any], conninfo: str) -> None:
    """Close a connection that leads to an old primary, and raise OldPrimary."""
    if each_host(conninfo):
        try:
            _insist(_read(conn.execute(WHERE).fetchone()))
        except BaseException:
            conn.close()
            raise


async def check_async(conn: psycopg.AsyncConnection[Any], conninfo: str) -> None:
    if each_host(conninfo):
        try:
            _insist(_read(await (await conn.execute(WHERE)).fetchone()))
        except BaseException:
            await conn.close()
            raise


async def chosen_async(conninfo: str) -> str:
    """As chosen(), without keeping the event loop."""
    return await asyncio.to_thread(chosen, conninfo) if each_host(conninfo) else conninfo


@cache
def each_host(conninfo: str) -> tuple[str, ...]:
    """The connection string of each host; none if there is only one host."""
    known = conninfo_to_dict(conninfo)
    lists = {name: str(known[name]).split(",") for name in ("host", "hostaddr", "port") if known.get(name)}
    n = max([len(lists.get(name, ())) for name in ("host", "hostaddr")])
    if n < 2:
        return ()
    return tuple(
        make_conninfo("", **known | {name: values[i if len(values) == n else 0] for name, values in lists.items()})
        for i in range(n)
    )


def _ask(host: str) -> At | None:
    """Where a host is; None if it does not answer, or does not tell."""
    try:
        only = make_conninfo(host, connect_timeout=ASKED, target_session_attrs="any")
        with BoundedConnection.connect(only, autocommit=True) as conn:
            conn.patience = ASKED
            return _read(conn.execute(WHERE).fetchone())
    except (psycopg.Error, Late):
        return None


def _read(row: Sequence[Any] | None) -> At:
    system, timeline = row or (0, None)
    return At(system, int(timeline, 16) if timeline else 0)


def _meet(at: At) -> None:
    _newest[at.system] = max(at.timeline, _newest.get(at.system, 0))


def _is_old(at: At) -> bool:
    return 0 < at.timeline < _newest.get(at.system, 0)


def _insist(at: At) -> None:
    if _is_old(at):
        raise OldPrimary(
            f"this is an old primary, on timeline {at.timeline}: a server on timeline {_newest[at.system]} has been"
            " promoted in its place. Make it a standby of that one"
        )
    _meet(at)


def _together(conninfo: str, hosts: Sequence[str]) -> str:
    """The connection string with only these hosts."""
    known, parts = conninfo_to_dict(conninfo), [conninfo_to_dict(host) for host in hosts]
    lists = [name for name in ("host", "hostaddr", "port") if known.get(name)]
    named = {name: ",".join(str(part.get(name) or "") for part in parts) for name in lists}
    return make_conninfo("", **known | named)
