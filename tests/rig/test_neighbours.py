"""The table of neighbours, in small: no queue is held up by what another one of its worker does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from checkout import CHECKOUT

pytestmark = [pytest.mark.once, pytest.mark.slow]

BOUND = 8.0  # seconds for one task: two time limits and the slowest start of a process on a loaded machine


@pytest.fixture
def neighbours(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    monkeypatch.syspath_prepend(str(CHECKOUT))
    sys.modules.pop("faults.neighbours", None)
    module = importlib.import_module("faults.neighbours")
    yield module
    module.client.close()
    del sys.modules["faults.neighbours"]


def test_no_neighbour_holds_up_a_queue(neighbours):
    lines, found = neighbours.table(5, share=0.2)
    assert len(lines) == len(neighbours.CASES) + 2
    late = {place: max(times) for place, times in found.items() if max(times) > BOUND}
    assert late == {}
