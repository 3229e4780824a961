"""Fixtures of the tests of workers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from checkout import HELPERS


@pytest.fixture
def crunch(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of jobs that child processes import, with a client of this test's database."""
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    monkeypatch.syspath_prepend(str(HELPERS))
    sys.modules.pop("crunch", None)
    module = importlib.import_module("crunch")
    yield module
    module.client.close()
    del sys.modules["crunch"]
