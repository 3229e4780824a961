"""The label of a client in views, logs and errors."""

from __future__ import annotations

import itertools
import os
import socket
import sys
from collections.abc import Iterator

_numbers: dict[int, Iterator[int]] = {}  # by process: a fork counts from 1. No lock: a fork could copy it locked


def new_label() -> str:
    """Host, process id and program, as in `web1:4711:gunicorn`; for the process's second client with `#2` behind it.

    The number tells the clients of one process apart, for example in an error that says which client has a task.
    """
    pid = os.getpid()
    number = next(_numbers.setdefault(pid, itertools.count(1)))
    process = f"{socket.gethostname()}:{pid}:{os.path.basename(sys.argv[0] or 'python')[:200]}"
    return process if number == 1 else f"{process}#{number}"
