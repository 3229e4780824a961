"""DSNs as libpq accepts them. An error has no text of the DSN: any part of a malformed one may be its password."""

from __future__ import annotations

import re

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ..errors import ServerError

_SCHEME = re.compile(r"(postgres(?:ql)?)(?:\+\w+)?://(.*)", re.DOTALL)
# libpq ends the password at the first @, and sees no password if there is a / before it. The rest of a password with
# such a character is then a host, a port or a database, and errors of the connection would show it.
_AS_MEANT = re.compile(r"(?:[^@/]*@)?+[^@?]*(\?.*)?", re.DOTALL)
_PORTS = re.compile(r"[0-9,]*")


def plain(dsn: str) -> str:
    """A DSN as libpq accepts it, from libpq's form or SQLAlchemy's (postgresql+psycopg://). Raises ServerError."""
    found = _SCHEME.fullmatch(dsn)
    conninfo = f"{found[1]}://{found[2]}" if found else dsn
    as_meant = found is None or _AS_MEANT.fullmatch(found[2])
    if not as_meant or not _parsed(conninfo):  # not raised in an `except`: libpq's text would be the error's context
        raise ServerError(
            "this is not a DSN that PostgreSQL understands: neither a URI, postgresql://user:password@host:port/name "
            "with @ : / ? # % in the password as %40 %3A %2F %3F %23 %25, nor words, host=... password='...'. "
            "It is not shown, since it may hold a password"
        )
    return conninfo


def _parsed(conninfo: str) -> bool:
    """Whether libpq can parse it, with numbers as ports."""
    try:
        known = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        return False
    return _PORTS.fullmatch(str(known.get("port") or "")) is not None
