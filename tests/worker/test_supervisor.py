"""`pgqueue worker`: several processes, and what it tells an orchestrator: its health, and a check before it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from dying import alive, catches
from eventually import eventually
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import pgqueue
from pgqueue.worker.health import Report, address
from pgqueue.worker.probes import Server
from pgqueue.worker.supervisor import Place

pytestmark = pytest.mark.once

APP = """
    import os, pathlib, time
    import pgqueue

    here = pathlib.Path.cwd()
    client = pgqueue.Client()
    VERSION = "one"

    def note(name, data):
        with (here / name).open("a") as file:
            file.write(f"{data}\\n")

    @client.handler("q")
    def handle(data):
        note("pids", os.getpid())
        time.sleep(0.05)

    @client.handler("slow")
    def slow(data):
        note("begun", os.getpid())
        time.sleep(data)
        note("ended", os.getpid())

    @client.handler("version")
    def version(data):
        note("versions", VERSION)
"""

LOSES_LINE = """
    import ctypes, threading

    @client.handler("line")
    def lose_line(data):
        (line,) = [thread for thread in threading.enumerate() if thread.name == "pgqueue-line"]
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(line.ident), ctypes.py_object(GeneratorExit))
"""

CLOSES_DESCRIPTORS = """
    def close():
        os.closerange(3, 4096)

    @client.handler("thread")
    def close_in_thread(data):
        close()

    @client.handler("loop")
    async def close_in_loop(data):
        close()
