"""Calls of the listener's connection: its session, undos and ticks (session.sql, undo.sql and sweep.sql)."""

from __future__ import annotations

from .call import Call, Rows, nothing, scalar


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


def sweep() -> Call[tuple[float | None, bool]]:
    """After how many seconds to call it again (None: the usual time), and whether this session is registered."""

    def read(rows: Rows) -> tuple[float | None, bool]:
        again, alive = rows[0]
        return again, alive

    return Call("SELECT again, alive FROM pgqueue.sweep()", (), read)


def promote_all() -> Call[None]:
    return Call("SELECT pgqueue.promote_all()", (), nothing)


def clean_up() -> Call[None]:
    return Call("SELECT pgqueue.clean_up()", (), nothing)
