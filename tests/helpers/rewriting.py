"""Test files are rewritten once, and not by each process of the run.

pytest rewrites the asserts of a test file when it imports it, and keeps the result beside the file. In a new checkout
the processes of xdist, which import the same files in the same order, would each rewrite all of them: 40 s of CPU time.
So before they begin, other processes collect the tests, each those of some folders.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

FEW = 50  # files that each process may as well rewrite


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    starts_others = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if starts_others and not config.option.collectonly and config.args == config.getini("testpaths"):
        folders = [folder for folder in (config.rootpath / "tests").iterdir() if files(folder)]
        if sum(not is_rewritten(file) for folder in folders for file in files(folder)) > FEW:
            rewrite(config.rootpath, folders)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("test_*.py"))


def is_rewritten(file: Path) -> bool:
    return any(Path(cache_from_source(file)).parent.glob(f"{file.stem}.*-pytest-*.pyc"))


def rewrite(root: Path, folders: list[Path]) -> None:
    """Have as many processes as there are CPUs collect the tests of the folders. What fails there fails in the run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "--numprocesses=0", "-p", "no:cacheprovider"]
    collecting = []
    try:
        for part in parts(folders, os.cpu_count() or 1):
            process = subprocess.Popen(
                [*command, *part], cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            collecting.append(process)
        for process in collecting:
            process.wait(timeout=300)
    finally:
        for process in collecting:
            process.kill()
            process.wait()


def parts(folders: list[Path], n: int) -> list[list[Path]]:
    """The folders in up to `n` parts of about the same size."""
    sizes = {folder: sum(file.stat().st_size for file in files(folder)) for folder in folders}
    found = list[list[Path]]([] for _ in range(n))
    for folder in sorted(folders, key=lambda folder: -sizes[folder]):
        min(found, key=lambda part: sum(sizes[other] for other in part)).append(folder)
    return [part for part in found if part]
