"""Hot reload, of a client's thread and of a worker's handlers, under load."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eventually import eventually, soon
from processes import programs
from statements import row, rows, value

import pgqueue
from pgqueue import Worker
from pgqueue._engine import direct

pytestmark = pytest.mark.once

Blocking = Callable[..., pgqueue.Client]
SESSIONS = "SELECT id, backend_pid FROM pgqueue.sessions"
OURS = tuple(f"pgqueue-{role}" for role in ("listener", "fetcher", "runner", "loop", "settler", "relief"))


OTHERS = set[threading.Thread]()  # of tests before, which may end late


@pytest.fixture(autouse=True)
def others() -> None:
    OTHERS.clear()
    OTHERS.update(threading.enumerate())


def listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pgqueue-listener" and thread not in OTHERS]


def of_ours() -> Counter[str]:
    """How many threads there are of each name. Without those of pools, which come and go with their use."""
    now = set(threading.enumerate()) - OTHERS
    return Counter(thread.name for thread in now if thread.name.startswith(OURS))


# --- a client's thread


async def test_a_reload_replaces_the_thread_and_nothing_else(client, queue, db):
    taken = await (await queue.put("x")).peek()
    taken = await queue.take(0)
    (old,) = listeners()
    session = rows(db, SESSIONS)
    await client.reload()
    (new,) = listeners()
    assert new is not old
    assert not old.is_alive()
    assert rows(db, SESSIONS) == session
    assert (await taken.ack()).state == "done"


async def test_takers_that_wait_are_served_after_it(shell, client, queue):
    import asyncio

    waiting = [asyncio.ensure_future(queue.take(30)) for _ in range(5)]
    channels = client.shell.core.listener().hub._channels
    await soon(lambda: sum(len(channel.waiters) for channel in channels.values()) == 5)
    await client.reload()
    put = [(await shell.client().queue("q").put(n)).id for n in range(5)]
    assert sorted([(await taker).id for taker in waiting]) == put
    assert len(listeners()) == 1


async def test_subscriptions_locks_and_callbacks_live_on(client, queue, db):
    calls: list[str] = []
    subscription = await client.subscribe("news")
    lock = await client.try_lock("mine")
    await queue.on_task_change(lambda change: calls.append(change.op))
    for turn in range(3):
        await client.reload()
        await client.post("news", str(turn))
        assert await subscription.get(30) == str(turn)
    await queue.put("x")
    await client.post("news", "after the put")
    assert await subscription.get(30) == "after the put"
    await soon(lambda: calls == ["put"])
    assert subscription.gaps == 0
    await lock.check()


async def test_without_a_thread_there_is_nothing_to_do(client):
    await client.queue("q").put("x")
    await client.reload()
    assert client.shell.core.running_listener is None


async def test_a_closed_client_cannot_be_reloaded(client):
    await client.close()
    with pytest.raises(pgqueue.ClosedError):
        await client.reload()


def test_a_callback_cannot_reload_the_thread_that_it_runs_in(blocking, caplog):
    client = blocking()
    queue = client.queue("q")
    queue.on_task_change(lambda change: client.reload())
    queue.put("x")
    eventually(lambda: "RuntimeError: reload() in a callback" in caplog.text)
    assert len(listeners()) == 1


def test_a_callback_may_close_the_client_while_another_thread_reloads_it(blocking):
    client = blocking()
    queue, in_callback = client.queue("q"), threading.Event()
    old = client.shell.core.listener()

    def close(change: pgqueue.types.Change) -> None:
        in_callback.set()
        eventually(lambda: old._handing_over)
        client.close()

    queue.on_task_change(close)
    with ThreadPoolExecutor(1) as thread:
        queue.put("x")
        assert in_callback.wait(30)
        thread.submit(client.reload).result(30)
    eventually(lambda: listeners() == [])


def test_a_reload_while_the_server_is_away(blocking, queue_of, monkeypatch):
    """The next thread tries on where the old one did."""
    client = blocking()
    queue = queue_of(client)
    connect, tries = direct.connect, threading.Semaphore(0)

    def refused(*given: Any) -> Any:
        tries.release()
        raise psycopg.OperationalError("refused for the test")

    monkeypatch.setattr(direct, "connect", refused)
    client.shell.core.listener()._conn.close()  # type: ignore[union-attr]
    client.shell.core.listener().poke()
    assert tries.acquire(timeout=30)
    assert tries.acquire(timeout=30)
    client.reload()
    monkeypatch.setattr(direct, "connect", connect)
    task = queue.put("x")
    taken = queue.take(timeout=10)
    assert taken is not None
    assert taken.id == task.id


@pytest.fixture
def queue_of() -> Callable[[pgqueue.Client], pgqueue.Queue]:
    """A queue of a client whose listener is connected."""

    def make(client: pgqueue.Client) -> pgqueue.Queue:
        listener = client.shell.core.listener()
        eventually(lambda: listener.session)
        return client.queue("q")

    return make


@pytest.mark.slow
def test_reloads_and_a_close_at_once_end_with_no_thread(dsn):
    for _ in range(10):
        client = pgqueue.Client(dsn)
        client.queue("q").take(0)
        with ThreadPoolExecutor(4) as threads:
            reloads = [threads.submit(client.reload) for _ in range(3)]
            threads.submit(client.close).result(30)
            for reload in reloads:
                with contextlib.suppress(pgqueue.ClosedError):
                    reload.result(30)
        assert listeners() == []


def test_a_close_in_the_middle_of_a_reload_waits_for_the_new_thread(dsn, db, monkeypatch):
    """Else it returns while the session is still there."""
    client = pgqueue.Client(dsn)
    client.queue("q").take(0)
    listener = client.shell.core.listener()
    start, closing = listener._start, list[Any]()

    def start_late() -> None:
        closing.append(threads.submit(client.close))
        assert wait(closing, timeout=0.3).not_done
        start()

    monkeypatch.setattr(listener, "_start", start_late)
    with ThreadPoolExecutor(1) as threads:
        client.reload()
        closing[0].result(30)
    assert listeners() == []
    assert rows(db, SESSIONS) == []


def test_a_child_forked_after_a_reload_takes_by_itself(blocking):
    client = blocking()
    queue = client.queue("q")
    queue.take(0)
    client.reload()
    gc.collect()
    task = queue.put("x")
    child = os.fork()
    if child == 0:
        try:
            taken = queue.take(timeout=10)
            os._exit(0 if taken is not None and taken.id == task.id and taken.ack() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(listeners()) == 1


@pytest.mark.slow
def test_twenty_reloads_under_load_lose_nothing(dsn: str, db: psycopg.Connection, blocking: Blocking) -> None:
    """Threads put and take through the client that is reloaded, and processes take beside them."""
    db.execute("CREATE TABLE acked (task_id bigint NOT NULL, pid int NOT NULL)")
    client, calls, put = blocking(), Counter[int](), list[int]()
    queue, over = client.queue("q"), threading.Event()

    def producer(n: int) -> None:
        while not over.is_set():
            put.append(queue.put(n).id)

    def taker() -> list[int]:
        acked = []
        while not (over.is_set() and queue.stats()["total"] == 0):
            if task := queue.take(timeout=0.5):
                task.ack()
                acked.append(task.id)
        return acked

    def count(change: pgqueue.types.Change) -> None:
        if change.op == "put":
            calls[change.task_id] += 1

    queue.on_task_change(count)
    ready = threading.Semaphore(0)
    with ThreadPoolExecutor(6) as threads, programs() as start:
        others = [start("taker", dsn, "q", 5, heard=lambda line: ready.release()) for _ in range(2)]
        assert ready.acquire(timeout=30)
        assert ready.acquire(timeout=30)
        producing = [threads.submit(producer, n) for n in range(2)]
        taking = [threads.submit(taker) for _ in range(4)]
        eventually(lambda: len(put) > 20 and listeners())
        session, before = rows(db, f"{SESSIONS} WHERE backend_pid <> 0"), of_ours()["pgqueue-listener"]
        mine = client.shell.core.listener().session
        for _ in range(20):
            mark = len(put)
            client.reload()
            eventually(lambda mark=mark: len(put) > mark + 5)  # type: ignore[misc]
        assert of_ours()["pgqueue-listener"] == before == 1
        assert client.shell.core.listener().session == mine
        assert rows(db, f"{SESSIONS} WHERE backend_pid <> 0") == session
        over.set()
        for future in producing:
            future.result(30)
        acked = [id for future in taking for id in future.result(60)]
        assert [other.end() for other in others] == [0, 0]
    acked += [id for (id,) in rows(db, "SELECT task_id FROM acked")]
    assert sorted(acked) == sorted(put)  # each of them, once
    eventually(lambda: len(calls) == len(put))
    assert calls == Counter(put)
    assert rows(db, "SELECT FROM pgqueue.take") == []
    print(f"{len(put)} tasks over 20 reloads")


# --- a worker's handlers


class Running:
    """A worker in a thread, stopped at the end of the block."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._threads = ThreadPoolExecutor(1)
        self._run = self._threads.submit(worker.run)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exception: object) -> None:
        self.worker.stop()
        self._run.result(30)
        self._threads.shutdown()


