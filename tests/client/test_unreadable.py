"""Data that PostgreSQL holds and Python cannot: it is shown and settled, and costs no other task."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from eventually import eventually
from running import running
from unreadable import DIGITS, UNREADABLE

from pgqueue import Client, Worker
from pgqueue._values.data import Unreadable

VALUES = ["1", *UNREADABLE, "2"]


@pytest.fixture
def mixed(db: psycopg.Connection) -> list[int]:
    """The ids of tasks of the queue q, all but two of which cannot be read."""
    return [db.execute("SELECT id FROM pgqueue.put('q', %s::jsonb)", [text]).fetchone()[0] for text in VALUES]  # type: ignore[index]


def readable(found: list[Any]) -> list[Any]:
    return [type(value) if isinstance(value, Unreadable) else value for value in found]


EXPECTED = [1, *[Unreadable] * len(UNREADABLE), 2]


def test_it_is_shown_as_its_text(dsn: str, mixed: list[int]) -> None:
    with Client(dsn) as client:
        queue = client.queue("q")
        assert readable([task.data for task in queue.tasks("ready").tasks]) == EXPECTED
        assert readable([task.data for task in map(queue.peek, mixed)]) == EXPECTED
        assert queue.peek(mixed[1]).data == DIGITS


def test_a_pop_returns_what_it_has_removed(dsn: str, mixed: list[int]) -> None:
    with Client(dsn) as client:
        assert readable([task.data for task in client.queue("q").pop(10)]) == EXPECTED


@pytest.mark.parametrize(
    "call", ["pop('q', 2147483647)", "take_many('{q}', 2147483647)", "claim_messages('q', 2147483647)"]
)
@pytest.mark.parametrize("limited", [False, True])
def test_any_number_of_tasks_may_be_asked_for(db: psycopg.Connection, call: str, limited: bool) -> None:
    db.execute("SELECT pgqueue.put('q', '1', lane => 'a'), pgqueue.open_session()")
    if limited:
        db.execute("SELECT pgqueue.set_limit('q', concurrency => 5)")
    assert len(db.execute(f"SELECT * FROM pgqueue.{call}".encode()).fetchall()) == 1


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_job_with_such_arguments_is_buried_at_once(dsn: str, db: psycopg.Connection, text: str) -> None:
    """It would fail each time."""
    with Client(dsn) as client:

        @client.job(queue="q", name="j")
        def j(x: Any) -> None:
            pass

        db.execute("SELECT pgqueue.put('q', %s)", ['{"job": "j", "args": {"x": ' + text + "}}"])
        with running(Worker(client)):
            eventually(lambda: client.queue("q").stats()["buried"])
    assert db.execute("SELECT attempts FROM pgqueue.tasks").fetchall() in ([(0,)], [(1,)])


@pytest.mark.parametrize("text", UNREADABLE)
def test_lists_go_on_beside_it(dsn: str, db: psycopg.Connection, text: str) -> None:
    db.execute("SELECT pgqueue.create_queue('q', metadata => %s)", [text])
    db.execute("SELECT pgqueue.create_node('/n', %s)", [text])
    db.execute("SELECT pgqueue.open_session()")
    db.execute("SELECT pgqueue.join_group('g', %s)", [text])
    db.execute("SELECT pgqueue.set_schedule('s', 'q', %s, every => '1 h')", [text])
    with Client(dsn) as client:
        assert [queue.metadata for queue in client.queues()] == [Unreadable(text)]
        assert client.nodes.get("/n").data == text
        assert [member.data for member in client.groups.members("g")] == [text]
        assert [schedule.data for schedule in client.schedules.list()] == [Unreadable(text)]


def test_a_list_of_workers_goes_on_beside_its_limits(dsn: str, db: psycopg.Connection) -> None:
    limits = f'{{"processes": {DIGITS}}}'
    db.execute("SELECT pgqueue.open_session(), pgqueue.register_worker(1, '{q}', limits => %s)", [limits])
    with Client(dsn) as client:
        found: list[Any] = [worker.limits for worker in client.workers()]
        assert found == [Unreadable(limits)]
