"""The worker in Ruby, as a process beside clients of the library: it is woken, killed, cut off and ended."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psycopg
import pytest
from checkout import CHECKOUT
from commands import environment
from eventually import eventually
from psycopg.conninfo import make_conninfo
from refusing import refusing
from statements import value
from steady import steady


def has_ruby() -> bool:
    ruby = shutil.which("ruby")
    return bool(ruby) and subprocess.run([str(ruby), "-rpg", "-e", ""], capture_output=True).returncode == 0


pytestmark = [pytest.mark.once, pytest.mark.skipif(not has_ruby(), reason="needs ruby and ruby-pg")]
BACK = 0.5 + 0.25  # seconds: the grace and a tick
PROMISE = 1.0  # seconds: "within a second"
STEPS = 5  # of a task that comes back: its connection ends, three looks, and the worker that has it says so


class Ruby:
    """A running worker; `lines` are what it printed: for each task, its id, its queue, the time and its data."""

    def __init__(self, dsn: str, errors: Path) -> None:
        self.errors = errors
        with errors.open("a") as stderr:
            self.process = subprocess.Popen(
                ["ruby", str(CHECKOUT / "examples" / "worker.rb"), "q"],
                env=environment(PGQUEUE_DSN=dsn),
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self._lines: SimpleQueue[list[Any]] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            id, _, began, data = line.split(" ", 3)
            self._lines.put([int(id), float(began), json.loads(data)])

    def began(self) -> list[Any]:
        """The id, time and data of the next task."""
        return self._lines.get(timeout=30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)


@pytest.fixture
def ruby(dsn: str, tmp_path: Path) -> Iterator[Callable[..., Ruby]]:
    running: list[Ruby] = []

    def start(place: str = dsn) -> Ruby:
        running.append(Ruby(place, tmp_path / "errors"))
        return running[-1]

    yield start
    for each in running:
        each.kill()


def sleeps(db: psycopg.Connection, workers: int = 1) -> None:
    """Until so many connections listen to the queue, and are armed: a put notifies."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'worker.rb' AND state = 'idle' AND query"
    eventually(lambda: value(db, f"{waiting} LIKE '%%take_or_listen%%'") == workers)
    eventually(lambda: value(db, "SELECT pgqueue._is_awaited(pgqueue.queue_id('q'))"))


@contextmanager
def watching(dsn: str, steps: int = 0) -> Iterator[Any]:
    """Seconds since the beginning of the block, up to a time of time.time(), without the machine's part.

    This part is its stalls, and for each of the steps what a step of the control takes.
    """
    with steady(dsn) as watch:
        start = time.time()
        yield lambda until: until - start - watch.lost(start, until) - steps * watch.step()


@pytest.mark.slow
def test_it_takes_acks_and_ends(db: psycopg.Connection, ruby: Any, blocking: Any) -> None:
    queue = blocking().queue("q")
    tasks = queue.put_many([{"n": 1}, "two", None])
    worker = ruby()
    assert [worker.began()[2] for _ in tasks] == [{"n": 1}, "two", None]
    failed = queue.put({"error": "no such address"})
    assert worker.began()[0] == failed.id
    found = eventually(lambda: (task := failed.peek()).state == "delayed" and task)
    assert (found.attempts, found.error) == (1, "RuntimeError: no such address")
    slow = queue.put({"seconds": 0.5})
    assert worker.began()[0] == slow.id
    assert worker.end() == 0  # after the task
    assert worker.errors.read_text() == ""
    assert value(db, "SELECT count(*) FROM pgqueue.tasks WHERE state <> 'delayed'") == 0
    assert value(db, "SELECT count(*) FROM pgqueue.sessions WHERE label LIKE 'worker.rb%%'") == 0


@pytest.mark.slow
def test_a_put_wakes_it(db: psycopg.Connection, dsn: str, ruby: Any) -> None:
    """Its own look comes four times a second, which the median of twenty would show as 125 ms."""
    worker = ruby()
    times = []
    for n in range(20):
        sleeps(db)
        with watching(dsn) as seconds:
            db.execute("SELECT FROM pgqueue.put('q', %s::jsonb)", [str(n)])
            times.append(seconds(worker.began()[1]))
    assert sorted(times)[10] < 0.03, times


@pytest.mark.slow
def test_a_killed_worker_in_ruby_gives_its_task_to_one_in_python(dsn: str, ruby: Any, blocking: Any) -> None:
    queue, times = blocking().queue("q"), []
    for _ in range(3):
        task = queue.put({"seconds": 60})
        worker = ruby()
        assert worker.began()[0] == task.id
        with watching(dsn, STEPS) as seconds:
            worker.process.kill()
            taken = queue.take(10)
            times.append(seconds(time.time()))
        assert taken.id == task.id
        taken.ack()
    came_back(times)


