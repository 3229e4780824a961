"""Fixtures of the tests of workers."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import psycopg
import pytest
from checkout import HELPERS


@pytest.fixture
def crunch(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of jobs that child processes import, with a client of this test's database."""
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    monkeypatch.syspath_prepend(str(HELPERS))
    sys.modules.pop("crunch", None)
    module = importlib.import_module("crunch")
    yield module
    module.client.close()
    del sys.modules["crunch"]


@pytest.fixture
def numbered(dsns: list[str]) -> Iterator[list[psycopg.Connection]]:
    """A connection to each of the servers, which have the numbers 1, 2 and 3."""
    with contextlib.ExitStack() as stack:
        conns = [stack.enter_context(psycopg.connect(dsn, autocommit=True)) for dsn in dsns]
        for number, conn in enumerate(conns, 1):
            conn.execute("SELECT pgqueue.set_server(%s)", (number,))
        yield conns