class Held:
    """A handler that says what it began, and ends when it may."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.go_on = threading.Event()

    def __call__(self, data: Any) -> None:
        self.begun.append(data)
        assert self.go_on.wait(30)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_new_handlers_begin_while_the_old_ones_end(blocking, kind):
    client = blocking()
    queue, old, seen = client.queue("q"), Held(), list[Any]()
    client.handler("q")(old)
    with Running(Worker(client, concurrency=2)) as running:
        before = queue.put("before")
        eventually(lambda: old.begun == ["before"])

        if kind == "sync":
            client.handler("q")(seen.append)
        else:

            async def new(data: Any) -> None:
                seen.append(data)

            client.handler("q")(new)
        running.worker.reload()
        eventually(lambda: of_ours()["pgqueue-relief"] == 1)
        queue.put_many(range(5))
        eventually(lambda: sorted(seen) == list(range(5)))
        assert queue.peek(before).state == "taken"
        old.go_on.set()
        eventually(lambda: queue.stats()["total"] == 0)
        eventually(lambda: of_ours()["pgqueue-relief"] == 0)
    assert old.begun == ["before"]


def test_a_stop_waits_for_the_shift_before(blocking):
    client = blocking()
    queue, old = client.queue("q"), Held()
    worker = Worker(client, handlers := {"q": old})
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(worker.run)
        queue.put("x")
        eventually(lambda: old.begun == ["x"])
        handlers["q"] = print  # type: ignore[assignment]
        worker.reload()
        eventually(lambda: of_ours()["pgqueue-relief"] == 1)
        worker.stop()
        eventually(lambda: of_ours()["pgqueue-fetcher"] == 0)
        assert not run.done()
        old.go_on.set()
        run.result(30)
    assert queue.stats()["total"] == 0


def half_saved() -> pgqueue.Client:
    raise SyntaxError("half saved")


@pytest.mark.parametrize(
    "load",
    [half_saved, lambda: pgqueue.Client("host=/nowhere"), lambda: None],
    ids=["raises", "no handler", "no client"],
)
def test_what_cannot_be_loaded_leaves_the_old_at_work(blocking, caplog, load):
    client = blocking()
    queue, seen = client.queue("q"), list[Any]()
    client.handler("q")(seen.append)
    with Running(Worker(client, load=load)) as running:
        queue.put("x")
        eventually(lambda: seen == ["x"])
        before = of_ours()
        running.worker.reload()
        eventually(lambda: "reloading failed: going on with the old handlers" in caplog.text)
        queue.put("y")
        eventually(lambda: seen == ["x", "y"])
        assert running.worker.client is client
        assert of_ours() == before


def test_a_handler_without_a_signature_leaves_no_thread_behind(blocking, caplog):
    client = blocking()
    queue, seen = client.queue("q"), list[Any]()
    client.handler("q")(seen.append)
    with Running(Worker(client)) as running:
        queue.put(1)
        eventually(lambda: seen == [1])
        before = of_ours()
        client.handler("q")(type)  # inspect cannot say what it takes
        running.worker.reload()
        eventually(lambda: "reloading failed" in caplog.text)
        eventually(lambda: of_ours() == before)
        client.handler("q")(seen.append)
        queue.put(2)
        eventually(lambda: seen == [1, 2])


def test_another_client_takes_the_place_of_the_old_one_which_is_closed(dsn, db):
    seen: list[Any] = []

    def load() -> pgqueue.Client:
        new = pgqueue.Client(dsn, poll=None)
        new.handler("q")(lambda data: seen.append(("new", data)))
        return new

    old = pgqueue.Client(dsn, poll=None)
    held = Held()
    old.handler("q")(held)
    with Running(Worker(old, load=load)) as running, pgqueue.Client(dsn) as other:
        queue = other.queue("q")
        queue.put(1)
        eventually(lambda: held.begun == [1])
        running.worker.reload()
        eventually(lambda: of_ours()["pgqueue-relief"] == 1)
        queue.put(2)
        eventually(lambda: seen == [("new", 2)])
        assert not old.shell.core.closed  # its task is not done
        held.go_on.set()
        eventually(lambda: old.shell.core.closed and len(listeners()) == 1)
        eventually(lambda: queue.stats()["total"] == 0)  # the new one acks in its own time
        assert value(db, "SELECT count(*) FROM pgqueue.sessions") == 1
    running.worker.home.close()


@pytest.mark.slow
def test_twenty_reloads_of_a_worker_under_load_lose_nothing(blocking: Blocking, db: psycopg.Connection) -> None:
    client, other = blocking(), blocking()
    done, lock = Counter[int](), threading.Lock()

    def handler(generation: int) -> Callable[[Any], None]:
        def handle(data: Any) -> None:
            with lock:
                done[data] += 1

        return handle

    client.handler("q")(handler(0))
    queue, total = other.queue("q"), 0
    with Running(Worker(client, concurrency=4)) as running:
        queue.put(0)
        eventually(lambda: done[0] == 1)
        before, session = of_ours(), client.shell.core.listener().session
        for generation in range(1, 21):
            queue.put_many(range(total + 1, total + 101))
            total += 100
            client.handler("q")(handler(generation))
            running.worker.reload()
            eventually(lambda total=total: len(done) > total - 50)  # type: ignore[misc]
        eventually(lambda: len(done) == total + 1, within=60)
        eventually(lambda: of_ours() == before)
        assert client.shell.core.listener().session == session
        eventually(lambda: queue.stats()["total"] == 0)
    assert set(done) == set(range(total + 1))
    assert max(done.values()) == 1
    assert rows(db, "SELECT FROM pgqueue.take") == []


# --- `pgqueue worker`

MODULE = """
    import os
    import pgqueue
    from {below} import VERSION

    client = pgqueue.Client(os.environ["PGQUEUE_DSN"], poll=None)

    @client.handler("q")
    def handle(data, task):
        client.queue("out").put([VERSION, data])
        if data == "wait":
            client.queue("gate").take()
            client.queue("out").put([VERSION, "waited", client is handle.__globals__["client"]])
