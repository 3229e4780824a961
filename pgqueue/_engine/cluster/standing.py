"""Which server a DSN leads to: its number, and whether it is the primary that the cluster means.

libpq connects to the first of several hosts that allows writes. After a fail-over the old primary may come back and
allow them too, while the tasks are at the promoted one. Each promotion begins a timeline with a higher number, so the
timelines of all hosts tell the old primary. A client that has seen the higher timeline knows it by itself; one that has
just started asks all hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ..._calls.call import Call
from ..._calls.server import Whereabouts, whereabouts
from ...errors import ServerError
from ..dsn import describe, unreachable

ATTEMPT = 2  # seconds to connect to one host


def look(conninfo: str, where: Callable[[], Call[Whereabouts]] = whereabouts) -> Whereabouts:
    """Connect once to where a DSN leads, and ask which server that is.

    Args:
        where: the question; database() where there may be no schema yet.

    Raises:
        ServerError: it cannot be reached, or is an old primary.
    """
    try:
        with psycopg.connect(conninfo, autocommit=True, connect_timeout=ATTEMPT) as conn:
            found = _asked(conn, where())
            host, port = conn.info.host, conn.info.port
    except psycopg.Error as error:
        raise unreachable(conninfo, error) from error
    for other in _hosts(conninfo):
        if (seen := _at(other, where())) is not None and is_older(found, seen):
            raise ServerError(
                f"{host}:{port} is an old primary: it is at timeline {found.timeline}, and {describe(other)} was"
                f" promoted to timeline {seen.timeline}. Stop the old one, or make it a standby"
            )
    return found


def is_older(one: Whereabouts, other: Whereabouts) -> bool:
    """Whether both are of one server, and the other was promoted later."""
    return one.system == other.system and (one.timeline or 0) < (other.timeline or 0)


def _asked(conn: psycopg.Connection[Any], call: Call[Whereabouts]) -> Whereabouts:
    return call.read(conn.execute(call.sql.encode(), call.args).fetchall())


def _hosts(conninfo: str) -> Iterator[str]:
    """A DSN for each host of a DSN with several."""
    known = conninfo_to_dict(conninfo)
    hosts, ports = (str(known.get(name) or "").split(",") for name in ("host", "port"))
    if len(hosts) > 1:
        for index, host in enumerate(hosts):
            port = ports[index] if len(ports) > 1 else ports[0]
            yield make_conninfo(conninfo, host=host, port=port or None, target_session_attrs="any")


def _at(conninfo: str, call: Call[Whereabouts]) -> Whereabouts | None:
    try:
        with psycopg.connect(conninfo, autocommit=True, connect_timeout=ATTEMPT) as conn:
            return _asked(conn, call)
    except psycopg.Error:  # down: it is not the one that libpq found
        return None
