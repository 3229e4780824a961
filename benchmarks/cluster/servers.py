"""Servers that are numbered from 1 on, their CPU time, and the statements that clients sent to them.

The log of a server has each statement of a session with `log_statement = all`, which counted() asks for. It is written
before the statement is executed, so it is complete once the call has returned. pg_stat_statements would need an
extension, and a wrapper in the client would miss other processes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgqueue import migrate
from pgqueue.embedded import EmbeddedServer

from ..cpu import TreeTime

SETTINGS = {
    "shared_buffers": "64MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",  # each round begins with a checkpoint
    "autovacuum": "off",  # each round begins with VACUUM
    "max_connections": "60",
    "log_line_prefix": "@%d@ ",
}
STATEMENT = re.compile(r"^@([^@]*)@ LOG: {2}(?:execute [^:]*|statement): *(.*(?:\n\t.*)*)", re.MULTILINE)
FUNCTION = re.compile(r"pgqueue\.(\w+)\(")
TICKS = {"tick_ages", "sweep", "promote_all", "clean_up", "fold_deltas"}


@dataclass(frozen=True)
class One:
    server: EmbeddedServer
    log: Path
    tree: TreeTime

    def dsn(self, database: str) -> str:
        return self.server.dsn(database)

    def clone(self, database: str) -> None:
        """Make a database with the schema and the number of this server."""
        with psycopg.connect(self.server.dsn("postgres"), autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE pgqueue").format(sql.Identifier(database)))


@contextmanager
def running(n: int, bindir: str | Path | None) -> Iterator[list[One]]:
    with ExitStack() as stack:
        servers = []
        for number in range(1, n + 1):
            server = stack.enter_context(EmbeddedServer(durable=True, ephemeral=True, settings=SETTINGS, bindir=bindir))
            migrate.up(server.dsn(), server=number)
            servers.append(One(server, server.root / "postgres.log", TreeTime(server.pid or 0)))
        yield servers


def counted(dsn: str) -> str:
    """A DSN whose sessions write their statements into the log."""
    return make_conninfo(dsn, options="-c log_statement=all")


def seconds(servers: Sequence[One]) -> float:
    """The CPU time of all processes of the servers."""
    return sum(one.tree.seconds() for one in servers)


class Sent:
    """The statements of counted sessions since this was made, by database and by the function that they call."""

    def __init__(self, servers: Sequence[One]) -> None:
        self._servers = servers
        self._begin = [one.log.stat().st_size for one in servers]

    def read(self) -> Mapping[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for one, begin in zip(self._servers, self._begin, strict=True):
            with one.log.open(encoding="utf-8") as log:
                log.seek(begin)
                for database, text in STATEMENT.findall(log.read()):
                    found.setdefault(database, Counter())[named(text)] += 1
        return found


def named(text: str) -> str:
    """The function of pgqueue that a statement calls; else its first word."""
    found = FUNCTION.search(text)
    return found[1] if found else text.split(None, 1)[0] if text.strip() else "-"


def calls(found: Counter[str]) -> int:
    """All statements but those of ticks, which do not depend on the tasks."""
    return sum(n for name, n in found.items() if name not in TICKS)
