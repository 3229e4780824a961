"""What handlers can do to their worker: kill it, hang, leave, fork, close its client. And how long a stop takes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eventually import PATIENCE, Stopwatch, eventually, in_time
from running import running
from statements import column, row, rows

import pgqueue
from pgqueue import Worker
from pgqueue.cli.worker import GRACE
from pgqueue.errors import Error
from pgqueue.worker import LEAVE, overdue

pytestmark = pytest.mark.once

APP = """
    import asyncio, ctypes, logging, os, pathlib, signal, sys, threading, time
    from concurrent.futures import ThreadPoolExecutor
    import pgqueue

    here = pathlib.Path.cwd()
    client = pgqueue.Client()
    executor = ThreadPoolExecutor(1)

    def exhaust():
        held = []
        while True:
            held.append(bytearray(1 << 24))

    DEATHS = {
        "segfault": lambda: ctypes.string_at(0),
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "exit": lambda: os._exit(0),
        "memory": exhaust,
    }

    def note(name, data):
        with (here / name).open("a") as file:
            file.write(f"{data}\\n")

    @client.handler("q")
    def handle(data, task):
        if data in DEATHS:
            DEATHS[data]()
        time.sleep(0.02)
        if task.attempts:
            note("charged", data)
        note("done", data)

    @client.handler("hang")
    def hang(data):
        note("begun", data)
        if data == "executor":
            executor.submit(time.sleep, 600).result()
        if data == "thread":
            threading.Thread(target=time.sleep, args=(600,)).start()
        if data == "holds the log":
            for handler in [*logging.getLogger().handlers, *logging.getLogger("pgqueue").handlers]:
                handler.acquire()
        time.sleep(600)

    @client.handler("hang async")
    async def hang_async(data):
        note("begun", data)
        if data == "blocks the loop":
            time.sleep(600)
        if data == "to_thread":
            await asyncio.to_thread(time.sleep, 600)
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                if data != "swallows":
                    raise

    @client.handler("fork")
    def fork(data):
        if os.fork() == 0:
            return
        os.wait()
        note("done", data)

    @client.handler("fork async")
    async def fork_async(data):
        child = os.fork() == 0
        if child:
            await asyncio.sleep(600)
        os.wait()
        note("done", data)
