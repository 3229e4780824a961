"""Walks through a page of the documentation as a reader would: block by block, in one folder, with one database.

A fenced block of `sh`, `python` or `sql` is run and has to succeed. `yaml` and `ini` are parsed. A block of `console`
holds commands that a test cannot run; its syntax has to be that of a shell. A comment just above a block says more:

    <!-- file: app.py -->          the block is this file, and is not run by itself; a .service is verified by systemd
    <!-- background: worker -->    the commands run until the end of the page, where SIGTERM has to end them with 0
    <!-- output -->                what the block before printed
    <!-- output: worker -->        what that process prints, sooner or later, among other lines

In an expected output … stands for any text within a line. PGQUEUE_DSN names the database, and `pgqueue`, `python` and
the commands of other queues are those of this interpreter.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from commands import environment
from eventually import eventually
from pages import DOCS

#: The pages to walk through; in the others each block stands by itself.
PAGES = [
    page
    for name in (
        "index.md",
        "quickstart.md",
        "tutorial.md",
        "guides/jobs.md",
        "guides/worker.md",
        "guides/isolation.md",
        "guides/from-*.md",
        "deployment/*.md",
    )
    for page in sorted(DOCS.glob(name))
]

#: The commands that a reader has, and how this interpreter runs each.
PROGRAMS = {
    "pgqueue": "-m pgqueue",
    "python": "",
    "celery": "-m celery",
    "rq": "-m rq.cli",
    "procrastinate": "-m procrastinate",
}

FENCE = re.compile(r"(?:^<!-- ([\w-]+)(?:: (\S+))? -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block, with the comment above it."""

    language: str
    text: str
    mark: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        return f"{self.mark or self.language} {self.name or ''}: {self.text[:60]!r}"


def blocks(page: Path) -> list[Block]:
    found = FENCE.findall(page.read_text("utf-8"))
    return [Block(language, text, mark or None, name or None) for mark, name, language, text in found]


@dataclass
class Walk:
    """Where a reader is on the page."""

    folder: Path
    dsn: str
    settings: dict[str, str]
    stack: ExitStack
    printed: str = ""
    running: dict[str, Path] = field(default_factory=dict)

    def step(self, block: Block) -> None:
        if block.mark == "file":
            assert block.name
            path = self.folder / block.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            if path.suffix == ".service":
                self._unit(path)
        if block.mark == "output":
            self._compare(block)
        elif block.mark == "background":
            assert block.name
            self.running[block.name] = self.stack.enter_context(self._background(block))
        elif block.language == "sh":
            self.printed = self._run(["bash", "-euo", "pipefail", "-c", block.text])
        elif block.language == "python" and block.mark != "file":
            self.printed = self._run([sys.executable, "-W", "error", "-c", block.text])
        elif block.language == "sql":
            self._sql(block.text)
        elif block.language == "console":
            assert all(line.startswith("$ ") for line in block.text.splitlines())
            subprocess.run(["bash", "-n"], input=block.text.replace("$ ", ""), check=True, text=True)
        elif block.language == "yaml":
            self._yaml(block.text)
        elif block.language == "ini":
            configparser.ConfigParser(interpolation=None).read_string(
                block.text if "[" in block.text else f"[all]\n{block.text}"
            )

    def _environment(self) -> dict[str, str]:
        path = f"{self.folder / '.bin'}:{os.environ['PATH']}"
        return environment(**{"PGQUEUE_DSN": self.dsn, "PATH": path, **self.settings})

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def _background(self, block: Block) -> Iterator[Path]:
        output = self.folder / f"{block.name}.output"
        with output.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-euc", f"exec {block.text.strip()}"],
                cwd=self.folder,
                env={**self._environment(), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            yield output
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, output.read_text()
        finally:
            with suppress(ProcessLookupError):  # its children too: those of a Celery worker outlive it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _compare(self, block: Block) -> None:
        expected = [re.escape(line.rstrip()).replace("…", ".*") for line in block.text.splitlines()]
        if block.name is None:
            lines = [line.rstrip() for line in self.printed.splitlines()]
            assert len(lines) == len(expected), self.printed
            for pattern, line in zip(expected, lines, strict=True):
                assert re.fullmatch(pattern, line), f"{line!r} is not {pattern!r}"
            return
        output = self.running[block.name]
        for pattern in expected:
            try:
                # Not as a whole line: print() writes the end of a line by itself, and another thread may be in between.
                eventually(lambda at=pattern: re.search(at, output.read_text()))
            except AssertionError as error:
                raise AssertionError(f"no line {pattern!r} in:\n{output.read_text()}") from error

    def _sql(self, text: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in re.sub(r"--.*", "", text).split(";\n"):
                if statement.strip():
                    connection.execute(statement)

    def _unit(self, path: Path) -> None:
        """By systemd where it is installed. The unit's program is not on this machine, so another one stands for it."""
        if (systemd := shutil.which("systemd-analyze")) is None:
            return
        unit = path.with_stem(f"verified-{path.stem}")
        unit.write_text(re.sub(r"^(Exec\w+=)/\S+", rf"\1{sys.executable}", path.read_text(), flags=re.MULTILINE))
        done = subprocess.run([systemd, "verify", unit], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")

    def _yaml(self, text: str) -> None:
        import yaml

        assert list(yaml.safe_load_all(text))


def walk(page: Path, folder: Path, dsn: str, settings: dict[str, str]) -> None:
    """From the top of the page to its end, with these variables in the environment."""
    programs = folder / ".bin"
    programs.mkdir()
    for name, command in PROGRAMS.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {command} "$@"\n')
        program.chmod(0o755)
    with ExitStack() as stack:
        here = Walk(folder, dsn, settings, stack)
        for block in blocks(page):
            try:
                here.step(block)
            except BaseException as error:
                error.add_note(f"in {page.name}, at {block}")
                raise
