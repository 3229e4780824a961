"""A script that forks while its client is at work: every child is a client of its own, and the parent's is unharmed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from processes import PROGRAMS
from statements import rows

pytestmark = pytest.mark.once

CHILDREN = 3


@pytest.mark.slow
def test_every_child_of_a_forking_script_works(dsn, db):
    command = [sys.executable, str(PROGRAMS / "forking.py"), dsn, str(CHILDREN)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(process["took"], process["heard"]) for process in told] == [("task", "post")] * (CHILDREN + 1)
    assert len({process["pid"] for process in told}) == CHILDREN + 1
    assert len({pid for process in told for pid in process["backends"]}) == 2 * (CHILDREN + 1)
    assert rows(db, "SELECT id FROM pgqueue.tasks UNION ALL SELECT id FROM pgqueue.sessions") == []
