"""Calls of the listener's connection: its session, undos and ticks (session.sql, undo.sql, ticks.sql, sweep.sql)."""

from __future__ import annotations

from typing import Any

from .call import Call, Rows, call, nothing, scalar


def _first_row(rows: Rows) -> Any:
    return rows[0]


def open_session(resume: int | None, grace: float, label: str, identity: str | None) -> Call[int]:
    return call("open_session", None, scalar, resume=resume, grace=grace, label=label, identity=identity)


def open_within(parent: int, label: str | None) -> Call[int]:
    """A session that lives as long as its parent. On any connection."""
    return call("open_session", None, scalar, parent=parent, label=label)


def close_session(session: int | None = None) -> Call[int]:
    """How many tasks were given back. None: the connection's own session."""
    return call("close_session", None, scalar, session=session)


def undo_take(token: int) -> Call[int | None]:
    """How many tasks were given back. None: the claim is under way."""
    return call("undo_take", None, scalar, token=token)


def forget_undo(token: int) -> Call[None]:
    return call("forget_undo", None, nothing, token=token)


def tick_ages() -> Call[tuple[float | None, float | None, bool, int, bool]]:
    """How many seconds ago any client did a tick, and a cleaning (None: not known); whether this session is registered;
    how many sessions live; whether a queue may expire."""
    return call("tick_ages", "tick, cleaning, alive, clients, expiring", _first_row)


def sweep() -> Call[tuple[float | None, bool, int | None]]:
    """After how many seconds to call it again (None: the usual time), whether this session is registered, and how many
    sessions live (None: another client is sweeping)."""
    return call("sweep", "again, alive, clients", _first_row)


def promote_all() -> Call[None]:
    return call("promote_all", None, nothing)


def clean_up() -> Call[None]:
    return call("clean_up", None, nothing)
