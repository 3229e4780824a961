"""Processes that are stopped (SIGSTOP) or lose their listener: who keeps its takes, who lost them and hears what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from eventually import eventually
from processes import Program, programs
from statements import state, value
from steady import steady

import pgqueue

Blocking = Callable[..., pgqueue.Client]
GRACE = 0.2


@pytest.fixture
def holder(dsn: str) -> Iterator[Program]:
    with programs() as start:
        yield start("holder", dsn, "q", GRACE)


def backend(db: psycopg.Connection, session: int) -> int:
    return int(value(db, "SELECT backend_pid FROM pgqueue.sessions WHERE id = %s", session))


def terminate(db: psycopg.Connection, pid: int) -> None:
    assert value(db, "SELECT pg_terminate_backend(%s::int, 5000)", pid)


def listener_of(client: pgqueue.Client, db: psycopg.Connection) -> int:
    """The backend of a client's listener, once it has a session."""
    listener = client.shell.core.listener()
    return backend(db, eventually(lambda: listener.session))


# --- stopped


@pytest.mark.slow
def test_a_stopped_taker_past_its_ttr_cannot_ack(blocking: Blocking, holder: Program) -> None:
    queue = blocking().queue("q")
    task = queue.put("x", ttr=2)
    assert holder.ask("take 1") == {"taken": [task.id]}
    holder.stop()
    again = queue.take(timeout=60)
    assert again is not None
    assert (again.id, again.attempts) == (task.id, 1)
    again.touch(60)
    holder.resume()
    answer = holder.ask("ack")
    assert answer["error"] == "TaskTakenByOther"
    assert f"is taken by {queue._shell.core.label}, not by this take of" in answer["message"]
    assert again.ack().state == "done"


@pytest.mark.slow
def test_a_stopped_taker_past_its_ttr_finds_a_task_that_nobody_took(blocking: Blocking, holder: Program) -> None:
    queue = blocking().queue("q")
    task = queue.put("x", ttr=0.2)
    holder.ask("take 1")
    holder.stop()
    eventually(lambda: queue.peek(task).state == "ready")
    holder.resume()
    assert holder.ask("ack")["error"] == "TaskNotTaken"
    assert queue.peek(task).state == "ready"


@pytest.mark.slow
def test_a_stopped_taker_finds_its_task_done_by_another(blocking: Blocking, holder: Program) -> None:
    queue = blocking().queue("q")
    queue.put("x", ttr=2)
    holder.ask("take 1")
    holder.stop()
    again = queue.take(timeout=60)
    assert again is not None
    again.ack()
    holder.resume()
    assert holder.ask("ack")["error"] == "TaskNotFound"


@pytest.mark.slow
def test_a_stopped_taker_without_its_session_cannot_ack(
    db: psycopg.Connection, blocking: Blocking, holder: Program
) -> None:
    """No ttr: it is the loss of its listener, which it cannot mend while it is stopped, that gives its tasks away."""
    queue = blocking().queue("q")
    task = queue.put("x")
    holder.ask("take 1")
    session = holder.ask("session")["session"]
    holder.stop()
    terminate(db, backend(db, session))
    again = queue.take(timeout=60)
    assert again is not None
    assert (again.id, again.attempts) == (task.id, 1)
    holder.resume()
    assert holder.ask("ack")["error"] == "TaskTakenByOther"
    assert again.ack().state == "done"
    eventually(lambda: holder.ask("session")["session"] not in (None, session))


@pytest.mark.slow
def test_a_stopped_taker_with_a_live_session_keeps_its_takes(
    db: psycopg.Connection, blocking: Blocking, holder: Program
) -> None:
    """However long it sleeps, there is a connection behind its session: no guess is made about it."""
    queue = blocking().queue("q")
    task = queue.put("x")
    holder.ask("take 1")
    holder.stop()
    assert queue.take(timeout=GRACE + 1) is None  # four ticks of our sweep, at least
    assert state(db, task.id) == "taken"
    holder.resume()
    assert holder.ask("ack") == {"acked": True}


# --- the listener terminated


def test_waiters_are_served_though_their_listener_is_terminated(
    dsn: str, db: psycopg.Connection, blocking: Blocking
) -> None:
    client, other = blocking(), blocking()
    with ThreadPoolExecutor(3) as threads:
        taken = [threads.submit(client.queue("q").take, 60) for _ in range(3)]
        terminate(db, listener_of(client, db))
        with steady(dsn) as watch:
            other.queue("q").put_many(range(3))
            assert all(future.result() for future in taken)
            assert watch() < 2


def test_a_session_is_resumed_and_keeps_its_takes(db: psycopg.Connection, blocking: Blocking) -> None:
    client = blocking()
    queue = client.queue("q")
    queue.put("x")
    task = queue.take(0)
    assert task is not None
    listener = client.shell.core.listener()
    session, pid = listener.session, listener_of(client, db)
    blocking().queue("q").take(0)  # somebody else who sweeps
    terminate(db, pid)
    eventually(lambda: value(db, "SELECT backend_pid <> %s FROM pgqueue.sessions WHERE id = %s", pid, session))
    eventually(lambda: listener.session == session)
    assert state(db, task.id) == "taken"
    assert task.ack().state == "done"


@pytest.mark.slow
def test_a_listener_that_is_terminated_all_the_time_loses_nothing(db: psycopg.Connection, blocking: Blocking) -> None:
    """Tasks arrive while it is being killed: before its LISTEN, after it, and when nobody listens."""
    client, other = blocking(), blocking()
    queue = client.queue("q")
    for number in range(20):
        with ThreadPoolExecutor(1) as thread:
            taken = thread.submit(queue.take, 60)
            terminate(db, listener_of(client, db))
            other.queue("q").put(number)
            task = taken.result()
        assert task is not None
        assert task.data == number
        task.ack()


def test_a_queue_that_was_lost_with_the_server_is_looked_up_again(
    dsn: str, db: psycopg.Connection, blocking: Blocking
) -> None:
    """A fail-over, or a crash, may take back the row that a waiting take made: its next life has another id."""
    client, other = blocking(), blocking()
    with ThreadPoolExecutor(1) as thread:
        taken = thread.submit(client.queue("q").take, 60)
        eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.queue") == 1)
        pid = listener_of(client, db)
        db.execute("DELETE FROM pgqueue.queue")  # not TRUNCATE: its table locks deadlock with a tick now and then
        db.execute("DELETE FROM pgqueue.session")
        terminate(db, pid)
        other.queue("q").put("x")
        with steady(dsn) as watch:
            assert taken.result() is not None
            assert watch() < 2
