"""The tree shows the architecture: each folder imports from the folders below it, and from no other."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import CHECKOUT

import pgqueue

HOME = Path(pgqueue.__path__[0])

#: The folders and files of the package, from the ground up. One layer a line: what stands in one line is independent.
LAYERS = """
    errors
    _values sql
    _calls
    _records
    migrate embedded
    _engine
    _async
    _sync
    jobs
    types worker monitors
    __init__
    terminal
    demo testing dashboard beanstalkd
    cli
    contrib
    __main__
"""
LEVEL = {name: level for level, names in enumerate(LAYERS.split("\n")) for name in names.split()}
FILES = sorted(path for path in HOME.rglob("*.py") if "migrations" not in path.parts)


def layer_of(path: Path) -> str:
    return path.relative_to(HOME).with_suffix("").parts[0]


def imports(path: Path) -> Iterator[tuple[str, ...]]:
    """What a file imports from the package, as parts of a dotted name after `pgqueue`."""
    package = ("pgqueue", *path.relative_to(HOME).parent.parts)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            target = (*base, *(node.module.split(".") if node.module else ()))
            names = [(*target, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        else:
            continue
        yield from (name[1:] for name in names if name[0] == "pgqueue")


def layers_imported(path: Path) -> set[str]:
    return {name[0] if name and name[0] in LEVEL else "__init__" for name in imports(path)}


def modules_imported(path: Path) -> set[Path]:
    """The files that a file imports, itself left out."""
    found = set()
    for name in imports(path):
        for parts in (name, name[:-1]):
            place = HOME.joinpath(*parts)
            if (file := place.with_suffix(".py")).exists() or (file := place / "__init__.py").exists():
                found.add(file)
                break
    return found - {path}


def test_every_folder_has_its_place() -> None:
    assert {layer_of(path) for path in FILES} == set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOME)))
def test_imports_go_downward(path: Path) -> None:
    own = layer_of(path)
    assert {other for other in layers_imported(path) if other != own and LEVEL[other] >= LEVEL[own]} == set()


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle() -> None:
    above = {path: modules_imported(path) for path in FILES}
    while leaves := [path for path, others in above.items() if not others & above.keys()]:
        for path in leaves:
            del above[path]
    assert not above, f"in a circle, or above one: {sorted(str(path.relative_to(HOME)) for path in above)}"


def test_what_has_no_underscore_is_public() -> None:
    """Modules that users import, and the packages of commands and integrations; all else begins with an underscore."""
    public = {name for name in LEVEL if not name.startswith("_")}
    below = {"errors", "types", "migrate", "sql", "embedded"}
    assert public == below | {
        "jobs",
        "worker",
        "testing",
        "monitors",
        "terminal",
        "demo",
        "dashboard",
        "beanstalkd",
        "cli",
        "contrib",
    }


@pytest.mark.slow
def test_the_blocking_shell_is_generated_from_the_awaiting_one() -> None:
    """Fails when either is edited alone. Run tools/blocking.py after an edit of _async."""
    tool = CHECKOUT / "tools" / "blocking.py"
    done = subprocess.run([sys.executable, tool, "--check", HOME], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("shell", ["_async", "_sync"])
def test_an_edit_of_one_shell_alone_is_noticed(shell: str, tmp_path: Path) -> None:
    for name in ("_async", "_sync"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "queue.py").write_text((HOME / name / "queue.py").read_text("utf-8"), "utf-8")
    edited = tmp_path / shell / "queue.py"
    edited.write_text(edited.read_text("utf-8").replace("self.name = ", "self.title = "), "utf-8")
    tool = CHECKOUT / "tools" / "blocking.py"
    done = subprocess.run([sys.executable, tool, "--check", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "_sync/queue.py is not what tools/blocking.py makes" in done.stdout
