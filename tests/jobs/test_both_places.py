"""The same calls in a database and without one: without_database promises that both do the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from eventually import eventually
from statements import pass_time

import pgqueue
from pgqueue import Retry
from pgqueue.errors import KeyTaken
from pgqueue.testing import drain, without_database

pytestmark = pytest.mark.once

Place = tuple[pgqueue.Client, Callable[[], Any], Callable[[int], Any]]


@pytest.fixture(params=["database", "memory"])
def place(request: pytest.FixtureRequest, client: pgqueue.Client, db: psycopg.Connection) -> Iterator[Place]:
    """A client, a function that runs the tasks that are due, and one that lets seconds pass for tasks."""
    if request.param == "database":
        yield client, lambda: drain(client, propagate=False), lambda seconds: pass_time(db, f"{seconds} s")
        return
    with without_database(client, propagate=False) as tasks:
        yield client, tasks.run, tasks.advance


@contextmanager
def noting(client: pgqueue.Client, **policies: Any) -> Iterator[tuple[Any, list[Any]]]:
    """A job, and the arguments that it ran with."""
    ran: list[Any] = []

    @client.job("q", name="note", retry=Retry(attempts=1), **policies)
    def note(what: Any) -> None:
        ran.append(what)
        if what == "bad":
            raise ValueError

    yield note, ran


def becomes(task: Any, state: str) -> None:
    eventually(lambda: task.outcome().state == state)


# --- a key that a task has


def test_a_put_replaces_the_task_that_has_the_key(place: Place) -> None:
    client, run, _ = place
    with noting(client) as (note, ran):
        first = note.options(key="k", priority=1).put("old")
        again = note.options(key="k", if_exists="replace", priority=3).put("new")
        note.options(priority=2).put("between")
        assert (again.id, again.existed, again.state, again.data["args"]) == (first.id, True, "ready", {"what": "new"})
        run()
        assert ran == ["between", "new"]


def test_a_put_replaces_a_task_that_has_failed_or_is_delayed(place: Place) -> None:
    client, run, passes = place
    with noting(client) as (note, ran):
        note.options(key="k").put("bad")
        run()
        assert note.options(key="k", if_exists="replace", delay=60).put("later").state == "delayed"
        run()
        assert ran == ["bad"]
        now = note.options(key="k", if_exists="replace").put("now")
        assert (now.state, now.outcome().attempts, now.outcome().error) == ("ready", 0, None)
        run()
        passes(60)
        run()
        assert ran == ["bad", "now"]


def test_a_taken_task_is_not_replaced(place: Place) -> None:
    client, run, _ = place
    refused = []

    @client.job("q", name="replace")
    def replace() -> None:
        with pytest.raises(KeyTaken, match="and is taken: it cannot be replaced"):
            replace.options(key="k", if_exists="replace").put()
        refused.append(True)

    replace.options(key="k").put()
    run()
    assert refused == [True]


def test_a_task_that_is_replaced_waits_for_the_same_tasks(place: Place) -> None:
    client, run, _ = place
    with noting(client) as (note, ran):
        note.options(key="k", after=note.options(priority=5).put("before")).put("old")
        assert note.options(key="k", if_exists="replace").put("new").state == "waiting"
        run()
        eventually(lambda: (run(), ran == ["before", "new"])[1])


# --- unique for a time


def test_a_task_that_has_ended_within_unique_for_is_unknown(place: Place) -> None:
    client, run, _ = place
    with noting(client, unique_for=60) as (note, ran):
        first, cancelled, failed = note.put("done"), note.put("cancelled"), note.put("bad")
        cancelled.cancel()
        run()
        again = [note.put(what) for what in ("done", "cancelled", "bad")]
        assert [(one.id, one.existed) for one in again] == [(one.id, True) for one in (first, cancelled, failed)]
        assert [one.state for one in again] == ["unknown", "unknown", "buried"]
        assert [one.data is None for one in again] == [True, True, False]
        assert ran == ["done", "bad"]


def test_only_puts_with_unique_for_go_by_its_time(place: Place) -> None:
    client, run, _ = place
    with noting(client) as (note, ran):
        first = note.options(key="k", unique_for=60).put(1)
        assert note.options(key="k").put(2).id == first.id
        run()
        second = note.options(key="k").put(3)
        assert not second.existed
        assert note.options(key="k", unique_for=60).put(4).id == first.id
        assert client.queue("q").cancel(key="k") == "cancelled"
        assert second.outcome().state == "cancelled"
        assert ran == [1]


# --- tasks that wait for others


def test_the_delay_of_a_task_begins_with_the_end_of_the_others(place: Place) -> None:
    client, run, passes = place
    with noting(client) as (note, ran):
        then = note.options(after=note.put("first"), delay=60).put("then")
        passes(90)
        run()
        becomes(then, "delayed")
        passes(30)
        run()
        assert ran == ["first"]
        passes(31)
        run()
        assert ran == ["first", "then"]


@pytest.mark.parametrize(
    ("on_failure", "failed", "gone"), [("wait", "waiting", "buried"), ("bury", "buried", "buried")]
)
def test_what_becomes_of_a_task_after_one_that_failed_or_is_gone(
    place: Place, on_failure: Any, failed: str, gone: str
) -> None:
    """At once, while other tasks before it are not done."""
    client, run, _ = place
    with noting(client) as (note, _):
        cancelled, bad, slow = note.put("cancelled"), note.put("bad"), note.options(delay=60).put("slow")
        after_gone = note.options(after=[slow, cancelled], on_failure=on_failure).put(1)
        after_failed = note.options(after=[slow, bad], on_failure=on_failure).put(2)
        at_its_end = note.options(after=after_gone, on_failure="run").put("at its end")
        cancelled.cancel()
        run()
        becomes(after_gone, gone)
        becomes(after_failed, failed)
        error = f"task {cancelled.id}, for which this task waited, is gone and was not done"
        assert after_gone.outcome().error == error
        if failed == "buried":
            assert after_failed.outcome().error == f"task {bad.id}, for which this task waited, failed"
        eventually(lambda: (run(), at_its_end.outcome().state == "unknown")[1])
