"""The neighbours of a task: those that share its lane or its limit."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from statements import put, rows

pytestmark = pytest.mark.once


def near(db: psycopg.Connection, id: int, n: int = 2) -> list[tuple[Any, ...]]:
    return rows(db, "SELECT shares, task, state FROM pgqueue.neighbours(%s, %s)", id, n)


def test_the_nearest_of_a_lane_and_the_one_that_runs(db: psycopg.Connection) -> None:
    ids = [put(db, "q", lane="a") for _ in range(8)]
    for queue, lane in (("q", "b"), ("q", None), ("other", "a")):
        put(db, queue, lane=lane)
    db.execute("SELECT pgqueue.take('q')")
    assert near(db, ids[5]) == [
        ("lane", ids[0], "taken"),
        ("lane", ids[3], "blocked"),
        ("lane", ids[4], "blocked"),
        ("lane", ids[6], "blocked"),
        ("lane", ids[7], "blocked"),
    ]
    assert near(db, ids[0], 1) == [("lane", ids[1], "blocked")]


def test_the_nearest_of_a_limit_in_the_order_of_priorities(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('q'), pgqueue.set_limit('q', concurrency => 1)")
    ids = [put(db, "q", priority=priority) for priority in (5, 1, 3, 2, 4)]
    db.execute("SELECT pgqueue.take('q')")
    assert near(db, ids[2], 1) == [
        ("limit", ids[1], "taken"),
        ("limit", ids[3], "waiting"),
        ("limit", ids[4], "waiting"),
    ]


def test_a_cancelled_task_has_its_slot_until_its_holder_has_ended(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('q'), pgqueue.set_limit('q', concurrency => 2)")
    ids = [put(db, "q") for _ in range(3)]
    db.execute("SELECT pgqueue.take_many('{q}', 2)")
    db.execute("SELECT pgqueue.cancel(%s)", [ids[0]])
    assert near(db, ids[2]) == [("limit", ids[0], "cancelling"), ("limit", ids[1], "taken")]


def test_a_task_of_its_own_has_none(db: psycopg.Connection) -> None:
    first = put(db, "q")
    put(db, "q")
    assert near(db, first) == near(db, 12345) == []
    with pytest.raises(psycopg.Error, match="n must be a whole number from 1"):
        near(db, first, 0)
