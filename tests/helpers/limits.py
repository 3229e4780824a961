"""A test ends, whatever it does: none keeps the run.

pytest-timeout raises an exception in a test that is over its limit. It lets go of a test that has failed: the clean-up
behind a failure, or behind a KeyboardInterrupt in a process of pytest-xdist, has no limit. So a test whose thread hangs
fails, waits for that thread at the end of its `with ThreadPoolExecutor()`, and the run waits with it and says nothing.

Here the set-up with the call has that limit and a minute more, and so has the clean-up. Then faulthandler writes the
stack of each thread and ends the process. pytest-xdist names the test, and begins another process for the rest.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator

import pytest

GRACE = 60.0  # seconds that pytest-timeout's exception has to end the test
STDERR = pytest.StashKey[int]()  # the caller's; a test has another one, which pytest captures


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)
    config.add_cleanup(lambda: os.close(config.stash[STDERR]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    begin(item)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    begin(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def begin(item: pytest.Item) -> None:
    """Begin the time anew: at each failure pytest stops the clock of faulthandler, and pytest-timeout its own."""
    if seconds := time_limit(item) or default_limit(item.config):
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=item.config.stash[STDERR])


def time_limit(item: pytest.Item) -> float:
    """In seconds, of a test that has one of its own; otherwise 0."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0.0


def default_limit(config: pytest.Config) -> float:
    """In seconds, of the other tests. 0: there is none."""
    option = config.getoption("timeout", None)
    return float(config.getini("timeout") or 0 if option is None else option)
