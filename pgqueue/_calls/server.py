"""Calls of 2_base/server.sql: which server this is."""

from __future__ import annotations

from datetime import datetime
from typing import LiteralString, NamedTuple

from .call import Call, query

#: Behind a query for a task by its id: an id of another server is refused. PostgreSQL evaluates a LIMIT in any case; a
#: condition on own_id() is not evaluated where the plan meets no row before it.
OWN: LiteralString = "LIMIT CASE WHEN pgqueue.own_id(id => %s::bigint) IS NULL THEN 0 END"


class Whereabouts(NamedTuple):
    """The database of a connection: equal for two connections to the same one, by whatever address.

    A copy of the files of a server has its identifier, but was not started at the same moment. Each promotion of a
    standby begins a timeline with a higher number; None: the server is a standby.
    """

    system: int
    started_at: datetime
    database: int
    number: int
    timeline: int | None


def whereabouts() -> Call[Whereabouts]:
    return _where("pgqueue.server_number()")


def database() -> Call[Whereabouts]:
    """As whereabouts(), of a database that may have no schema of pgqueue yet, as if it were server 0."""
    return _where("0")


def _where(number: LiteralString) -> Call[Whereabouts]:
    return query(
        f"SELECT s.system_identifier, pg_catalog.pg_postmaster_start_time(), d.oid::bigint, {number},"
        " CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN ('x' OPERATOR(pg_catalog.||) pg_catalog.left("
        "pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::int END"
        " FROM pg_catalog.pg_control_system() s, pg_catalog.pg_database d"
        " WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()",
        (),
        lambda rows: Whereabouts(*rows[0]),
    )
