"""Roles with a login, as applications have them, and clients of theirs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo


class Roles:
    """Makes roles of random names, and drops them at the end of the test."""

    def __init__(self, dsn: str, db: psycopg.Connection) -> None:
        self._dsn = dsn
        self._db = db
        self._made: list[str] = []

    def __call__(self, *verbs: str, pattern: str = "*", name: str = "pgqueue_test_") -> str:
        """A new role with a login, and with these verbs; its name begins with `name`."""
        role = f"{name}{uuid.uuid4().hex[:12]}"
        self._db.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        self._made.append(role)
        if verbs:
            self.grant_to(role, *verbs, pattern=pattern)
        return role

    def grant_to(self, role: str, *verbs: str, pattern: str = "*") -> None:
        self._db.execute("SELECT pgqueue.grant_to(quote_ident(%s)::regrole, %s, %s)", [role, [*verbs], pattern])

    def dsn(self, role: str) -> str:
        """The test's database, as this role."""
        return make_conninfo(self._dsn, user=role)

    def drop(self) -> None:
        while self._made:
            role = self._made.pop()
            self._db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))


@contextmanager
def made(dsn: str, db: psycopg.Connection) -> Iterator[Roles]:
    roles = Roles(dsn, db)
    try:
        yield roles
    finally:
        roles.drop()
