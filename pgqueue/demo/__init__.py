"""`pgqueue demo`: every file of a folder is a task; worker processes digest the files; one of them is killed.

The demo checks its result: every file was digested, the digests equal those computed directly, and the tasks that the
killed worker held were done by others.

crew.py runs the worker processes, each of which is tied.py. death.py kills one and watches its tasks, outcome.py
collects and checks results, screen.py prints, handlers.py is the workers' application.

With --nodes it runs on several servers (servers.py), and kills one of them (failover.py).
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg

from .. import Client, Error, Queue
from .._engine.dsn import describe, resolve
from .._values.logs import log
from . import failover
from .crew import CONCURRENCY, Crew
from .death import Death, holder
from .files import readable_files
from .outcome import Outcome
from .screen import Screen

PATIENCE = 60.0  # seconds without any result before the demo gives up
LONGEST = 0.5  # seconds that a task takes at most
TURN, CLOSE_TURN = 0.05, 0.005  # seconds between two looks at the results; and while tasks are on their way back
LOCK = int.from_bytes(b"pgq demo")


def run(folder: Path, workers: int, kill: bool, seconds: float, dsn: str | None) -> bool:
    """Run the demo and print a report. Returns False if the check fails.

    Args:
        folder: its readable files are the tasks.
        workers: the number of worker processes.
        kill: whether to kill one of them.
        seconds: how long the work should last at least, so that there is something to watch. Each task waits for its
            part of that time, half a second at most.
        dsn: None: as a client without a DSN.

    Raises:
        Error: the demo cannot run, or it should have killed a worker, and none held a task.
    """
    with _ending_in_order():
        files = _files(folder)
        screen = Screen()
        embedded = not (dsn or os.environ.get("PGQUEUE_DSN") or os.environ.get("DATABASE_URL"))
        if embedded:
            screen.start(embedded)  # before the server, which takes a while
        conninfo = resolve(dsn)
        with _quietly(), Client(conninfo) as client, _alone(conninfo) as db:
            todo, results = client.queue("demo"), client.queue("demo-results")
            todo.stats()  # the first call raises the error of a database that cannot be used
            if not embedded:
                screen.start(embedded)
                screen.server(db.info.parameter_status("server_version") or "", describe(conninfo))
            screen.tasks(len(files), folder)
            for leftover in (todo, results):
                while leftover.pop(1000):
                    pass
            results.take(timeout=0)  # begins to look for dead workers, which a single worker would do for itself only
            try:
                outcome = _Run(db, todo, screen, files).run(conninfo, workers, kill, seconds)
            except psycopg.OperationalError as error:
                if not db.broken:  # a full disk, for example
                    raise
                raise Error(f"the demo lost its connection to the server: {error}") from error
        faults = outcome.faults(files)
        screen.report(outcome, faults)
        if embedded:
            _have_it_ended()
        if not faults:
            screen.next_steps(embedded, dsn is not None)
        return not faults


def run_cluster(folder: Path, nodes: int, kill: bool, seconds: float) -> bool:
    """Run the demo on so many servers of its own, one of which is killed. Otherwise as run()."""
    with _ending_in_order(), _quietly():
        files = _files(folder)
        screen = Screen()
        screen.start_cluster()
        screen.tasks(len(files), folder)
        try:
            outcome, faults = failover.run(files, nodes, kill, seconds, screen)
        except psycopg.OperationalError as error:
            raise Error(f"the demo lost its connection to a server: {error}") from error
        screen.report(outcome, faults)
        return not faults


def _files(folder: Path) -> list[str]:
    files = readable_files(folder)
    if not files:
        raise Error(f"there are no files to read in {folder}")
    return files


class _Run:
    """One run of the work."""

    def __init__(self, db: psycopg.Connection[Any], todo: Queue, screen: Screen, files: list[str]) -> None:
        self._db = db
        self._todo = todo
        self._screen = screen
        self._files = files
        self._outcome = Outcome(secrets.token_hex(4))

    def run(self, conninfo: str, workers: int, kill: bool, seconds: float) -> Outcome:
        outcome, files = self._outcome, self._files
        began = heard = time.monotonic()
        each = min(LONGEST, seconds * workers * CONCURRENCY / len(files))
        self._todo.put_many({"run": outcome.run, "path": path, "seconds": each} for path in files)
        with Crew([conninfo] * workers, outcome.run) as crew:
            self._screen.workers(crew.pids, CONCURRENCY)
            with self._screen.progress(len(files)):
                while not self._is_over():
                    if self._collect():
                        heard = time.monotonic()
                    elif time.monotonic() - heard > PATIENCE:
                        raise Error(
                            f"no result for {PATIENCE:.0f} s, {len(outcome.digests)} of {len(files)} files are done: "
                            f"{crew.last_words()}"
                        )
                    crew.look()
                    if kill and outcome.death is None and len(outcome.digests) > len(files) / 3:
                        self._kill(crew)
                    is_close = self._watch()
                    self._screen.show(len(outcome.digests))
                    time.sleep(CLOSE_TURN if is_close else TURN)
        outcome.seconds = time.monotonic() - began
        while self._collect():  # redelivered tasks may have given second results after the last look
            pass
        if outcome.death:
            outcome.death.settle(outcome.doers)
        if kill and not outcome.redelivered():
            raise Error(
                "the demo should have killed a worker, and none held a task at that moment: choose a --folder with "
                "more files, or --no-kill"
            )
        return outcome

    def _collect(self) -> bool:
        """Add the results that there are. Returns True if there were any.

        Not by the client: it would wait for the server if that ends, and the demo is to end then, at once.
        """
        found = self._db.execute("SELECT data FROM pgqueue.pop('demo-results', 1000)").fetchall()
        for (result,) in found:
            self._outcome.add(result)
        return bool(found)

    def _is_over(self) -> bool:
        """Whether every file has a result, and every task of this run was acked."""
        if len(self._outcome.digests) < len(self._files):
            return False
        left = "SELECT FROM pgqueue.tasks WHERE queue = 'demo' AND data ->> 'run' = %s LIMIT 1"
        return self._db.execute(left, [self._outcome.run]).fetchone() is None

    def _kill(self, crew: Crew) -> None:
        """Kill a worker that holds tasks. If none does, a later turn tries again.

        A later turn also tries again if the worker, which is dead then, had acked all of them just before: that kill
        shows nothing.
        """
        victim = holder(self._db, self._outcome.run, crew)
        if victim is None:
            return
        death = Death(self._db, self._outcome.run, crew, victim)
        if death.held:
            self._outcome.death = death
            self._screen.killed(death)

    def _watch(self) -> bool:
        """Look which tasks of the killed worker were given back. Returns True if it still holds some."""
        death = self._outcome.death
        if death is None or death.is_over():
            return False
        death.look()
        if death.is_over() and death.back:
            self._screen.given_back(death)
        return not death.is_over()


@contextmanager
def _alone(conninfo: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection with a lock that keeps a second demo from the same queues."""
    with psycopg.connect(conninfo, autocommit=True) as db:
        (free,) = db.execute("SELECT pg_catalog.pg_try_advisory_lock(%s)", [LOCK]).fetchone() or (False,)
        if not free:
            raise Error("another demo is running in this database")
        yield db


@contextmanager
def _quietly() -> Iterator[None]:
    """Without warnings in this block: a lost connection ends the demo with one line."""
    before = log.logger.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Within this block SIGTERM and SIGHUP end the program as Ctrl-C does: the terminal and the workers are tidied up.

    A signal that is ignored, for example by nohup, stays so. The workers end without this as well (crew.py).
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for one in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(one) is not signal.SIG_IGN:
                before[one] = signal.signal(one, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _have_it_ended() -> None:
    """Let the embedded server end after this process, also if its reaper was killed."""
    from .. import embedded

    embedded.default_server()
