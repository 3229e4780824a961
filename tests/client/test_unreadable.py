"""Data that PostgreSQL holds and Python cannot: it is shown and settled, and costs no other task."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgqueue import Client
from pgqueue._values.data import Unreadable

DIGITS = "9" * 5000
DEEP = "[" * 3000 + "]" * 3000
VALUES = ["1", DIGITS, DEEP, "2"]


@pytest.fixture
def mixed(db: psycopg.Connection) -> list[int]:
    """The ids of tasks of the queue q, two of which cannot be read."""
    return [db.execute("SELECT id FROM pgqueue.put('q', %s::jsonb)", [text]).fetchone()[0] for text in VALUES]  # type: ignore[index]


def readable(found: list[Any]) -> list[Any]:
    return [type(value) if isinstance(value, Unreadable) else value for value in found]


EXPECTED = [1, Unreadable, Unreadable, 2]


def test_it_is_shown_as_its_text(dsn: str, mixed: list[int]) -> None:
    with Client(dsn) as client:
        queue = client.queue("q")
        assert readable([task.data for task in queue.tasks("ready").tasks]) == EXPECTED
        assert readable([task.data for task in map(queue.peek, mixed)]) == EXPECTED
        assert queue.peek(mixed[1]).data == DIGITS


def test_a_pop_returns_what_it_has_removed(dsn: str, mixed: list[int]) -> None:
    with Client(dsn) as client:
        assert readable([task.data for task in client.queue("q").pop(4)]) == EXPECTED


@pytest.mark.parametrize(
    "call", ["pop('q', 2147483647)", "take_many('{q}', 2147483647)", "claim_messages('q', 2147483647)"]
)
def test_any_number_of_tasks_may_be_asked_for(db: psycopg.Connection, call: str) -> None:
    db.execute("SELECT pgqueue.put('q', '1', lane => 'a'), pgqueue.open_session()")
    assert len(db.execute(f"SELECT * FROM pgqueue.{call}".encode()).fetchall()) == 1
