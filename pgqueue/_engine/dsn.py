"""The server that a client connects to, and whether its schema fits."""

from __future__ import annotations

import os
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from .. import sql as schema
from .._calls.sqlstates import translate
from .._values.conninfo import plain as plain  # migrate, a layer below, needs it too
from .._values.logs import log
from ..errors import CallTimeout, SchemaError, ServerError, SetupError
from .bounded import Late
from .scarcity import with_remedy

FIRST_USE = int.from_bytes(b"pgq 1use")  # the advisory lock of the process that migrates an embedded server


def resolve(given: str | None) -> str:
    """The conninfo to use: `given`, else PGQUEUE_DSN, else DATABASE_URL, else the embedded server, which is started."""
    sources = {
        "the dsn given": given,
        "PGQUEUE_DSN": os.environ.get("PGQUEUE_DSN"),
        "DATABASE_URL": os.environ.get("DATABASE_URL"),
    }
    for source, value in sources.items():
        if value:
            conninfo = plain(value)
            log.info("pgqueue uses %s: %s", source, describe(conninfo))
            return conninfo
    conninfo = of_embedded()
    log.info("pgqueue uses the embedded server: %s", describe(conninfo))
    return conninfo


def describe(conninfo: str) -> str:
    """Host, database and user of a conninfo, without secrets."""
    known = conninfo_to_dict(conninfo)
    return " ".join(f"{key}={known[key]}" for key in ("host", "port", "dbname", "user") if known.get(key))


def unreachable(conninfo: str, reason: object) -> ServerError:
    return ServerError(f"cannot connect to PostgreSQL ({describe(conninfo)}): {with_remedy(reason)}")


def schema_fault(conn: psycopg.Connection[Any]) -> Exception | None:
    """The error that keeps this library from working on an autocommit connection's database, or None."""
    try:
        return schema.mismatch([row[0] for row in conn.execute(schema.VERSIONS).fetchall()])
    except psycopg.errors.InsufficientPrivilege:
        quoted = conn.execute("SELECT current_user, quote_literal(quote_ident(current_user))").fetchone()
        name, role = quoted or ("", "''")
        return SetupError(
            f"the role {name!r} may not use pgqueue: let the schema's owner run SELECT pgqueue.grant_to({role})"
        )
    except Late as error:
        return CallTimeout(str(error))
    except psycopg.Error as error:
        if error.sqlstate is None:  # not from the server: the connection was lost
            return translate(error, lost=True)
        return schema.mismatch(sqlstate=error.sqlstate) or translate(error, lost=conn.closed)


def of_embedded() -> str:
    """Start or join the embedded server. It has no administrator, so this function migrates its schema.

    Of several processes that find no schema one migrates, and the others look again: a second migration to the same
    version would create the functions again, and deadlock with the calls of the first process.
    """
    from .. import embedded, migrate

    conninfo = embedded.default_server().dsn()
    with psycopg.connect(conninfo, autocommit=True) as conn:
        if _is_unfit(conn):
            conn.execute("SELECT pg_catalog.pg_advisory_lock(%s)", [FIRST_USE])
            if _is_unfit(conn):
                migrate.up(conninfo)
    return conninfo


def _is_unfit(conn: psycopg.Connection[Any]) -> bool:
    """Whether the schema does not fit. Raises an error if that cannot be found out: that is no reason to migrate."""
    fault = schema_fault(conn)
    if fault is not None and not isinstance(fault, SchemaError):
        raise fault
    return fault is not None