@pytest.mark.slow
def test_a_killed_worker_in_python_gives_its_task_to_one_in_ruby(
    db: psycopg.Connection, dsn: str, ruby: Any, start: Any
) -> None:
    times = []
    for _ in range(3):
        id = value(db, "SELECT id FROM pgqueue.put('q', '1')")
        holder = start("holder", dsn, "q", 0.5)
        assert holder.ask("take 1") == {"taken": [id]}
        worker = ruby()
        sleeps(db)
        with watching(dsn, STEPS) as seconds:
            holder.kill()
            began = worker.began()
            times.append(seconds(began[1]))
        assert began[0] == id
        eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.tasks") == 0)
        assert worker.end() == 0
    came_back(times)


@pytest.mark.slow
def test_a_worker_that_is_cut_off_goes_on(db: psycopg.Connection, ruby: Any, blocking: Any) -> None:
    """Asleep; and during a task, whose ack it sends again, and which is refused once another worker has the task."""
    worker = ruby()
    sleeps(db)
    cut_off(db)
    queue = blocking().queue("q")
    task = queue.put({"seconds": 2})
    assert worker.began()[0] == task.id
    cut_off(db)
    taken = queue.take(10)
    assert taken.id == task.id
    eventually(lambda: f"task {task.id} was not settled: it is taken by another" in worker.errors.read_text())
    taken.ack()
    after = queue.put("after")
    assert worker.began()[0] == after.id
    assert worker.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("sqlstate", ["40P01", "PQ007"], ids=["deadlock", "lock"])
@pytest.mark.parametrize("event", ["INSERT", "DELETE"], ids=["take", "ack"])
def test_a_call_that_the_server_refuses_for_now_is_made_again(
    db: psycopg.Connection, ruby: Any, blocking: Any, sqlstate: str, event: str
) -> None:
    """On the same connection, so that its session keeps the task."""
    refuse(db, event, sqlstate, times=3)
    queue = blocking().queue("q")
    task = queue.put({"n": 1})
    worker = ruby()
    assert worker.began()[0] == task.id
    eventually(lambda: queue.stats()["total"] == 0)
    assert queue.stats()["calls"]["take"] == 1
    lines = worker.errors.read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["the server refused a call for now"] * 3
    assert worker.end() == 0


def test_another_error_on_a_living_connection_ends_it(db: psycopg.Connection, ruby: Any, blocking: Any) -> None:
    refuse(db, "INSERT", "42501", times=1)
    blocking().queue("q").put({"n": 1})
    worker = ruby()
    assert worker.process.wait(30) == 1
    assert "worker.rb ends: ERROR:  not now" in worker.errors.read_text()


@pytest.mark.parametrize("sqlstate", ["28P01", "3D000"], ids=["password", "database"])
def test_what_a_server_refuses_ends_it_with_the_servers_words(ruby: Any, sqlstate: str) -> None:
    with refusing(sqlstate, "no entry") as here:
        worker = ruby(here)
        assert worker.process.wait(30) == 1
    assert worker.errors.read_text().splitlines()[-1].endswith("FATAL:  no entry")


@pytest.mark.slow
@pytest.mark.parametrize(("sqlstate", "message"), [("57P03", "starting"), ("53300", "sorry, too many clients already")])
def test_a_server_that_may_let_it_in_later_is_asked_again(ruby: Any, sqlstate: str, message: str) -> None:
    with refusing(sqlstate, message) as here:
        worker = ruby(here)
        eventually(lambda: worker.errors.read_text().count(message) >= 4)
        assert worker.process.poll() is None


def test_a_role_without_rights_ends_it_with_the_servers_words(stranger: Any, dsn: str, ruby: Any) -> None:
    with stranger() as conn:
        name = conn.info.user
    worker = ruby(make_conninfo(dsn, user=name, password="stranger"))
    assert worker.process.wait(30) == 1
    assert "permission denied for schema pgqueue" in worker.errors.read_text()


def refuse(db: psycopg.Connection, event: str, sqlstate: str, times: int) -> None:
    """The next calls that write or delete a take fail. A sequence counts them, since they are rolled back."""
    db.execute("CREATE SEQUENCE refused")
    db.execute(f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('public.refused') <= {times} THEN
                RAISE EXCEPTION 'not now' USING ERRCODE = '{sqlstate}';
            END IF;
            RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
        END $$""")
    db.execute(f"CREATE TRIGGER refuse BEFORE {event} ON pgqueue.take FOR EACH ROW EXECUTE FUNCTION refuse()")


def came_back(times: list[float]) -> None:
    """Each time as promised, and as a rule after no more than the parts of that time: the processes work as well."""
    assert max(times) < PROMISE, times
    assert sorted(times)[1] < BACK + 0.1, times


def cut_off(db: psycopg.Connection) -> None:
    backends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'worker.rb'"
    assert value(db, backends) is True
