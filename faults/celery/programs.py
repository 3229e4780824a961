"""Celery's programs as processes of the rig."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlencode

from psycopg.conninfo import conninfo_to_dict

from ..journal import Line, parse

CHECKOUT = Path(__file__).parents[2]
ENDS_WITHIN = 60.0  # seconds from SIGTERM to the end of a program
PAGE = os.sysconf("SC_PAGE_SIZE")
CELERY = (sys.executable, "-m", "celery", "-A", "faults.celery.application")


def url_of(dsn: str) -> str:
    """A DSN as a URL of Celery."""
    return f"pgqueue://?{urlencode(conninfo_to_dict(dsn), safe='/')}"


class Program:
    """A program that runs in a session of its own, and is started again.

    Attributes:
        journal: the file of its tasks' runs, over all its lives.
        log: what it prints.
    """

    def __init__(self, name: str, folder: Path, url: str, *command: str, **more: str) -> None:
        self.name, self._command = name, command
        self.journal, self.log = folder / f"{name}.journal", folder / f"{name}.log"
        own = {"RIG_URL": url, "RIG_JOURNAL": str(self.journal), "RIG_BEAT": str(folder / "tick.journal")}
        self._surroundings: Mapping[str, str] = {**os.environ, **own, **more}
        self._lines, self._offset = list[Line](), 0
        self.start()

    def start(self) -> None:
        self.journal.touch()
        self.began = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=CHECKOUT,
                env=self._surroundings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def children(self) -> list[int]:
        """The processes of a prefork pool."""
        with contextlib.suppress(FileNotFoundError):
            return [
                int(pid)
                for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            ]
        return []

    def end(self) -> None:
        """SIGTERM, as a supervisor stops it, and wait. Raises TimeoutError."""
        self.process.terminate()
        try:
            self.process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} did not end within {ENDS_WITHIN:g} s of SIGTERM") from None

    def kill(self) -> None:
        """kill -9 of all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def memory(self) -> float:
        """The resident memory of all its processes, in MB."""
        pages = 0
        for pid in (self.process.pid, *self.children()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * PAGE / 1e6

    def lines(self) -> list[Line]:
        """Those of the journal so far. Each is read once."""
        with self.journal.open("rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._offset += len(whole) + 1
            self._lines += parse(whole.decode() + "\n")
        return self._lines


def worker(name: str, folder: Path, url: str, *options: str, **more: str) -> Program:
    """A worker with a prefork pool of two."""
    command = (*CELERY, "worker", "--hostname", f"{name}@rig", "--concurrency", "2", "--loglevel", "WARNING")
    return Program(name, folder, url, *command, *options, **more)


def soon(holds: Callable[[], bool], within: float, what: str) -> float:
    """Wait; returns the seconds. Raises TimeoutError, with `what`, if it does not hold in time."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > within:
            raise TimeoutError(f"after {within:g} s {what}")
        time.sleep(0.02)
    return time.monotonic() - began