"""


class App:
    """A package with handlers in a folder, and the process of a worker that runs them."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self._package = folder / "shop"
        self._package.mkdir()
        self.write(1)
        environment = os.environ | {"PGQUEUE_DSN": dsn, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pgqueue", "-v", "worker", "shop:client"]
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)

    def write(self, version: int, ends: str = "") -> None:
        (self._package / "__init__.py").write_text(textwrap.dedent(MODULE.format(below="shop.version")) + ends)
        (self._package / "version.py").write_text(f"VERSION = {version}\n")

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def log_until(self, text: str) -> None:
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if text in line:
                return
        raise AssertionError("".join(lines))


@pytest.fixture
def app(tmp_path: Path, dsn: str) -> Iterator[App]:
    app = App(tmp_path, dsn)
    yield app
    app.process.kill()
    app.process.wait()
    assert app.process.stderr is not None
    app.process.stderr.close()


@pytest.mark.slow
def test_sighup_loads_the_module_and_what_is_below_it_anew(
    app: App, blocking: Blocking, db: psycopg.Connection
) -> None:
    client = blocking()
    queue, out = client.queue("q"), client.queue("out")

    def next_out() -> Any:
        task = out.take(timeout=20)
        assert task is not None
        task.ack()
        return task.data

    queue.put("wait")
    assert next_out() == [1, "wait"]
    app.write(2)
    app.reload()
    app.log_until("reloaded: working on q")
    queue.put("x")
    assert next_out() == [2, "x"]
    client.queue("gate").put("go on")
    assert next_out() == [1, "waited", True]  # the old code, with the client that it had
    app.write(3, ends="(")
    app.reload()
    app.log_until("reloading failed: going on with the old handlers")
    queue.put("y")
    assert next_out() == [2, "y"]
    app.write(4)
    app.reload()
    app.log_until("reloaded: working on q")
    queue.put("z")
    assert next_out() == [4, "z"]
    eventually(lambda: queue.stats()["total"] == 0)
    eventually(lambda: row(db, "SELECT count(*) FROM pgqueue.sessions") == (2,))  # its one, and ours
    app.process.terminate()
    app.log_until("stopping")
    assert app.process.wait(30) == 0
