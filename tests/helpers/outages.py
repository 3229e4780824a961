"""A database that is away for a while: nobody is let in, and who was in is thrown out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from servers import Server


@contextmanager
def away(server: Server, dsn: str) -> Iterator[None]:
    name = str(conninfo_to_dict(dsn)["dbname"])
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    with server.connect() as admin:
        admin.execute(allow.format(sql.Identifier(name), False))
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            admin.execute(allow.format(sql.Identifier(name), True))
