"""The estimate of how long a run takes, and how it is measured."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import progress
import pytest

TESTS = """
import time

import pytest

def test_quick(): ...

@pytest.mark.slow
@pytest.mark.parametrize("case", range(2))
def test_slow(case): time.sleep(0.1)
"""
KNOWN = {
    "test_both.py": {"quick": [1.0, 10], "slow": [9.0, 1]},
    "test_slow_only.py": {"slow": [30.0, 3]},
}


@pytest.mark.parametrize(
    ("expression", "every", "expected"),
    [
        ("", False, {"test_both.py": 0.1}),
        ("slow", False, {"test_both.py": 9.0, "test_slow_only.py": 10.0}),
        ("slow and timed", False, {"test_both.py": 9.0, "test_slow_only.py": 10.0}),
        ("", True, {"test_both.py": 10 / 11, "test_slow_only.py": 10.0}),
        ("not timed", False, {"test_both.py": 10 / 11, "test_slow_only.py": 10.0}),
    ],
)
def test_a_test_counts_as_those_that_the_run_chooses(
    expression: str, every: bool, expected: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durations = tmp_path / "durations.json"
    durations.write_text(json.dumps(KNOWN))
    monkeypatch.setattr(progress, "DURATIONS", durations)
    config: Any = SimpleNamespace(
        option=SimpleNamespace(markexpr=expression), getoption=lambda name, default: every if name == "--all" else None
    )
    assert progress.weights(config) == pytest.approx(expected)


def test_the_clock_goes_on_when_a_process_is_replaced() -> None:
    lines = list[str]()
    reporter: Any = SimpleNamespace(isatty=False, write_line=lambda text, **markup: lines.append(text), flush=str)
    shown = progress.Progress(reporter, {"test_both.py": 1.0})
    ids = [f"test_both.py::test_{number}" for number in range(4)]
    for _ in range(2):
        shown.pytest_xdist_node_collection_finished(ids)
    shown._began -= 60
    for id in ids[:2]:
        shown.pytest_runtest_logreport(pytest.TestReport(id, ("test_both.py", 1, id), {}, "passed", None, "teardown"))
    shown.pytest_xdist_node_collection_finished(ids)
    shown._show()
    assert re.fullmatch(r" 50%  2 of 4 tests  1:\d\d, about 1:\d\d left", lines[-1])


@pytest.mark.slow
def test_what_is_measured_takes_the_place_of_what_was_known(tmp_path: Path) -> None:
    (tmp_path / "test_both.py").write_text(TESTS)
    (tmp_path / "test_other.py").write_text("")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: a\n")
    known = {
        "test_both.py": {"quick": [50.0, 5], "slow": [60.0, 6]},
        "test_gone.py": {"quick": [1.0, 1]},
        "test_other.py": {"quick": [1.0, 1]},
    }
    (tmp_path / "durations.json").write_text(json.dumps(known))
    measured = run(tmp_path, "-m", "slow")
    assert measured.keys() == {"test_both.py", "test_other.py"}
    assert measured["test_other.py"] == known["test_other.py"]
    assert measured["test_both.py"]["quick"] == [50.0, 5]
    seconds, tests = measured["test_both.py"]["slow"]
    assert 0.2 <= seconds < 60
    assert tests == 2
    seconds, tests = run(tmp_path)["test_both.py"]["quick"]
    assert seconds < 50
    assert tests == 1


def run(project: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "pytest", "-p", "progress", "--durations-into=durations.json", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(progress.__file__).parent)}
    subprocess.run(command, cwd=project, capture_output=True, timeout=60, env=environment, check=True)
    found: dict[str, Any] = json.loads((project / "durations.json").read_text())
    return found
