"""The command `pgqueue` as a process, in an environment that leads nowhere unless the test says where."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
