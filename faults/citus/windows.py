"""The time between two commits, held open until the node ends in it.

before  the other node has prepared, or has committed, and this one has not: the transaction waits for the lock of
        NOTIFY, which a blocker keeps while it waits for a standby that does not exist
after   this node has written its commit, and has not told the other one: the transaction waits for that standby
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

#: Of the node. A transaction waits for the standby if it asks for that.
SETTINGS = {"synchronous_standby_names": "nobody", "synchronous_commit": "local"}
WINDOWS = ("before", "after")
STANDBY, NOTIFY = "SyncRep", "object"  # what a transaction waits for, in pg_stat_activity
WITHIN = 30.0  # seconds


@contextmanager
def held(name: str, dsn: str, victims: Sequence[Connection]) -> Iterator[None]:
    """Commit the victims' transactions, and hold them in the window. The block has to end the node."""
    with ExitStack() as stack:
        if name == "before":
            blocker = stack.enter_context(psycopg.connect(dsn))
            _ask_for_standby(blocker)
            blocker.execute("SELECT pg_logical_emit_message(true, 'faults', 'a commit to wait for')")
            blocker.execute("NOTIFY held")
            stack.enter_context(_committing(blocker))
            _await(dsn, blocker, STANDBY)
        for victim in victims:
            if name == "before":
                victim.execute("NOTIFY held")
            else:
                _ask_for_standby(victim)
            stack.enter_context(_committing(victim))
        for victim in victims:
            _await(dsn, victim, NOTIFY if name == "before" else STANDBY)
        yield


def _ask_for_standby(conn: Connection) -> None:
    conn.execute("SET LOCAL synchronous_commit = on")


@contextmanager
def _committing(conn: Connection) -> Iterator[None]:
    """Commit in a thread, which ends with the node."""

    def commit() -> None:
        with suppress(psycopg.Error):
            conn.commit()

    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    yield
    thread.join(WITHIN)


def _await(dsn: str, conn: Connection, event: str) -> None:
    deadline = time.monotonic() + WITHIN
    with psycopg.connect(dsn, autocommit=True) as admin:
        while (seen := _waits_for(admin, conn.info.backend_pid)) != event:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the transaction waits for {seen}, and not for {event}, after {WITHIN:g} s")
            time.sleep(0.005)


def _waits_for(admin: Connection, pid: int) -> str | None:
    found = admin.execute("SELECT wait_event FROM pg_stat_activity WHERE pid = %s::int", [pid]).fetchone()
    return found[0] if found else "its end"