"""


class Supervised:
    """`pgqueue -v worker --processes N` on the application above."""

    def __init__(self, folder: Path, dsn: str, *options: str, app: str = APP) -> None:
        self.folder = folder
        (folder / "app.py").write_text(textwrap.dedent(app))
        self.log = folder / "log"
        command = [sys.executable, "-m", "pgqueue", "-v", "worker", "app:client", *options]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, "PGQUEUE_DSN": dsn}, stdout=log, stderr=log
            )

    def workers(self) -> list[int]:
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, check=False)
        return [int(pid) for pid in found.stdout.split() if alive(int(pid))]

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def says(self, text: str) -> bool:
        return text in self.log.read_text()

    def ready(self, n: int) -> None:
        eventually(lambda: self.log.read_text().count("working on") >= n, within=60)

    def end(self) -> None:
        workers = self.workers()
        self.process.kill()
        self.process.wait()
        for pid in workers:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(tmp_path: Path, dsn: str) -> Iterator[Callable[..., Supervised]]:
    made: list[Supervised] = []

    def one(*options: str, **more: Any) -> Supervised:
        made.append(Supervised(tmp_path, dsn, *options, **more))
        return made[-1]

    yield one
    for supervised in made:
        supervised.end()


@pytest.fixture
def client(blocking: Callable[..., pgqueue.Client]) -> pgqueue.Client:
    return blocking()


@pytest.mark.slow
def test_workers_share_the_work_and_end_in_order_at_sigterm(client, start):
    supervised = start("--processes", "2", "--concurrency", "1")
    supervised.ready(2)
    client.queue("q").put_many(range(40))
    eventually(lambda: client.queue("q").stats()["total"] == 0)
    assert set(map(int, supervised.lines("pids"))) == set(supervised.workers())
    assert len(supervised.workers()) == 2
    client.queue("slow").put(1.0)
    eventually(lambda: supervised.lines("begun"))
    supervised.process.terminate()
    assert supervised.process.wait(30) == 0
    assert len(supervised.lines("ended")) == 1
    assert client.queue("slow").stats()["total"] == 0
    assert supervised.says("stopping: SIGTERM, the workers finish the tasks under way")
    assert supervised.says("stopping: 1 handler may finish, for 30 s at most: task ")
    assert supervised.workers() == []


@pytest.mark.slow
def test_a_process_manager_that_signals_every_process_cuts_nothing_off(client, start):
    """systemd sends SIGTERM to all processes of a service, and the supervisor has its workers stop as well."""
    supervised = start("--processes", "2", "--concurrency", "1")
    supervised.ready(2)
    client.queue("slow").put_many([1.0, 1.0])
    eventually(lambda: len(supervised.lines("begun")) == 2)
    for pid in [*supervised.workers(), supervised.process.pid]:
        os.kill(pid, signal.SIGTERM)
    assert supervised.process.wait(30) == 0
    assert len(supervised.lines("ended")) == 2


@pytest.mark.slow
def test_a_worker_that_dies_is_started_again(client, start):
    supervised = start("--processes", "2")
    supervised.ready(2)
    first = min(supervised.workers())
    for round in range(3):
        victim = max(supervised.workers())  # the latest
        os.kill(victim, signal.SIGKILL)
        supervised.ready(3 + round)
        assert victim not in supervised.workers()
        assert len(supervised.workers()) == 2
    assert first in supervised.workers()
    assert supervised.says("was killed by SIGKILL; it is started again in ")
    client.queue("q").put_many(range(5))
    eventually(lambda: client.queue("q").stats()["total"] == 0)


@pytest.mark.slow
def test_a_worker_whose_line_to_the_supervisor_is_ended_stops_and_another_one_starts(client, start):
    supervised = start("--processes", "1", app=APP + LOSES_LINE)
    supervised.ready(1)
    (first,) = supervised.workers()
    client.queue("line").put(None)
    supervised.ready(2)
    assert supervised.says("pgqueue-line was ended by an error")
    assert first not in supervised.workers()
    client.queue("q").put(0)
    eventually(lambda: supervised.lines("pids") == list(map(str, supervised.workers())))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_a_worker_whose_handler_closes_all_descriptors_ends_and_another_one_starts(client, start, kind):
    """Its connections, its pipes and the selectors of its event loops are gone: it says so, and cannot go on. Its exit
    code is 0 if it finds its line to the supervisor closed before it finds anything else."""
    supervised = start("--processes", "1", "--grace", "1", app=APP + CLOSES_DESCRIPTORS)
    supervised.ready(1)
    (first,) = supervised.workers()
    client.queue(kind).put(None)
    supervised.ready(2)
    assert first not in supervised.workers()
    assert supervised.says("Bad file descriptor")
    assert supervised.says("; it is started again in ")
    tasks = client.queue("q").put_many(range(5))
    eventually(lambda: client.queue("q").stats()["total"] == 0)
    assert len(supervised.lines("pids")) == len(tasks)


def test_the_pause_before_a_worker_that_dies_at_once_doubles(monkeypatch):
    monkeypatch.setattr("pgqueue.worker.supervisor.time", SimpleNamespace(monotonic=lambda: 100.0))
    place, pauses = Place(1, [sys.executable, "-S", "-c", "raise SystemExit(3)"]), list[float]()
    for _ in range(9):
        place.start()
        assert eventually(place.ended) == 3
        pauses.append(place.start_at - 100.0)
    longest = [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True))


@pytest.mark.slow
def test_no_worker_outlives_a_supervisor_that_is_killed(client, start):
    supervised = start("--processes", "2", "--concurrency", "1", "--grace", "1")
    supervised.ready(2)
    client.queue("slow").put(60)
    eventually(lambda: supervised.lines("begun"))
    workers = supervised.workers()
    assert len(workers) == 2
    supervised.process.kill()
    supervised.process.wait()
    eventually(lambda: not any(map(alive, workers)))  # its handler would sleep for 60 s
    assert client.queue("slow").stats()["ready"] == 1


@pytest.mark.slow
def test_a_worker_that_hangs_is_killed_after_the_grace(client, start):
    supervised = start("--processes", "1", "--grace", "0.5")
    supervised.ready(1)
    (worker,) = supervised.workers()
    os.kill(worker, signal.SIGSTOP)
    supervised.process.terminate()
    assert supervised.process.wait(30) == 1
    assert not alive(worker)
    assert supervised.says("worker 1 has not ended, and is killed")


@pytest.mark.slow
def test_a_second_signal_ends_all_at_once(client, start):
    supervised = start("--processes", "2", "--concurrency", "1")
    supervised.ready(2)
    client.queue("slow").put(60)
    eventually(lambda: supervised.lines("begun"))
    workers = supervised.workers()
    supervised.process.send_signal(signal.SIGINT)
    eventually(lambda: supervised.says("stopping: SIGINT"))
    supervised.process.send_signal(signal.SIGINT)
    assert supervised.process.wait(30) == 128 + signal.SIGINT
    eventually(lambda: not any(map(alive, workers)))


@pytest.mark.slow
def test_sighup_reaches_every_worker(client, start):
    supervised = start("--processes", "2")
    supervised.ready(2)
    path = supervised.folder / "app.py"
    path.write_text(path.read_text().replace('"one"', '"second"'))
    workers = supervised.workers()
    supervised.process.send_signal(signal.SIGHUP)
    eventually(lambda: supervised.log.read_text().count("reloaded: working on") == 2)
    client.queue("version").put(1)
    eventually(lambda: supervised.lines("versions"))
    assert (supervised.lines("versions"), supervised.workers()) == (["second"], workers)


@pytest.mark.slow
def test_a_command_line_that_is_wrong_ends_the_supervisor(start):
    supervised = start("--processes", "2", app="client = 7\n")
    assert supervised.process.wait(30) == 2
    assert supervised.says("client of app is a int, not a Client")
    assert supervised.says("stopping: the command line of the workers is wrong")


# --- health


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()


def free_port() -> int:
    server = Server("127.0.0.1", 0, lambda: Report(True, True))
    server.close()
    return server.port


def test_a_health_server_answers_what_it_is_told():
    reports = [Report(True, True), Report(True, False, "it is starting"), Report(False, False, "it hangs")]
    server = Server("127.0.0.1", 0, lambda: reports[0])
    try:
        assert (get(server.port, "/live"), get(server.port, "/ready")) == ((200, "ok"), (200, "ok"))
        reports.pop(0)
        assert (get(server.port, "/live"), get(server.port, "/ready")) == ((200, "ok"), (503, "it is starting"))
        reports.pop(0)
        assert (get(server.port, "/live"), get(server.port, "/ready")) == ((503, "it hangs"), (503, "it hangs"))
        assert get(server.port, "/metrics") == (404, "there are /live and /ready")
    finally:
        server.close()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("8080", "127.0.0.1", 8080), ("0.0.0.0:80", "0.0.0.0", 80), ("[::]:8080", "::", 8080), ("web:0", "web", 0)],
)
def test_an_address_is_a_port_or_a_host_and_a_port(text, host, port):
    assert address(text) == (host, port)


@pytest.mark.parametrize("text", ["", "web", ":80", "web:", "web:http", "web:70000", "-1"])
def test_other_texts_are_no_address(text):
    with pytest.raises(ValueError, match="HOST:PORT"):
        address(text)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [[], ["--processes", "2"]])
def test_a_worker_is_ready_while_it_takes_tasks(start, processes):
    port = free_port()
    supervised = start("--health", str(port), *processes)

    def answer(path: str) -> tuple[int, str] | None:
        try:
            return get(port, path)
        except OSError:
            return None

    eventually(lambda: answer("/ready") == (200, "ok"))
    assert get(port, "/live") == (200, "ok")
    if processes:
        os.kill(supervised.workers()[0], signal.SIGKILL)
        status, why = eventually(lambda: (found := get(port, "/ready")) and found[0] == 503 and found)
        assert status == 503
        assert "was killed by SIGKILL, and starts again" in why or "it is starting" in why
        eventually(lambda: get(port, "/ready") == (200, "ok"))


@pytest.mark.slow
def test_a_worker_without_its_session_is_alive_and_not_ready(dsn, start):
    port, name = free_port(), conninfo_to_dict(dsn)["dbname"]
    start("--health", str(port))

    def answer() -> tuple[int, str]:
        try:
            return get(port, "/ready")
        except OSError:
            return 0, ""

    eventually(lambda: answer() == (200, "ok"))
    with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as other:
        other.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            eventually(lambda: answer() == (503, "it has no session in the database"))
            assert get(port, "/live") == (200, "ok")
        finally:
            other.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    eventually(lambda: answer() == (200, "ok"))


@pytest.mark.slow
def test_an_address_that_is_taken_is_one_line(start):
    server = Server("127.0.0.1", 0, lambda: Report(True, True))
    try:
        supervised = start("--health", str(server.port))
        assert supervised.process.wait(30) == 1
        assert supervised.says(f"--health 127.0.0.1:{server.port}: Address already in use")
    finally:
        server.close()


# --- check


def check(folder: Path, dsn: str, app: str = APP, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "app.py").write_text(textwrap.dedent(app))
    return subprocess.run(
        [sys.executable, "-m", "pgqueue", "worker", "app:client", "--check", *options],
        cwd=folder,
        env={**os.environ, "PGQUEUE_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
def test_a_check_prints_what_would_be_served(tmp_path, dsn):
    done = check(tmp_path, dsn, APP, "--time-limit", "5", "--processes", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("would work on q, slow, version; on host=")
    assert done.stdout.endswith("; 8 at once of each kind, 20 attempts, time limit 5 s, grace 30 s\n")
    assert "password" not in done.stdout


@pytest.mark.slow
def test_a_share_is_shown_and_checked(tmp_path, dsn):
    done = check(tmp_path, dsn, APP, "--share", "slow=2", "--share", "q=3")
    assert "; 8 at once of each kind, 2 of slow, 3 of q, 20 attempts" in done.stdout
    for share, said in (
        ("slow", "a share is QUEUE=N, as reports=2, not 'slow'"),
        ("slow=x", "a share is QUEUE=N, as reports=2, not 'slow=x'"),
        ("slow=9", "the share of queue 'slow' is 9, more than the concurrency of 8"),
        ("other=1", "there is no share for queue 'other'"),
    ):
        done = check(tmp_path, dsn, APP, "--share", share)
        assert done.returncode != 0
        assert said in done.stderr


@pytest.mark.slow
def test_a_check_fails_for_what_would_keep_a_worker_from_working(tmp_path, dsn, empty_dsn):
    for app, where, said in (
        (APP, empty_dsn, "pgqueue migrate up"),
        (APP, "host=/nowhere dbname=x", "cannot connect to PostgreSQL"),
        ("import pgqueue\nclient = pgqueue.Client()\n", dsn, "a worker needs a handler or a job"),
        ("import nothing_of_that_name\n", dsn, "app cannot be loaded"),
    ):
        done = check(tmp_path, where, app)
        assert done.returncode in (1, 2)
        assert said in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_start_is_told_without_a_log_too(tmp_path, dsn):
    (tmp_path / "app.py").write_text(textwrap.dedent(APP))
    command = [sys.executable, "-m", "pgqueue", "worker", "app:client"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PGQUEUE_DSN": dsn}, stderr=log)
    try:
        eventually(lambda: (tmp_path / "log").read_text().startswith("working on q, slow, version; on "))
        eventually(lambda: catches(process.pid, signal.SIGTERM))  # after that line
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
