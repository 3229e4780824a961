"""The command `pgqueue`, in this process or as one, in an environment that leads nowhere unless the test says where."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

from pgqueue import cli

DEADLINE = 60.0  # seconds for any command
PROGRAM = [sys.executable, "-m", "pgqueue"]


def environment(**settings: str | Path) -> dict[str, str]:
    """Ours without what may name a server; and a test that forgets to must not reach whatever runs on this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG") and name != "DATABASE_URL"}
    return {**kept, "PGHOST": "/nonexistent", **{name: str(value) for name, value in settings.items()}}


def run(*arguments: str | Path, cwd: Path | None = None, **settings: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        cwd=cwd,
        env=environment(**settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


@contextmanager
def started(*arguments: str | Path, settings: dict[str, str] | None = None, **options: Any) -> Iterator[Any]:
    """A command under way; it is killed at the end of the block if it has not ended."""
    with subprocess.Popen(
        [*PROGRAM, *map(str, arguments)], env=environment(**(settings or {})), stdin=subprocess.DEVNULL, **options
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def invoke(*arguments: str, input: str | bytes | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    """As run(), in this process, which is left as it was: ten times as quick."""
    with (
        patch.dict(os.environ, environment(**settings), clear=True),
        patch.object(sys, "path", [*sys.path]),
    ):
        done = CliRunner().invoke(cli.main, arguments, input, prog_name="pgqueue")
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def failed(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line that says why a command failed."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    if lines[0].startswith("Usage: "):  # click tells the usage first
        assert code == 2
        assert re.fullmatch("Try '.*' for help.", lines[1])
        assert lines[2] == ""
        del lines[:3]
    (line,) = lines
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")


class Commands:
    """The commands of one database, in this process."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def __call__(self, *arguments: object, input: str | bytes | None = None) -> subprocess.CompletedProcess[str]:
        return invoke("--dsn", self._dsn, *map(str, arguments), input=input)

    def lines(self, *arguments: object, input: str | bytes | None = None) -> list[str]:
        """What it prints; it has to succeed, without a word on standard error."""
        done = self(*arguments, input=input)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    def json(self, *arguments: object, input: str | bytes | None = None) -> list[dict[str, Any]]:
        """What it prints with --json."""
        return [json.loads(line) for line in self.lines(*arguments, "--json", input=input)]

    def fails(self, code: int, *arguments: object, input: str | bytes | None = None) -> str:
        """The one line that says why it fails."""
        return failed(self(*arguments, input=input), code)

    def finds_nothing(self, *arguments: object) -> bool:
        """Whether it ends without a word, and with the exit code for nothing."""
        done = self(*arguments)
        return (done.returncode, done.stdout, done.stderr) == (3, "", "")
