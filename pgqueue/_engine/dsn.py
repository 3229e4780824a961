"""The server that a client connects to, and the check that its schema fits."""

from __future__ import annotations

import logging
import os
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from .. import sql as schema
from ..errors import ServerError

log = logging.getLogger("pgqueue")


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
    conninfo = _embedded()
    log.info("pgqueue uses the embedded server: %s", describe(conninfo))
    return conninfo


def plain(dsn: str) -> str:
    """A DSN as libpq accepts it, from libpq's form or SQLAlchemy's (postgresql+psycopg://). Raises ServerError."""
    scheme, separator, rest = dsn.partition("://")
    conninfo = scheme.partition("+")[0] + separator + rest if separator else dsn
    try:
        conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as error:
        raise ServerError(f"this is not a DSN that PostgreSQL understands: {error}") from None
    return conninfo


def describe(conninfo: str) -> str:
    """Host, database and user of a conninfo, without secrets."""
    known = conninfo_to_dict(conninfo)
    return " ".join(f"{key}={known[key]}" for key in ("host", "port", "dbname", "user") if known.get(key))


def check(conninfo: str, connect_timeout: float) -> None:
    """Connect once. Raises ServerError if that fails, SchemaError if the schema does not fit this library."""
    try:
        conn = psycopg.connect(conninfo, autocommit=True, connect_timeout=max(1, round(connect_timeout)))
    except psycopg.OperationalError as error:
        raise unreachable(conninfo, error) from None
    with conn:
        if fault := schema_fault(conn):
            raise fault


def unreachable(conninfo: str, error: Exception) -> ServerError:
    return ServerError(f"cannot connect to PostgreSQL ({describe(conninfo)}): {str(error).strip()}")


def schema_fault(conn: psycopg.Connection[Any]) -> Exception | None:
    """The error that keeps this library from working on an autocommit connection's database, or None."""
    try:
        return schema.mismatch([row[0] for row in conn.execute(schema.VERSIONS).fetchall()])
    except psycopg.errors.InsufficientPrivilege:
        return ServerError(
            "this role may not use pgqueue: let the schema's owner run SELECT pgqueue.grant_to('the role')"
        )
    except psycopg.Error as error:
        return schema.mismatch(sqlstate=error.sqlstate) or error


def _embedded() -> str:
    """Start or join the embedded server. It has no administrator, so this function migrates its schema."""
    from .. import embedded, migrate

    conninfo = embedded.default_server().dsn()
    with psycopg.connect(conninfo, autocommit=True) as conn:
        fault = schema_fault(conn)
    if fault:
        migrate.up(conninfo)
    return conninfo
