"""The documentation's site, built once for all tests of a run."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from pages import DOCS, Page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The folder of the site, built once for all processes of a run. Any warning fails, of a broken reference too."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    out, errors = shared / "site", shared / "site.errors"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not errors.exists():
            options = ["-W", "--keep-going", "-n", "-q", "-b", "html"]
            command: list[str | Path] = [sys.executable, "-m", "sphinx", *options, DOCS, out]
            done = subprocess.run(command, capture_output=True, text=True, timeout=580)
            errors.write_text(done.stderr or ("" if done.returncode == 0 else done.stdout or "it failed"))
    assert errors.read_text() == ""
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """Every page, by its path in the site."""
    return {path.relative_to(site).as_posix(): Page(path) for path in site.rglob("*.html")}
