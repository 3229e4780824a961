"""Calls of the listener's connection: its session, its ticks, and the queues that somebody waits for.

sql/2_base/session.sql, sweep.sql, due.sql and wake.sql.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import Call, Rows, _nothing, _scalar


def open_session(resume: int | None, grace: float, label: str, identity: str | None) -> Call[int]:
    return Call(
        "SELECT pgqueue.open_session(resume => %s::int, grace => make_interval(secs => %s::float8), label => %s::text,"
        " identity => %s::uuid)",
        (resume, grace, label, identity),
        _scalar,
    )


def close_session() -> Call[int]:
    return Call("SELECT pgqueue.close_session()", (), _scalar)


def undo_take(session: int, token: int) -> Call[int]:
    return Call("SELECT pgqueue.undo_take(session => %s::int, token => %s::int8)", (session, token), _scalar)


def sweep() -> Call[float | None]:
    return Call("SELECT again FROM pgqueue.sweep()", (), _scalar)


def promote_all() -> Call[None]:
    return Call("SELECT pgqueue.promote_all()", (), _nothing)


def clean_up() -> Call[None]:
    return Call("SELECT pgqueue.clean_up()", (), _nothing)


def arm(queue_ids: Sequence[int]) -> Call[dict[int, bool]]:
    return Call("SELECT queue_id, drained FROM pgqueue.arm(queue_ids => %s::int[])", (list(queue_ids),), _drained)


def drain(queue_ids: Sequence[int]) -> Call[dict[int, bool]]:
    return Call("SELECT queue_id, drained FROM pgqueue.drain(queue_ids => %s::int[])", (list(queue_ids),), _drained)


def disarm(queue_ids: Sequence[int]) -> Call[None]:
    return Call("SELECT pgqueue.disarm(queue_ids => %s::int[])", (list(queue_ids),), _nothing)


def channel(queue_id: int) -> str:
    """The channel on which pgqueue._signal notifies."""
    return f"pgqueue:{queue_id}"


def queue_of(channel: str) -> int | None:
    """The queue of such a channel, or None for any other. Below 0: of who waits for room in that queue."""
    prefix, _, id = channel.partition(":")
    return int(id) if prefix == "pgqueue" and id.removeprefix("-").isdecimal() else None


def _drained(rows: Rows) -> dict[int, bool]:
    return dict(rows)
