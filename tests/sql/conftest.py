"""Fixtures of the tests of rights: roles, and a connection of one of them."""

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
