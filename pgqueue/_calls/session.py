"""Calls of the listener's connection: its session and its ticks (2_base/session.sql, 5_operations/sweep.sql)."""

from __future__ import annotations

from .call import Call, nothing, scalar


def open_session(resume: int | None, grace: float, label: str, identity: str | None) -> Call[int]:
    return Call(
        "SELECT pgqueue.open_session(resume => %s::int, grace => make_interval(secs => %s::float8), label => %s::text,"
        " identity => %s::uuid)",
        (resume, grace, label, identity),
        scalar,
    )


def close_session() -> Call[int]:
    return Call("SELECT pgqueue.close_session()", (), scalar)


def undo_take(session: int, token: int) -> Call[int]:
    return Call("SELECT pgqueue.undo_take(session => %s::int, token => %s::int8)", (session, token), scalar)


def sweep() -> Call[float | None]:
    return Call("SELECT again FROM pgqueue.sweep()", (), scalar)


def promote_all() -> Call[None]:
    return Call("SELECT pgqueue.promote_all()", (), nothing)


def clean_up() -> Call[None]:
    return Call("SELECT pgqueue.clean_up()", (), nothing)
