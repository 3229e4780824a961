"""What there was when a hand-off failed: the rows, locks and backends of the server, and each receiver's own account.

A wake-up that was lost leaves a ready task and sleeping takers; a stall leaves a late watchdog or a busy backend.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterable
from typing import Any

import psycopg
from processes import Program

QUESTIONS = {
    "task": "SELECT id, queue_id, state, data FROM pgqueue.task",
    "take": "SELECT task_id, session_id, clock_timestamp() - taken_at AS age FROM pgqueue.take",
    "line": "SELECT *, clock_timestamp() - since AS waited FROM pgqueue.line ORDER BY 1, 2",
    "unanswered": "SELECT *, clock_timestamp() - seen_at AS age FROM pgqueue.unanswered",
    "session": "SELECT id, backend_pid FROM pgqueue.session",
    "locks": "SELECT pid, locktype, classid::bigint - 1885827329 AS class, objid, mode, granted FROM pg_locks"
    " WHERE pid <> pg_backend_pid() AND (locktype = 'advisory' OR NOT granted) ORDER BY 1, 3, 4",
    "backends": "SELECT pid, state, wait_event, clock_timestamp() - state_change AS age, left(query, 200) AS query"
    " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
}


class States:
    """The accounts that the receivers give when they are asked for one."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def sort_out(self, hear: Callable[[Any], None]) -> Callable[[Any], None]:
        """Passes on to `hear` each line that is no account."""
        return lambda line: self._told.put(line["state"]) if "state" in line else hear(line)

    def ask(self, processes: Iterable[Program], within: float = 5.0) -> list[Any]:
        asked = []
        for process in processes:
            try:
                process.tell("state")
                asked.append(self._told.get(timeout=within))
            except (OSError, queue.Empty) as error:  # it ended, is stopped, or stands still
                asked.append(f"{process.pid}: {error!r}")
        return asked


def autopsy(dsn: str, states: States, processes: Iterable[Program]) -> str:
    """The state of everything, as text."""
    found: list[str] = []
    with psycopg.connect(dsn, autocommit=True) as conn:
        for what, question in QUESTIONS.items():
            found += [f"-- {what}", *map(str, conn.execute(question).fetchall())]
    for account in states.ask(processes):
        found += ["-- receiver", json.dumps(account, indent=1)]
    return "\n".join(found)
