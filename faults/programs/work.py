"""What every role of the load needs: its journal, its labels, its pace, and SIGTERM."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

import pgqueue

from ..journal import Journal

#: Errors of a call that a program of a user's would catch: it logs them, pauses, and goes on with the same client.
CALL_FAILED = (pgqueue.Error, psycopg.Error)
PAUSE = 0.05  # seconds after an error
KEEPALIVES = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}
PATIENCE = 15.0  # seconds that a program waits for an answer on a connection of its own
TIMEOUT = 0.5  # seconds that a take, a wait or a request of a lock waits; so long a program takes to notice SIGTERM
TTR = 60.0  # seconds; longer than any pause of the faults that must not cost a take
QUEUES = ("shared", "sql", "work", "work-async")
LANES = "lanes"


@dataclass
class Work:
    """What one process does its work with. Made by the crew, and completed in the process by begin()."""

    name: str
    number: int
    dsn: str
    listen_dsn: str | None
    path: Path
    pause: float
    seed: int

    def begin(self) -> None:
        self.journal = Journal(self.path)
        self.random = random.Random(f"{self.seed} {self.name} {self.number}")
        self.over = False
        self._numbers = count()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the rig, which ends its processes
        signal.signal(signal.SIGTERM, self._stop)
        threading.Thread(target=_end_with_the_rig, daemon=True).start()

    def _stop(self, number: int, frame: object) -> None:
        self.over = True

    def client(self) -> pgqueue.Client:
        return pgqueue.Client(self.dsn, listen_dsn=self.listen_dsn)

    def connect(self, *, direct: bool = False) -> psycopg.Connection[Any]:
        """A connection of the program's own. `direct`: not through a pooler, for what belongs to a connection."""
        dsn = make_conninfo(
            self.listen_dsn if direct and self.listen_dsn else self.dsn, connect_timeout=5, **KEEPALIVES
        )
        return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)

    def labels(self, n: int = 1) -> list[str]:
        return [f"{self.name}.{self.number}.{next(self._numbers)}" for _ in range(n)]

    def repeat(self, step: Callable[[], None]) -> None:
        """Do a step again and again, until SIGTERM. Failed calls are journaled."""
        while not self.over:
            try:
                step()
            except CALL_FAILED as error:
                self.failed(error)
                time.sleep(PAUSE)

    def failed(self, error: BaseException) -> None:
        self.journal.write("error", type(error).__name__, error)

    def rest(self) -> None:
        """Keep the pace of a producer."""
        time.sleep(self.pause * self.random.uniform(0.5, 1.5))

    def hold(self) -> float:
        """Seconds for which to hold a task: most are quick."""
        return self.random.uniform(0, 0.02) if self.random.random() < 0.5 else 0.0

    @contextmanager
    def putting(self, queue: str, labels: Sequence[str], lane: str | None = None) -> Iterator[list[int]]:
        """Journal a put. The block appends the ids."""
        for label in labels:
            self.journal.write("putting", queue, lane or "-", label)
        ids: list[int] = []
        try:
            yield ids
        except Exception as error:
            for label in labels:
                self.journal.write("unput", label, type(error).__name__)
            raise
        for label, id in zip(labels, ids, strict=True):
            self.journal.write("put", label, id)

    def took(self, task: Any) -> str:
        """Journal the take of a task; returns its label."""
        label = str(task.data["label"])
        self.journal.write("took", label, task.id, task.token)
        return label

    @contextmanager
    def acking(self, labels: Sequence[str]) -> Iterator[None]:
        """Journal an ack, and how it ended."""
        for label in labels:
            self.journal.write("acking", label)
        try:
            yield
        except pgqueue.TakeLost as error:
            # Of several tasks the error names one, and does not say what became of the others.
            event = "refused" if len(labels) == 1 else "unsure"
            for label in labels:
                self.journal.write(event, label, type(error).__name__)
            raise
        except Exception as error:
            for label in labels:
                self.journal.write("unsure", label, type(error).__name__)
            raise
        else:
            for label in labels:
                self.journal.write("acked", label)

    def settle(self, labels: Sequence[str], ack: Callable[[], object]) -> None:
        """Ack until the answer comes, as the errors' documentation says: the tasks are this process's until then."""
        while True:
            try:
                with self.acking(labels):
                    ack()
                return
            except pgqueue.TakeLost:
                return  # the task is another's
            except CALL_FAILED as error:
                self.failed(error)
                if self.over:
                    return
                time.sleep(PAUSE)


@contextmanager
def patience(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Break a connection of the program's own whose server is silent. psycopg alone waits without limit."""

    def give_up() -> None:
        with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as plug:
            plug.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(PATIENCE, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_with_the_rig() -> None:
    """A process does not outlive the rig, however the rig ends."""
    rig = parent_process()
    if rig is not None:
        connection.wait([rig.sentinel])
        os._exit(1)
