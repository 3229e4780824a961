"""What the wheel holds, and that it works by itself. Built without isolation: no network needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from checkout import CHECKOUT

from pgqueue import migrate
from pgqueue import sql as schema

SOURCES = ("pgqueue", "migrations", "pyproject.toml", "README.md", "LICENSE", ".gitignore")
IGNORED = ("migrations/sql/.env", "pgqueue/sql/.env", "pgqueue/left_behind.pyc")


def python(*arguments: str | Path, cwd: Path) -> str:
    return subprocess.run(
        [sys.executable, "-P", *arguments], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist and the wheel built from it. Git-ignored files lay beside the sources."""
    sources, target = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        if (CHECKOUT / name).is_dir():  # into __pycache__ other tests write meanwhile
            shutil.copytree(CHECKOUT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(CHECKOUT / name, sources / name)
    for name in IGNORED:
        (sources / name).write_text("secret")
    python("-m", "build", "--no-isolation", "--outdir", target, cwd=sources)
    return target


@pytest.fixture
def wheel(dist: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(dist.glob("*.whl")))


@pytest.mark.slow
def test_the_wheel_holds_all_of_the_package(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {f"pgqueue/sql/{name}" for name in schema.FILES} <= names
    assert {"pgqueue/py.typed", "pgqueue/migrations/env.py"} <= names
    for file in (CHECKOUT / "migrations").glob("*/0*"):
        assert f"pgqueue/migrations/{file.parent.name}/{file.name}" in names


def test_nothing_else_is_shipped(dist: Path, wheel: zipfile.ZipFile) -> None:
    assert {name.split("/")[0] for name in wheel.namelist()} == {"pgqueue", "pgqueue_core-0.1.0.dist-info"}
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        shipped = wheel.namelist() + sdist.getnames()
    assert [name for name in shipped if name.endswith((".env", ".pyc"))] == []


@pytest.mark.slow
def test_the_wheel_works_by_itself(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Unpacked into an empty folder: neither the checkout nor an installed pgqueue helps it."""
    wheel.extractall(tmp_path)
    (tmp_path / "run.py").write_text(
        "import sys; sys.path.insert(0, '.')\n"
        "from pgqueue import migrate\n"
        "print(migrate.__file__)\n"
        "print(migrate.sql(), end='')\n"
    )
    file, script = python("run.py", cwd=tmp_path).split("\n", 1)
    assert Path(file) == tmp_path / "pgqueue" / "migrate.py"
    assert script == migrate.sql()
