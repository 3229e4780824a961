"""`pgqueue demo`: every file of a folder is a task; worker processes digest the files; one of them is killed meanwhile.

The demo checks its result: every file was digested, the totals equal those computed directly, and the tasks that the
killed worker held were done by others.
"""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from .. import Client, Error
from .._engine.dsn import resolve
from .files import digest, readable_files
from .progress import Progress

PATIENCE = 60.0  # seconds without any result before the demo gives up
CONCURRENCY = 4  # handlers a worker process
LOCK = int.from_bytes(b"pgq demo")


@dataclass(slots=True)
class Outcome:
    """The results from the workers."""

    digests: dict[str, tuple[int, str]] = field(default_factory=dict)
    killed_at: float | None = None
    held: set[str] = field(default_factory=set)  # the paths of the tasks that the killed worker held
    redelivered: dict[str, float] = field(default_factory=dict)  # path: when it was begun again
    seconds: float = 0.0

    def add(self, result: dict[str, Any]) -> None:
        path, began = result["path"], result["began"]
        self.digests[path] = (result["lines"], result["sha256"])
        if path in self.held and self.killed_at is not None and began > self.killed_at:
            self.redelivered.setdefault(path, began)

    def came_back_in(self) -> float | None:
        """Seconds from the kill until another worker began the last of the dead worker's tasks."""
        if self.killed_at is None or not self.redelivered:
            return None
        return max(self.redelivered.values()) - self.killed_at


def run(folder: Path, workers: int, kill: bool, dsn: str | None) -> bool:
    """Run the demo and print a report. Returns False if the check fails. Raises Error if the demo cannot run."""
    files = readable_files(folder)
    if not files:
        raise Error(f"there are no files to read in {folder}")
    conninfo = resolve(dsn)
    with Client(conninfo) as client, _alone(conninfo) as db:
        for leftover in ("demo", "demo-results"):
            while client.queue(leftover).pop(1000):
                pass
        print(f"{len(files)} files of {folder}, {workers} worker processes")
        outcome = _run(client, db, conninfo, files, workers, kill)
    return _report(files, outcome)


def _run(
    client: Client, db: psycopg.Connection[Any], conninfo: str, files: list[str], workers: int, kill: bool
) -> Outcome:
    this_run = secrets.token_hex(4)
    todo, results = client.queue("demo"), client.queue("demo-results")
    progress, outcome = Progress(len(files)), Outcome()
    began = heard = time.monotonic()
    todo.put_many({"run": this_run, "path": path} for path in files)
    with Crew(conninfo, db, workers) as crew:
        while len(outcome.digests) < len(files) or todo.stats()["total"]:
            tasks = results.take_many(1000, timeout=1)
            results.ack_many(tasks)
            for task in tasks:
                outcome.add(task.data)
            if tasks:
                heard = time.monotonic()
            elif time.monotonic() - heard > PATIENCE:
                raise Error(f"no result for {PATIENCE:.0f} s: {len(outcome.digests)} of {len(files)} files are done")
            if kill and outcome.killed_at is None and len(outcome.digests) > len(files) / 3:
                outcome.killed_at, outcome.held = crew.kill_one(progress)
            progress.show(len(outcome.digests), todo.stats()["ready"])
    outcome.seconds = time.monotonic() - began
    for task in results.pop(len(files)):  # redelivered tasks may have given second results after the last look
        outcome.add(task.data)
    progress.show(len(outcome.digests), 0, last=True)
    return outcome


class Crew:
    """The worker processes, each an ordinary `pgqueue worker`."""

    def __init__(self, conninfo: str, db: psycopg.Connection[Any], n: int) -> None:
        self._conninfo = conninfo
        self._db = db
        self._started = itertools.count(1)
        self._workers = [self._start() for _ in range(n)]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exception: object) -> None:
        for _, process in self._workers:
            process.terminate()
        for _, process in self._workers:
            process.wait()

    def kill_one(self, progress: Progress) -> tuple[float | None, set[str]]:
        """SIGKILL a worker that holds tasks, and start another.

        Returns the time of the kill, and the paths of the tasks that the worker held; None if it held none.
        """
        name, victim = self._workers[0]
        victim.send_signal(signal.SIGSTOP)  # so that it sends no more acks
        if not self._held_by(victim):
            victim.send_signal(signal.SIGCONT)
            return None, set()
        victim.kill()
        killed_at = time.time()
        victim.wait()
        # The server may have received an ack that it has not run yet. It runs all of them before a backend ends.
        backends = "SELECT FROM pg_catalog.pg_stat_activity WHERE application_name = %s"
        while self._db.execute(backends, [name]).fetchone() is not None:
            time.sleep(0.001)
        held = self._held_by(victim)
        progress.note(f"killed worker {victim.pid} (SIGKILL), which held {len(held)} tasks, and started another")
        self._workers[0] = self._start()
        return killed_at, held

    def _held_by(self, process: subprocess.Popen[bytes]) -> set[str]:
        paths = "SELECT data ->> 'path' FROM pgqueue.tasks WHERE queue = 'demo' AND holder LIKE %s"
        return {path for (path,) in self._db.execute(paths, [f"%:{process.pid}:%"]).fetchall()}

    def _start(self) -> tuple[str, subprocess.Popen[bytes]]:
        """Start a worker process. Returns it with the application name of its connections, for pg_stat_activity."""
        name = f"pgqueue demo {next(self._started)}"
        environment = {**os.environ, "PGQUEUE_DSN": make_conninfo(self._conninfo, application_name=name)}
        command = [sys.executable, "-m", "pgqueue", "worker", "pgqueue.demo.handlers:client", "--quiet"]
        return name, subprocess.Popen([*command, "--concurrency", str(CONCURRENCY)], env=environment)


@contextmanager
def _alone(conninfo: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection with a lock that keeps a second demo from the same queues."""
    with psycopg.connect(conninfo, autocommit=True) as db:
        (free,) = db.execute("SELECT pg_catalog.pg_try_advisory_lock(%s)", [LOCK]).fetchone() or (False,)
        if not free:
            raise Error("another demo is running in this database")
        yield db


def _report(files: list[str], outcome: Outcome) -> bool:
    expected = {path: digest(path) for path in files}
    lines = sum(count for count, _ in outcome.digests.values())
    right = outcome.digests == expected
    came_back = outcome.came_back_in()
    rows = {
        "files": f"{len(outcome.digests):,}",
        "lines": f"{lines:,}",
        "tasks redelivered": f"{len(outcome.redelivered):,}",
        "came back in": "-" if came_back is None else f"{came_back:.2f} s after the kill",
        "tasks/s": f"{len(files) / outcome.seconds:,.0f}",
        "check": "every file and digest equals the direct computation" if right else "FAILED: the digests differ",
    }
    print()
    for name, value in rows.items():
        print(f"  {name:<18} {value}")
    return right
