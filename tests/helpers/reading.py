"""A reader of the documentation: a home of their own, a folder for each page, shells, and no other preparation.

The embedded server is found as by a new user: by the home directory, and not by a variable that names a database. For
root it does not depend on the home, so PGQUEUE_HOME names another place then.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from eventually import eventually

#: The commands that a reader has in the venv, and how this interpreter runs each.
PROGRAMS = {
    "pgqueue": "-m pgqueue",
    "python": "",
    "alembic": "-m alembic",
    "celery": "-m celery",
    "django-admin": "-m django",
    "dramatiq": "-m dramatiq",
    "flask": "-m flask",
    "procrastinate": "-m procrastinate",
    "rq": "-m rq.cli",
    "uvicorn": "-m uvicorn",
}
SECONDS = 120  # for a command that hangs: a loaded machine needs twenty for some
NOTHING: Mapping[str, str] = {}
#: What takes long to import, and programs of the pages need.
HEAVY = """
    asyncio threading pgqueue pgqueue.embedded pgqueue.testing pgqueue.contrib.sqlalchemy pgqueue.contrib.flask
    pgqueue.contrib.asgi pgqueue.migrate pydantic sqlalchemy.orm sqlalchemy.ext.asyncio flask_sqlalchemy asyncpg
    django.conf
"""
PASTING = Path(__file__).parent / "programs" / "pasting.py"


class Reader:
    """Types, pastes and runs what pages show; `folder` is that of the present page."""

    def __init__(self, base: Path, dsn: str | None = None) -> None:
        """In this folder; with a DSN in place of the embedded server, for what needs not be a new user's."""
        self.base = base
        self._dsn = dsn
        self.home = base / "home"
        self.home.mkdir()
        programs = self.home / "bin"
        programs.mkdir()
        for name, command in PROGRAMS.items():
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {command} "$@"\n')
            program.chmod(0o755)
        if shutil.which("psql") is None:
            (programs / "psql").symlink_to(embedded_psql())
        self.begin = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            **({"PGQUEUE_DSN": dsn} if dsn else {}),
        }
        if os.geteuid() == 0:
            self.begin |= {"PGQUEUE_HOME": str(base / "server"), "PGQUEUE_EMBEDDED_USER": "nobody"}
        self.folder = base
        self.environment: dict[str, str] = {}
        self._settings = NOTHING
        self._shells: dict[str, tuple[subprocess.Popen[bytes], Path, bool]] = {}
        self._stack = ExitStack()
        self._pasting: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End the shells and the embedded server."""
        for number in list(self._shells):
            self._kill(number)
        if self._pasting is not None:
            self._pasting.kill()
            self._pasting.communicate()
        if "PGQUEUE_DSN" not in self.begin and self._dsn:
            self._stop_server()

    @contextmanager
    def on(self, name: str, settings: Mapping[str, str] = NOTHING) -> Iterator[None]:
        """Follow a page in a folder of its own. At its end Ctrl-C ends what runs in the other shells."""
        self.folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.base))
        self._settings = settings
        self.environment = {**self.begin, **settings}
        try:
            yield
            for number in list(self._shells):
                self._interrupt(number)
        finally:
            for number in list(self._shells):
                self._kill(number)

    def type(self, text: str) -> str:
        """Into the first shell. What it exports, and its folder, hold for the rest of the page."""
        kept = self.home / "environment"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{text}\nenv -0 > {kept}"],
            cwd=self.environment.get("PWD", self.folder),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        pairs = (line.partition("=") for line in kept.read_text().split("\0") if line)
        self.environment = {name: value for name, _, value in pairs if name not in ("_", "OLDPWD", "SHLVL")}
        return done.stdout

    def save(self, name: str, text: str) -> Path:
        """A file in the folder of the page."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run_python(self, file: str) -> str:
        """By `python -W error FILE`."""
        folder = self.environment.get("PWD", str(self.folder))
        out, err = self.home / "out", self.home / "err"
        for each in (out, err):
            each.write_text("")
        asked = {"file": file, "folder": folder, "environment": self.environment}
        code = self._paste({**asked, "out": str(out), "err": str(err)})
        assert (code, err.read_text()) == (0, ""), out.read_text() + err.read_text()
        return out.read_text()

    def psql(self, text: str) -> str:
        """Into psql on the embedded server."""
        done = subprocess.run(
            ["psql", "-X", "-v", "ON_ERROR_STOP=1", self.dsn()],
            input=text,
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    def dsn(self) -> str:
        """What `pgqueue server start` prints, or the DSN that this reader has instead."""
        if self._dsn is None:
            command: list[str | Path] = [self.home / "bin" / "pgqueue", "server", "start"]
            done = subprocess.run(command, env=self.begin, capture_output=True, text=True, check=True, timeout=SECONDS)
            self._dsn = done.stdout.strip()
        return self._dsn

    def leave_running(self, number: str, text: str) -> None:
        """In another shell, in the page's folder. What ran there before is ended by Ctrl-C."""
        if number in self._shells:
            self._interrupt(number)
        *before, last = text.strip().split("\n")
        output = self.home / f"shell{number}"
        with output.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-euc", "\n".join((*before, f"exec {last}"))],
                cwd=self.folder,
                env={**self.begin, **self._settings, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._shells[number] = process, output, "pgqueue" in last

    def expect(self, number: str, pattern: str) -> None:
        """A line in the output of another shell, among other lines."""
        output = self._shells[number][1]
        try:
            # Not as a whole line: print() writes the end of a line by itself, and another thread may be in between.
            eventually(lambda: re.search(pattern, output.read_text()))
        except AssertionError as error:
            raise AssertionError(f"no line {pattern!r} in:\n{output.read_text()}") from error

    def _stop_server(self) -> None:
        command: list[str | Path] = [self.home / "bin" / "pgqueue", "server", "stop"]
        subprocess.run(command, env=self.begin, stdout=subprocess.DEVNULL, check=True, timeout=SECONDS)

    def _interrupt(self, number: str) -> None:
        process, output, ours = self._shells[number]
        process.send_signal(signal.SIGINT)
        code = process.wait(30)
        assert code == 0 or not ours, output.read_text()  # other programs may end by the signal
        self._kill(number)

    def _kill(self, number: str) -> None:
        process, *_ = self._shells.pop(number)
        with suppress(ProcessLookupError):  # its children too: those of a Celery worker outlive it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _paste(self, asked: dict[str, object]) -> int:
        if self._pasting is None:
            modules = ["pgqueue"] if "PGQUEUE_DSN" in self.begin else HEAVY.split()
            self._pasting = subprocess.Popen(
                [sys.executable, "-W", "error", PASTING, *modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self.begin,
            )
        process = self._pasting
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], 2 * SECONDS)
        assert ready, "the block did not end"
        return int(process.stdout.readline())


def embedded_psql() -> Path:
    from pgqueue.embedded import binaries

    return binaries.discover().bindir / "psql"
