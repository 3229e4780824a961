"""What a run inherits from its caller, and no test and no program of a test should depend on."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable

import pytest


def pytest_configure(config: pytest.Config) -> None:
    hear_interrupts()
    if sys.dont_write_bytecode:
        config.add_cleanup(keep_bytecode())


def hear_interrupts() -> None:
    """Let the processes that tests start hear SIGINT and SIGHUP, also if the run itself was started to ignore them.

    A shell has its background processes ignore SIGINT, and nohup has its program ignore SIGHUP. What is ignored stays
    so in each process that is started. A handler does not stay, so SIGHUP gets one that does nothing.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


def keep_bytecode() -> Callable[[], None]:
    """Keep compiled modules in a folder of the run where the caller wants none beside the sources.

    Containers often set PYTHONDONTWRITEBYTECODE. Each of the hundreds of processes of a run would then compile what it
    imports, and each run all tests. Returns the function that removes the folder.
    """
    folder = tempfile.mkdtemp(prefix="pgqueue-bytecode-")
    os.chmod(folder, 0o755)  # as root, programs of other accounts read it
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = folder  # the processes of xdist and of the tests inherit it
    sys.pycache_prefix, sys.dont_write_bytecode = folder, False
    return lambda: shutil.rmtree(folder, ignore_errors=True)
