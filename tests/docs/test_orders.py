"""The example of docs/guides/from-celery.md: Celery, in memory, and pgqueue report and mail the same."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from commands import environment
from pages import DOCS

pytestmark = [pytest.mark.once, pytest.mark.slow]


def test_the_orders_end_the_same_before_and_after(dsn: str) -> None:
    """Orders 0 and 100 are retried. `measure` compares the reports and the receipts, and fails if they differ."""
    command = [sys.executable, "-W", "error", "-m", "examples.orders", "measure", "--orders", "101", "--rounds", "1"]
    done = subprocess.run(
        command, cwd=DOCS.parent, env=environment(PGQUEUE_DSN=dsn), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    head, report, *times = done.stdout.splitlines()
    assert head.startswith("203 tasks, 2 processes, 1 rounds; Python 3.")
    assert report == "both reported: {'cents': 105040, 'orders': 101, 'retried': 2}"
    pattern = r": \d+\.\d\d s \(\d+\.\d\d to \d+\.\d\d\), \d+ tasks/s"
    assert [bool(re.fullmatch(side + pattern, line)) for side, line in zip(("Celery", "pgqueue"), times, strict=True)]
