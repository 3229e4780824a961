"""Functions of the schema with another body: a violation that a test plants, to see that its rule finds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg


@contextmanager
def replaced(owner: psycopg.Connection, name: str, old: str, new: str) -> Iterator[None]:
    """The function with another body."""
    found = owner.execute("SELECT pg_get_functiondef(%s::regproc)", [f"pgqueue.{name}"]).fetchone()
    assert found is not None
    assert old in found[0]
    owner.execute(found[0].replace(old, new))
    try:
        yield
    finally:
        owner.execute(found[0])
