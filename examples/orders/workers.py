"""Workers of both applications, as their users start them. In memory, Celery's worker is a thread of this process."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pgqueue import migrate
from pgqueue.embedded import EmbeddedServer

PROCESSES = 2
START = 60.0  # seconds


@contextmanager
def redis() -> Iterator[None]:
    """A Redis for Celery, which writes each change to its file and forces the file to disk once a second."""
    program = shutil.which("redis-server")
    if program is None:
        raise FileNotFoundError("redis-server is not installed: leave --redis out")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "yes"]
        with _running(program, *options):
            os.environ["CELERY_BROKER_URL"] = os.environ["CELERY_RESULT_BACKEND"] = f"redis://127.0.0.1:{port}/0"
            _until(lambda: _listens(port))
            yield


@contextmanager
def before() -> Iterator[None]:
    """Workers of Celery, on Redis or, without CELERY_BROKER_URL, in memory."""
    if "CELERY_BROKER_URL" not in os.environ:
        with _in_memory():
            yield
        return
    from .before import app

    options = ["--concurrency", str(PROCESSES), "--beat", "--loglevel", "ERROR", "--schedule"]
    with tempfile.TemporaryDirectory() as folder:
        module = f"{__package__}.before"
        with _running(sys.executable, "-m", "celery", "-A", module, "worker", *options, f"{folder}/beat"):
            _until(lambda: app.control.inspect(timeout=1).ping())
            yield


@contextmanager
def after() -> Iterator[None]:
    """Workers of pgqueue, on PGQUEUE_DSN or, without, on an embedded server of their own."""
    with ExitStack() as stack:
        if "PGQUEUE_DSN" not in os.environ:
            os.environ["PGQUEUE_DSN"] = stack.enter_context(EmbeddedServer(ephemeral=True)).dsn()
            migrate.up(os.environ["PGQUEUE_DSN"])
        from .after import client

        options = ["--processes", str(PROCESSES), "--concurrency", "1"]
        stack.enter_context(client)
        module = f"{__package__}.after:client"
        stack.enter_context(_running(sys.executable, "-m", "pgqueue", "worker", module, *options))
        _until(lambda: len(client.workers()) == PROCESSES)
        yield


@contextmanager
def _in_memory() -> Iterator[None]:
    os.environ["CELERY_BROKER_URL"], os.environ["CELERY_RESULT_BACKEND"] = "memory://", "cache+memory://"
    from celery.beat import EmbeddedService
    from celery.contrib.testing.worker import start_worker

    from .before import app

    app.conf.broker_transport_options = {"polling_interval": 0.01}  # by default a second
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.enter_context(start_worker(app, pool="threads", concurrency=PROCESSES, perform_ping_check=False))
        beat = EmbeddedService(app, thread=True, schedule_filename=str(Path(folder) / "beat"))
        beat.start()
        stack.callback(beat.stop)
        yield


@contextmanager
def _running(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + START
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no worker within {START} s")
        time.sleep(0.05)
