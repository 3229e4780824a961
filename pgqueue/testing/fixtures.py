"""Fixtures for pytest: `pytest_plugins = ["pgqueue.testing.fixtures"]` in conftest.py.

The application's own fixture `pgqueue_client` returns the client of its jobs. The plugin is not loaded by itself: an
entry point would import pgqueue in every run of pytest, also of projects that only have it installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from ..jobs.clients import AsyncClient, Client
from .drained import drain
from .memory import Tasks, without_database
from .records import Ran


@pytest.fixture
def pgqueue_tasks(pgqueue_client: Client | AsyncClient) -> Iterator[Tasks]:
    """The tasks of the client's jobs, in memory: `pgqueue_tasks.run()` runs them."""
    with without_database(pgqueue_client) as tasks:
        yield tasks


@pytest.fixture
def pgqueue_inline(pgqueue_client: Client | AsyncClient) -> Iterator[Tasks]:
    """The same, and each task runs in its put."""
    with without_database(pgqueue_client, inline=True) as tasks:
        yield tasks


@pytest.fixture
def pgqueue_drain(pgqueue_client: Client | AsyncClient) -> Callable[..., list[Ran]]:
    """pgqueue.testing.drain for the client: runs the tasks in the queues of its database."""
    return partial[Any](drain, pgqueue_client)
