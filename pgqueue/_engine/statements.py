"""The statements of one connection as libpq has them: sent, prepared, and their rows read. No waiting.

A statement that is used often is prepared under a name, once per connection, so that the server parses and plans it
once. A name is never used again: the connection may have lost its answer, or the server the statement.

The server loses prepared statements by DEALLOCATE and DISCARD, and refuses one whose columns have other types since an
upgrade of the schema. Both happen before the statement begins, so it can be sent again.

psycopg reads the rows: its Transformer loads a whole result in C, and yields the values that a cursor does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import psycopg
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.errors import FeatureNotSupported, InvalidSqlStatementName, error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from .._values.parameters import Text

PREPARED_AT = 5  # the use at which a statement is prepared, about as in psycopg
MOST = 100  # prepared statements of a connection, as in psycopg: each takes memory of the server

OK, FAILED = ExecStatus.TUPLES_OK.value, ExecStatus.FATAL_ERROR.value
STALE = (InvalidSqlStatementName, FeatureNotSupported)

Rows = list[tuple[Any, ...]]


class Statements:
    """`prepares`: whether statements are prepared. A pooler would prepare them on another client's connection."""

    def __init__(self, conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], prepares: bool) -> None:
        self._pgconn: PGconn = conn.pgconn
        self._transformer = Transformer(conn)
        self._prepares = prepares
        self._names: dict[str, bytes] = {}
        self._uses: dict[str, int] = {}
        self._last = 0

    def send(self, sql: str, values: Sequence[Text]) -> None:
        """Have libpq send the statement as soon as the socket takes it."""
        if (name := self._names.get(sql)) is not None:
            self._pgconn.send_query_prepared(name, values)
        else:
            self._pgconn.send_query_params(numbered(sql), values)

    def received(self, results: list[PGresult]) -> bool:
        """Take the results that have arrived. Returns whether the answer is complete."""
        pgconn = self._pgconn
        pgconn.consume_input()
        while not pgconn.is_busy():
            if (result := pgconn.get_result()) is None:
                while pgconn.notifies():  # this connection listens to no channel; libpq would keep them
                    pass
                return True
            results.append(result)
        return False

    def rest(self, results: list[PGresult]) -> PQGen[list[PGresult]]:
        """Wait for the rest of the results. Raises the server's error."""
        try:
            results += yield from execute(self._pgconn)
        except psycopg.OperationalError:
            if not any(result.status == FAILED for result in results):  # the reason why the connection ended
                raise
        check(results)
        return results

    def is_due(self, sql: str) -> bool:
        """Whether to prepare the statement now. Counts its uses."""
        if not self._prepares or sql in self._names or len(self._names) >= MOST:
            return False
        self._uses[sql] = uses = self._uses.get(sql, 0) + 1
        return uses >= PREPARED_AT

    def prepare(self, sql: str) -> PQGen[None]:
        """Prepare the statement."""
        self._last += 1
        name = b"pgqueue_%d" % self._last
        self._pgconn.send_prepare(name, numbered(sql))
        check((yield from execute(self._pgconn)))
        self._names[sql] = name

    def forget(self, error: psycopg.Error) -> bool:
        """Forget the prepared statements, if the error says that the server refused to begin. Returns whether."""
        stale = isinstance(error, InvalidSqlStatementName) or error.diag.source_function == "RevalidateCachedQuery"
        if stale:
            self._names, self._uses = {}, {}
        return stale

    def rows(self, results: list[PGresult]) -> Rows:
        """The rows of a statement's results."""
        read, last = self._transformer, results[-1]
        read.set_pgresult(last)
        rows = read.load_rows(0, last.ntuples, tuple)
        if len(rows) > 1:
            read.set_pgresult(None)  # it would hold a copy of the rows until its next use
        return rows


def check(results: list[PGresult]) -> None:
    """Raise the error among the results: a commit may fail after the statement has returned its rows."""
    for result in results:
        if result.status == FAILED:
            raise error_from_result(result, encoding="utf-8")


@cache  # there are as many as the library has statements
def numbered(sql: str) -> bytes:
    """The statement with `$1` for the first `%s`, and so on."""
    first, *others = re.split("%s", sql)
    return "".join([first, *(f"${n}{text}" for n, text in enumerate(others, 1))]).encode()
