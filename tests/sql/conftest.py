"""Fixtures of the tests of SQL: roles and their connections, and locks for which nothing waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from rights_victim import roles

Connect = Callable[..., psycopg.Connection]
MakeRole = Callable[..., str]


@pytest.fixture
def make(db: psycopg.Connection) -> Iterator[MakeRole]:
    with roles(db) as new:
        yield new


@pytest.fixture
def user(connect: Connect, make: MakeRole) -> psycopg.Connection:
    """A role that may use all open queues."""
    return connect(options=f"-c role={make()}")


@pytest.fixture
def impatient(db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection waits for a lock. ALTER DATABASE would do the same, and costs each test a new database."""
    db.execute("SET lock_timeout = '2s'")
    monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=2s")  # of connections to come
