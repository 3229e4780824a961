"""Test files are rewritten once, before the processes of the run begin."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from rewriting import files, is_rewritten, parts, rewrite


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """A project with two folders of tests."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib")
    for name in ("some", "others"):
        folder = tmp_path / "tests" / name
        folder.mkdir(parents=True)
        (folder / f"test_{name}.py").write_text("def test() -> None:\n    assert __name__")
    return list((tmp_path / "tests").iterdir())


@pytest.mark.slow
def test_pytest_finds_its_files_rewritten(folders: list[Path], tmp_path: Path) -> None:
    both = [file for folder in folders for file in files(folder)]
    assert len(both) == 2
    assert not any(map(is_rewritten, both))
    rewrite(tmp_path, folders)
    assert all(map(is_rewritten, both))
    written = inodes(both)
    subprocess.run([sys.executable, "-m", "pytest"], cwd=tmp_path, check=True, timeout=60, capture_output=True)
    assert len(written) == 2
    assert inodes(both) == written


def inodes(sources: list[Path]) -> dict[Path, int]:
    """Of the files in which pytest keeps what it has rewritten."""
    kept = [path for file in sources for path in Path(cache_from_source(file)).parent.glob(f"{file.stem}.*.pyc")]
    return {path: path.stat().st_ino for path in kept}


@pytest.mark.parametrize("n", [1, 2, 3])
def test_each_process_has_its_folders(folders: list[Path], n: int) -> None:
    found = parts(folders, n)
    assert len(found) == min(n, 2)
    assert sorted(folder for part in found for folder in part) == sorted(folders)
