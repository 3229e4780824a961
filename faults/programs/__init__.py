"""The processes of the load. A role is a function that works until SIGTERM, and journals each step.

crew.py calls run() in a process of its own. The roles of `pgqueue worker` run that very command.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

from .. import netns
from . import channels, locks, producers, takers, workers
from .work import Work

Role = Callable[[Work], None]

#: The name of each process, and what it does. Names with the same role compete with each other.
ROLES: dict[str, Role] = {
    "put": producers.one_by_one,
    "put-many": producers.many_at_once,
    "put-in-transaction": producers.in_transaction,
    "put-async": producers.awaiting,
    "put-lanes": producers.in_lanes,
    "take": takers.one_by_one,
    "take-many": takers.many_at_once,
    "take-async": takers.awaiting,
    "take-lanes": takers.in_lanes,
    "take-sql": takers.in_sql,
    "worker": workers.of_functions,
    "worker-async": workers.of_coroutines,
    "lock-1": locks.lock,
    "lock-2": locks.lock,
    "elect-1": locks.elect,
    "elect-2": locks.elect,
    "post": channels.post,
    "subscribe": channels.subscribe,
}
PRODUCERS = frozenset({"put", "put-many", "put-in-transaction", "put-async", "put-lanes", "post"})


def run(role: Role, work: Work, output: Path, namespace: str | None) -> None:
    """The body of a process. What it prints and logs goes to a file."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    if namespace is not None:
        netns.enter(namespace)
    work.begin()
    try:
        role(work)
    except Exception:
        traceback.print_exc()
        raise
