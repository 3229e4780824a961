"""A test that hangs fails its run, and does not keep it, also where pytest-timeout has let go of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import limits
import pytest

pytestmark = [pytest.mark.once, pytest.mark.slow]

HANGS = """
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

STUCK = threading.Lock()
STUCK.acquire()


@pytest.fixture
def stuck():
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(STUCK.acquire)


@pytest.mark.timeout(1)
def test_a_hang_in_the_body():
    STUCK.acquire()


@pytest.mark.timeout(1)
def test_a_hang_in_the_clean_up_of_a_failure(stuck):
    stuck.result(0.1)


@pytest.mark.timeout(1)
def test_a_hang_in_the_clean_up_of_an_interrupt(stuck):
    raise KeyboardInterrupt


def test_another_one():
    pass
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A run with these tests and our plugins, which have less patience."""
    project = tmp_path_factory.mktemp("project")
    impatient = "import limits\nimport progress\n\nlimits.GRACE, progress.SILENCE = 5.0, 1.0\n"
    (project / "conftest.py").write_text(impatient)
    (project / "test_hangs.py").write_text(HANGS)
    (project / "pytest.ini").write_text("[pytest]\ntimeout = 20\n")
    command = [sys.executable, "-m", "pytest", "-p", "limits", "-p", "progress", "--numprocesses=1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(limits.__file__).parent), "COLUMNS": "200"}
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120, env=environment)


def test_each_hang_ends_and_fails(run: subprocess.CompletedProcess[str]) -> None:
    assert run.returncode == 1
    assert "1 passed" in run.stdout
    assert "test_a_hang_in_the_body - Failed: Timeout" in run.stdout
    for process, what in enumerate(("a_failure", "an_interrupt")):
        test = f"test_hangs.py::test_a_hang_in_the_clean_up_of_{what}"
        assert f"worker 'gw{process}' crashed while running '{test}'" in run.stdout
    assert "in shutdown" in run.stderr, "the stacks show what the main thread waits for"


def test_progress_names_what_is_running(run: subprocess.CompletedProcess[str]) -> None:
    running = "no test has ended for 1 s; running: test_hangs.py::test_a_hang_in_the_clean_up_of_a_failure (0:0"
    failed = "FAILED test_hangs.py::test_a_hang_in_the_clean_up_of_a_failure"
    assert 0 < run.stdout.index(failed) < run.stdout.rindex(running)  # it is written each second
