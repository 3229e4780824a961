"""Calls of the listener's connection: its session, undos and ticks (session.sql, undo.sql, ticks.sql, sweep.sql)."""

from __future__ import annotations

from typing import Any

from .call import Call, Rows, nothing, scalar


def _first_row(rows: Rows) -> Any:
    return rows[0]


def open_session(resume: int | None, grace: float, label: str, identity: str | None) -> Call[int]:
    return Call(
        "SELECT pgqueue.open_session(resume => %s::int, grace => pg_catalog.make_interval(secs => %s::float),"
        " label => %s::pg_catalog.text, identity => %s::pg_catalog.uuid)",
        (resume, grace, label, identity),
        scalar,
    )


def close_session() -> Call[int]:
    return Call("SELECT pgqueue.close_session()", (), scalar)


def undo_take(token: int) -> Call[int | None]:
    """How many tasks were given back. None: the claim is under way."""
    return Call("SELECT pgqueue.undo_take(token => %s::bigint)", (token,), scalar)


def forget_undo(token: int) -> Call[None]:
    return Call("SELECT pgqueue.forget_undo(token => %s::bigint)", (token,), nothing)


def tick_ages() -> Call[tuple[float | None, float | None, bool, int, bool]]:
    """How many seconds ago any client did a tick, and a cleaning (None: not known); whether this session is registered;
    how many sessions live; whether a queue may expire."""
    return Call("SELECT tick, cleaning, alive, clients, expiring FROM pgqueue.tick_ages()", (), _first_row)


def sweep() -> Call[tuple[float | None, bool, int | None]]:
    """After how many seconds to call it again (None: the usual time), whether this session is registered, and how many
    sessions live (None: another client is sweeping)."""
    return Call("SELECT again, alive, clients FROM pgqueue.sweep()", (), _first_row)


def promote_all() -> Call[None]:
    return Call("SELECT pgqueue.promote_all()", (), nothing)


def clean_up() -> Call[None]:
    return Call("SELECT pgqueue.clean_up()", (), nothing)
