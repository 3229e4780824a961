"""The SQL contract, on plain connections: no code of the client takes part."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def connect(dsn: str) -> Iterator[Connect]:
    """Makes more connections in autocommit to the test's database."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> psycopg.Connection:
            return stack.enter_context(psycopg.connect(dsn, **({"autocommit": True} | options)))

        yield make
