"""The rig's watch over the listeners finds a wait for a table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import psycopg
from checkout import CHECKOUT
from eventually import eventually

sys.path.append(str(CHECKOUT))  # behind everything else: pgqueue stays the installed one

from faults.kinds.tables import BRIEF, _Watch


def test_a_wait_of_a_watched_connection_is_found(
    connect: Callable[..., psycopg.Connection], db: psycopg.Connection
) -> None:
    watch, waiter = _Watch(cast(Any, SimpleNamespace(server=SimpleNamespace(connect=connect)))), connect()
    watch._pids = [waiter.info.backend_pid]  # in place of the listeners
    watch.start()
    with ThreadPoolExecutor(1) as thread:
        with db.transaction():
            db.execute("LOCK TABLE pgqueue.task")
            waiting = thread.submit(waiter.execute, "SELECT FROM pgqueue.task")
            eventually(lambda: max(watch._found.values(), default=0) > BRIEF)
        waiting.result(30)
    assert watch.end().endswith("looks met SELECT FROM pgqueue.task")
