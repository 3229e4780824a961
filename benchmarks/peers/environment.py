"""The venv of the peers, which is never the project's: their packages must not change what pgqueue is tested with."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIMIT = 300  # seconds for one installation


@contextmanager
def environment(kept: Path | None) -> Iterator[Path]:
    """Yields the Python of a venv: of a temporary one, or of the one that is kept in a folder."""
    with tempfile.TemporaryDirectory(prefix="pgqueue-peers-") as temporary:
        folder = kept or Path(temporary) / "venv"
        python = folder.absolute() / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=LIMIT)
        yield python


def install(python: Path, packages: tuple[str, ...]) -> None:
    """Raises RuntimeError with the last line of pip if it fails."""
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    if ended.returncode:
        raise RuntimeError(f"pip install {' '.join(packages)}: {(ended.stderr.strip().splitlines() or ['failed'])[-1]}")