"""


class Process:
    """`pgqueue worker` on the application above."""

    def __init__(self, folder: Path, dsn: str, *options: str, before: Callable[[], None] | None = None) -> None:
        self.folder = folder
        (folder / "app.py").write_text(textwrap.dedent(APP))
        self.log = folder / "log"
        with self.log.open("a") as log:
            command = [sys.executable, "-m", "pgqueue", "-v", "worker", "app:client", *options]
            self.process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, "PGQUEUE_DSN": dsn}, stdout=log, stderr=log, preexec_fn=before
            )

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path, dsn: str) -> Iterator[Start]:
    """Starts worker processes, one after another in the same folder."""
    with contextlib.ExitStack() as stack:

        def one_more(*options: str, **more: Any) -> Process:
            process = Process(tmp_path, dsn, *options, **more)
            stack.callback(process.end)
            return process

        yield one_more


@pytest.fixture
def client(blocking: Callable[..., pgqueue.Client]) -> pgqueue.Client:
    return blocking()


def working(client: pgqueue.Client, handlers: dict[str, Any] | None, **options: Any) -> AbstractContextManager[Worker]:
    """A worker in a thread, with a grace of 0 unless `options` say otherwise."""
    return running(Worker(client, handlers, **({"retry_delay": 0, "grace": 0} | options)))


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """Handlers hang until it is set."""
    over = threading.Event()
    yield over
    over.set()


def total(queue: pgqueue.Queue) -> int:
    return queue.stats()["total"]


# --- handlers that kill their process


def idle(queue: pgqueue.Queue) -> bool:
    stats = queue.stats()
    return stats["total"] == stats["buried"]


def supervised(start: Start, queue: pgqueue.Queue, *options: str, **more: Any) -> tuple[int, list[str]]:
    """Run one worker process after another until nothing is left to do. Returns how many died, and what was done."""
    deaths = 0
    while True:
        process = start(*options, **more)
        eventually(lambda p=process: p.process.poll() is not None or idle(queue), within=60)  # type: ignore[misc]
        if process.process.poll() is None:
            process.process.terminate()
            assert process.process.wait(30) == 0
            return deaths, process.lines("done")
        deaths += 1
        assert deaths < 60


@pytest.fixture
def limited() -> Iterator[Callable[[], None]]:
    """Puts a process under a memory limit, which the kernel enforces by SIGKILL."""
    group = Path(f"/sys/fs/cgroup/memory/pgqueue-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(1 << 28))
    except OSError as error:
        pytest.skip(f"cannot limit memory: {error}")

    def enter() -> None:
        (group / "tasks").write_text(str(os.getpid()))

    yield enter
    group.rmdir()


def one_kills(db: psycopg.Connection, queue: pgqueue.Queue, start: Start, death: str, **more: Any) -> None:
    ids = queue.put_many([death if n == 11 else n for n in range(30)])
    deaths, done = supervised(start, queue, "--max-attempts", "3", **more)
    # Three charged deaths, and the burial.
    assert rows(db, "SELECT id, state, attempts FROM pgqueue.tasks") == [(ids[11], "buried", 4)]
    assert {int(data) for data in done} == set(range(30)) - {11}
    # With up to three that were not: of all tasks that were held together, twice, then of a quarter of them.
    assert deaths in (3, 4, 5, 6)


@pytest.mark.slow
@pytest.mark.parametrize("death", ["segfault", "kill", "exit"])
def test_a_task_that_kills_its_worker_is_buried_alone(db, client, start, death):
    one_kills(db, client.queue("q"), start, death)


@pytest.mark.slow
def test_a_task_that_exhausts_the_memory_is_buried_alone(db, client, start, limited):
    one_kills(db, client.queue("q"), start, "memory", before=limited)


@pytest.mark.slow
def test_two_tasks_that_kill_are_buried_and_no_other(db, client, start):
    queue = client.queue("q")
    ids = queue.put_many(["exit" if n in (3, 9) else n for n in range(30)])
    deaths, done = supervised(start, queue, "--max-attempts", "3")
    assert column(db, "SELECT id FROM pgqueue.tasks WHERE state = 'buried' ORDER BY id") == [ids[3], ids[9]]
    assert {int(data) for data in done} == set(range(30)) - {3, 9}
    assert deaths <= 6 + 7  # charged three times each; and deaths of groups that were still too large


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_twenty_crashes_charge_no_neighbour(db, client, start, tmp_path, record_property):
    """Eight handlers at once; one task kills the process twenty times."""
    queue = client.queue("q")
    ids = queue.put_many(["kill" if n == 5 else n for n in range(40)])
    deaths, done = supervised(start, queue, "--max-attempts", "20")
    assert column(db, "SELECT id FROM pgqueue.tasks") == [ids[5]]
    charged = (tmp_path / "charged").exists()
    record_property("crashes", f"{deaths} crashes, neighbours charged: {charged}")
    print(f"{deaths} crashes, neighbours charged: {charged}")
    assert (deaths in range(20, 25), charged) == (True, False)  # up to four deaths until the task was alone
    assert {int(data) for data in done} == set(range(40)) - {5}


@pytest.mark.slow
def test_after_a_kill_long_tasks_run_all_at_once_and_are_not_charged(db, client, start):
    """After the second kill a quarter runs, and the next quarter once that has run longer than the process had lived.

    That life ends when the next process finds the dead one, so it is shorter than both of them together.
    """
    client.queue("hang").put_many(["sleeps"] * 8)
    lived = 0.0
    for kills in range(3):
        process, watch = start("--concurrency", "8", "--share", "hang=8"), Stopwatch()
        waits = 3 * 2 * lived if kills == 2 else 0.0
        eventually(lambda p=process, n=8 * kills + 8: len(p.lines("begun")) == n, PATIENCE + waits)  # type: ignore[misc]
        process.end()
        lived = max(lived, watch())
        assert column(db, "SELECT DISTINCT attempts FROM pgqueue.tasks") == [0]


# --- handlers that hang


@pytest.mark.slow
def test_hung_threads_are_replaced(client, hanging):
    seen: list[int] = []

    def handle(data: int | None) -> None:
        if data is None:
            hanging.wait(60)
        else:
            seen.append(data)

    hung_handlers_are_replaced(client, handle, seen)


@pytest.mark.slow
def test_hung_coroutines_are_replaced(client, hanging):
    seen: list[int] = []

    async def handle(data: int | None) -> None:
        while data is None and not hanging.is_set():  # swallows its cancellation
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        if data is not None:
            seen.append(data)

    hung_handlers_are_replaced(client, handle, seen)


def hung_handlers_are_replaced(client: pgqueue.Client, handle: Any, seen: list[int]) -> None:
    """They are all that the worker runs at a time: the tasks behind them wait for their deadline, and no longer."""
    ttr = 1.0

    def deadline_to_done() -> float:
        seen.clear()
        queue = client.queue("q")
        with working(client, {"q": handle}, concurrency=10):
            queue.put_many([None] * 10, ttr=ttr)
            watch = Stopwatch()
            eventually(lambda: queue.stats()["taken"] == 10)
            queue.put_many(range(5))
            eventually(lambda: sorted(seen) == [0, 1, 2, 3, 4])
            seconds = watch() - ttr
        queue.truncate()
        return seconds

    in_time(deadline_to_done, within=1.0)


@pytest.mark.slow
def test_a_process_handles_a_task_once_at_a_time(db, client, hanging, caplog):
    at_once, most = Counter[Any](), Counter[Any]()

    def hang(data: Any) -> None:
        at_once[data] += 1
        most[data] = max(most[data], at_once[data])
        hanging.wait(60)
        at_once[data] -= 1

    queue = client.queue("q")
    with working(client, {"q": hang}, concurrency=4):
        queue.put("x", ttr=0.3)
        eventually(lambda: sum("is not begun" in message for message in caplog.messages) >= 2)
        assert (at_once["x"], most["x"]) == (1, 1)
        attempts = row(db, "SELECT attempts FROM pgqueue.tasks")
        hanging.set()
        eventually(lambda: total(queue) == 0)
    assert attempts == (1,)  # the one whose time was over; what was put off is no attempt
    assert most["x"] == 1


@pytest.mark.slow
def test_a_task_that_is_put_off_holds_its_lane(client, hanging, caplog):
    begun: list[Any] = []

    def hang(data: Any) -> None:
        begun.append(data)
        if begun == [1]:
            hanging.wait(60)

    queue = client.queue("q")
    with working(client, {"q": hang}, concurrency=4):
        queue.put(1, ttr=0.3, lane="l")
        queue.put(2, lane="l")
        eventually(lambda: sum("is not begun" in message for message in caplog.messages) >= 2)
        hanging.set()
        eventually(lambda: total(queue) == 0)
    assert begun == [1, 1, 2]


def test_at_the_deadline_a_coroutine_is_cancelled(db, client):
    ended: list[Any] = []

    async def hang(data: Any, task: pgqueue.AsyncTask) -> None:
        if task.attempts:
            return
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(row(db, "SELECT attempts <= 1 FROM pgqueue.tasks"))
            raise

    queue = client.queue("q")
    with working(client, {"q": hang}, concurrency=1):
        queue.put("x", ttr=0.3)
        eventually(lambda: total(queue) == 0)
    assert ended == [(True,)]


@pytest.mark.slow
def test_a_touch_moves_the_deadline_of_a_handler(client):
    seen: list[Any] = []

    async def slow(data: Any, task: pgqueue.AsyncTask) -> None:
        for _ in range(12):
            await asyncio.sleep(0.2)
            await task.touch()
        seen.append(task.attempts)

    queue = client.queue("q")
    with working(client, {"q": slow}):
        queue.put("x", ttr=2)
        eventually(lambda: total(queue) == 0)
    assert seen == [0]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_time_limit_fails_an_attempt(db, client, hanging, kind):
    def hang(data: Any) -> None:
        hanging.wait(60)

    async def hang_async(data: Any) -> None:
        await asyncio.sleep(60)

    queue = client.queue("q")
    put = queue.put("x")
    handlers = {"q": hang if kind == "sync" else hang_async}
    with working(client, handlers, concurrency=1, time_limit=0.3, max_attempts=1):
        eventually(lambda: queue.peek(put).state == "buried")
    assert row(db, "SELECT attempts, error FROM pgqueue.tasks") == (
        (1, "it ran for longer than the worker's time limit of 0.3 s")
    )


def test_a_cancelled_runner_handles_the_next_task(client):
    seen: list[Any] = []

    @client.job(queue="q", timeout=0.3, retry=pgqueue.Retry(attempts=1))
    async def hang() -> None:
        await asyncio.sleep(60)

    @client.job(queue="q")
    async def handle(data: int) -> None:
        async with asyncio.timeout(30):  # fails in a task that still counts a cancellation
            await asyncio.sleep(0.01)
        seen.append(data)

    with working(client, None, concurrency=1):
        hang.put()
        handle.put(1)
        handle.put(2)
        eventually(lambda: seen == [1, 2])


@pytest.mark.slow
def test_too_many_hung_handlers_end_the_worker(client, hanging):
    client.queue("q").put_many(range(9), ttr=0.3)
    worker = Worker(client, {"q": lambda data: hanging.wait(60) and None}, concurrency=2, grace=0)
    with pytest.raises(Error, match=r"5 handlers do not end, the last one with task \d+ of q: start the worker"):
        worker.run()


@pytest.mark.slow
def test_a_handler_that_blocks_the_loop_is_named(client, hanging, caplog):
    async def block(data: Any) -> None:
        hanging.wait(60)

    with working(client, {"q": block}):
        client.queue("q").put("x", ttr=0.3)
        eventually(lambda: any("blocks the event loop" in message for message in caplog.messages))
        assert any("in block" in message for message in caplog.messages)
        hanging.set()


def loops(others: Sequence[threading.Thread]) -> int:
    """Without `others`, which handlers of other tests may still hold up."""
    return sum(thread.name == "pgqueue-loop" and thread not in others for thread in threading.enumerate())


@pytest.mark.slow
def test_tasks_that_wait_in_a_blocked_loop_run_once_in_another_and_are_not_charged(client, hanging):
    """They were to begin in the same round of the loop as the handler that blocks it."""
    seen: list[int] = []

    @client.job(queue="q", timeout=0.3, retry=pgqueue.Retry(attempts=1))
    async def block() -> None:
        hanging.wait(60)

    @client.job(queue="q", retry=pgqueue.Retry(attempts=1))
    async def handle(n: int) -> None:
        seen.append(n)

    others = threading.enumerate()
    block.put()
    for n in range(3):
        handle.put(n)
    with working(client, None, concurrency=4):
        eventually(lambda: len(seen) == 3, within=10)
        assert loops(others) == 2
        eventually(lambda: client.queue("q").stats()["buried"] == 1)
        hanging.set()
        eventually(lambda: loops(others) == 1)
        assert sorted(seen) == [0, 1, 2]


def test_tasks_that_wait_in_a_blocked_loop_do_not_begin_after_the_stop(client, hanging):
    seen: list[int] = []

    async def handle(data: int) -> None:
        seen.append(data)
        hanging.wait(60)

    others = threading.enumerate()
    client.queue("q").put_many(range(4))
    with working(client, {"q": handle}, concurrency=4, grace=0):
        eventually(lambda: seen)
    hanging.set()
    eventually(lambda: loops(others) == 0)
    assert seen == [0]
    assert client.queue("q").stats()["ready"] == 4


# --- handlers that do what they should not


class Unspeakable(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_whatever_a_handler_raises_is_one_failed_attempt(db, client, kind):
    raised: list[Any] = [
        *(KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit, StopIteration, Unspeakable),
        *(lambda: SystemExit("why"), lambda: ExceptionGroup("two", [ValueError(), ValueError()])),
    ]

    def handle(data: Any) -> None:
        if data < len(raised):
            raise raised[data]()

    async def handle_async(data: Any) -> None:
        handle(data)

    queue = client.queue("q")
    with working(client, {"q": handle if kind == "sync" else handle_async}, concurrency=2, max_attempts=2):
        queue.put_many(range(len(raised) + 5))
        eventually(lambda: total(queue) == queue.stats()["buried"] == len(raised))
    assert column(db, "SELECT DISTINCT attempts FROM pgqueue.tasks") == [2]


@pytest.mark.parametrize("kind", ["sync", "async", "with"])
def test_a_handler_that_closes_the_client_fails(db, client, kind):
    def close(data: Any) -> None:
        client.close()

    async def close_async(data: Any) -> None:
        await client.aio.close()

    def leave(data: Any) -> None:
        with client:
            pass

    seen: list[Any] = []
    queue, other = client.queue("q"), client.queue("other")
    handlers = {"q": {"sync": close, "async": close_async, "with": leave}[kind], "other": seen.append}
    with working(client, handlers, max_attempts=1):
        put = queue.put("x")
        eventually(lambda: queue.peek(put).state == "buried")
        other.put("y")
        eventually(lambda: seen == ["y"])
    assert "a handler cannot close the client of its worker" in column(db, "SELECT error FROM pgqueue.tasks")[0]
    assert client.state() == "running"


def test_a_handler_may_close_another_client(dsn, client):
    def handle(data: Any) -> None:
        with pgqueue.Client(dsn) as other:
            other.queue("elsewhere").put("x")

    queue = client.queue("q")
    with working(client, {"q": handle}):
        queue.put("x")
        eventually(lambda: total(queue) == 0)
    assert total(client.queue("elsewhere")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("queue", ["fork", "fork async"])
def test_a_forked_child_that_comes_back_ends(client, start, queue):
    client.queue(queue).put_many(range(5))
    process = start("--concurrency", "2")
    eventually(lambda: total(client.queue(queue)) == 0)
    assert sorted(process.lines("done")) == [str(n) for n in range(5)]
    process.process.terminate()
    assert process.process.wait(30) == 0


# --- the end


@pytest.mark.slow
@pytest.mark.parametrize("data", ["sleeps", "executor", "thread"])
def test_a_stop_is_bounded_whatever_threads_do(client, db, start, data):
    bounded_stop(client, db, start, "hang", data)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["sleeps", "swallows", "blocks the loop", "to_thread"])
def test_a_stop_is_bounded_whatever_coroutines_do(client, db, start, data):
    bounded_stop(client, db, start, "hang async", data)


@pytest.mark.slow
def test_a_stop_is_bounded_when_the_log_blocks(client, start):
    """As a pipe does that no process reads. The worker releases nothing: its tasks return as those of a killed one."""
    queue = client.queue("hang")
    queue.put_many(["holds the log", "sleeps"])
    process = start("--grace", "1", "--concurrency", "2")
    eventually(lambda: len(process.lines("begun")) == 2)
    process.process.terminate()
    assert process.process.wait(30) == 0
    assert {queue.take(30).data, queue.take(30).data} == {"holds the log", "sleeps"}


#: A process that ends so many seconds after its SIGTERM, with the modules of a worker and without its threads.
CONTROL = """
    import signal, sys, time
    import pgqueue.cli.worker, pgqueue.worker
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    print("begun", flush=True)
    signal.sigwait([signal.SIGTERM])
    time.sleep(float(sys.argv[1]))
