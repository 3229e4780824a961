"""Which tests a run has, and in which order its processes begin them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dealing
import pytest

TESTS = {
    "test_server.py": """
import pytest

@pytest.fixture
def pg_server(): ...

def test_quick(pg_server): ...

@pytest.mark.slow
@pytest.mark.parametrize("case", range(20))
def test_slow(pg_server, case): ...

@pytest.mark.slow
def test_of_no_server(): ...
""",
    "test_long.py": """
import pytest

@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", range(3))
def test_long(case): ...
""",
    "test_longest.py": """
import pytest

def test_short(): ...

@pytest.mark.timeout(900)
def test_longest(): ...
""",
}
TIMED = """
import pytest
from stopwatches import names as in_time  # any function of that name

LIMITS = {"soon": lambda: in_time}

class Watch:
    def over(self):
        return in_time

@pytest.fixture
def watch():
    return Watch()

def test_by_itself():
    in_time

@pytest.mark.parametrize("limit", LIMITS.values())
def test_by_a_value(limit): ...

def test_by_a_fixture(watch): ...

@pytest.mark.usefixtures("watch")
class TestAll:
    def test_by_its_class(self): ...

def test_without(): ...
"""
INI = "[pytest]\naddopts = --import-mode=importlib\nmarkers =\n    slow: a\n    timed: b\n    once: c\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text(INI)
    for name, text in TESTS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def chosen(project: Path, *options: str, processes: int = 1) -> list[str]:
    """The ids of the tests of a run, in their order."""
    plugins = ("-p", "selection", "-p", "limits", "-p", "dealing", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *plugins, *options]
    path = str(Path(dealing.__file__).parent)
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_XDIST_WORKER_COUNT": str(processes)}
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=60, env=environment, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.slow
def test_two_halves_are_all_slow_tests(project: Path) -> None:
    """A test without a server is in both, and so is a quick one, if the run has quick ones."""
    every = chosen(project, "--all")
    first, second = (chosen(project, "--all", f"--half={half}") for half in ("first", "second"))
    assert set(first) | set(second) == set(every)
    both = set(first) & set(second)
    assert both == {id for id in every if "test_slow" not in id}
    assert 3 <= len(set(first) - both) <= 17


@pytest.mark.slow
def test_each_process_begins_with_some_of_the_longest_tests(project: Path) -> None:
    order = chosen(project, "--all", processes=2)
    assert len(order) == 27
    assert [id.partition("[")[0] for id in order[:3]] == ["test_long.py::test_long"] * 3
    assert order[13] == "test_longest.py::test_longest"
    assert len(set(order)) == len(order)
    others = [id for id in order if "test_long.py" not in id and "test_longest.py::test_longest" not in id]
    assert others == [id for id in chosen(project, "--all") if id in others]


@pytest.mark.slow
def test_the_order_is_counted_in_the_tests_that_are_left(project: Path) -> None:
    """`-m` leaves tests out, and xdist divides the others."""
    order = chosen(project, "-m", "not slow", processes=2)
    assert len(order) == 6
    assert order[3] == "test_longest.py::test_longest"


@pytest.mark.slow
def test_a_test_is_timed_if_it_uses_a_stopwatch_in_any_way(project: Path) -> None:
    (project / "test_timed.py").write_text(TIMED)
    timed = chosen(project, "-m", "timed")
    assert [id.partition("::")[2].partition("[")[0] for id in timed] == [
        "test_by_itself",
        "test_by_a_value",
        "test_by_a_fixture",
        "TestAll::test_by_its_class",
    ]
