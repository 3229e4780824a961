"""Which server a DSN leads to: its number, and whether it is the primary that the cluster means.

A DSN with several hosts may lead to an old primary, which ../primaries.py passes over. A client that has met a server
at a higher timeline knows an old primary by itself, also by a DSN with one host.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from ..._calls.call import Call
from ..._calls.server import Whereabouts, whereabouts
from .. import primaries
from ..dsn import unreachable

ATTEMPT = 2  # seconds to connect to one host


def look(conninfo: str, where: Callable[[], Call[Whereabouts]] = whereabouts) -> Whereabouts:
    """Connect once to where a DSN leads, and ask which server that is.

    Args:
        where: the question; database() where there may be no schema yet.

    Raises:
        ServerError: it cannot be reached, or is an old primary.
    """
    try:
        with psycopg.connect(primaries.chosen(conninfo), autocommit=True, connect_timeout=ATTEMPT) as conn:
            primaries.check(conn, conninfo)
            call = where()
            return call.read(conn.execute(call.sql.encode(), call.args).fetchall())
    except psycopg.Error as error:
        raise unreachable(conninfo, error) from error


def is_older(one: Whereabouts, other: Whereabouts) -> bool:
    """Whether both are of one server, and the other was promoted later."""
    return one.system == other.system and (one.timeline or 0) < (other.timeline or 0)