"""


def bounded_stop(client: pgqueue.Client, db: psycopg.Connection, start: Start, queue: str, data: str) -> None:
    """SIGTERM ends the process one second after its grace at the latest, and its tasks are ready, and not charged.

    A control ends beside it when the grace and LEAVE are over, as soon as this machine lets a Python process end.
    """
    grace, control_ends_after = 1, 1 + LEAVE

    def signal_to_end() -> float:
        client.queue(queue).put_many([data] * 3)
        process = start("--grace", str(grace), "--concurrency", "2")
        eventually(lambda: process.lines("begun"))
        command = [sys.executable, "-c", textwrap.dedent(CONTROL), str(control_ends_after)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as control, ThreadPoolExecutor(2) as waiting:
            assert control.stdout is not None
            assert control.stdout.readline() == b"begun\n"
            watch = Stopwatch()
            control.send_signal(signal.SIGTERM)
            process.process.send_signal(signal.SIGTERM)
            control_end, end = waiting.map(lambda one: (one.wait(30), watch()), (control, process.process))
        assert (control_end[0], end[0]) == (0, 0)
        assert end[1] >= grace
        assert rows(db, "SELECT DISTINCT state, attempts FROM pgqueue.tasks") == [("ready", 0)]
        assert column(db, "SELECT count(*) FROM pgqueue.task WHERE suspect IS NOT NULL") == [0]
        assert rows(db, "SELECT FROM pgqueue.session WHERE missing_since IS NOT NULL") == []
        client.queue(queue).truncate()
        (process.folder / "begun").unlink()
        return end[1] - control_end[1] + control_ends_after

    in_time(signal_to_end, within=grace + 1.0)


def test_handlers_that_end_within_the_grace_are_acked(client):
    begun, seen = threading.Event(), []

    def slow(data: Any) -> None:
        begun.set()
        time.sleep(0.3)
        seen.append(data)

    queue = client.queue("q")
    with working(client, {"q": slow}, grace=10):
        queue.put("x")
        assert begun.wait(30)
    assert (seen, total(queue)) == (["x"], 0)


@pytest.mark.slow
def test_without_a_grace_a_stop_waits(client, hanging):
    queue = client.queue("q")
    begun = threading.Event()

    def hang(data: Any) -> None:
        begun.set()
        hanging.wait(60)

    with working(client, {"q": hang}, grace=None) as worker:
        queue.put("x")
        assert begun.wait(30)
        worker.stop()
        time.sleep(overdue.CANCELLED + 0.5)
        assert queue.stats()["taken"] == 1
        hanging.set()
    assert total(queue) == 0


def test_a_cut_off_coroutine_is_cancelled_and_its_task_released(db, client, caplog):
    caplog.set_level(logging.WARNING, "pgqueue")
    begun, ended = threading.Event(), []

    async def hang(data: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(data)

    queue = client.queue("q")
    with working(client, {"q": hang}, grace=0.2):
        queue.put("x")
        assert begun.wait(30)
    assert ended == ["x"]
    assert rows(db, "SELECT state, attempts, error FROM pgqueue.tasks") == [("ready", 0, None)]


@pytest.mark.parametrize(("text", "seconds"), [("none", None), ("0", 0.0), ("2.5", 2.5)])
def test_the_grace_on_the_command_line(text, seconds):
    assert GRACE.convert(text, None, None) == seconds
