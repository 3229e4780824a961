"""Calls of 3_tasks/cancel.sql."""

from __future__ import annotations

from collections.abc import Sequence

from .._values import arguments
from .call import Call, error_text

UNKNOWN = "unknown"


def session_channel(session: int) -> str:
    """The channel on which a session hears that tasks which it holds were cancelled."""
    return f"pgqueue:session:{session}"


def ids_of(payload: str) -> list[int]:
    """The tasks that a notification names. Empty if pgqueue did not send it: any role can send one."""
    try:
        return [int(id) for id in payload.split(",")] if payload.isascii() else []
    except ValueError:
        return []


def cancel(id: int, reason: str | None) -> Call[str]:
    """Cancel a task. Returns its state: cancelled or cancelling; done, failed or unknown if it had ended."""
    return Call(
        "SELECT state FROM pgqueue.cancel(id => %s::bigint, reason => %s::pg_catalog.text)",
        (id, error_text(reason)),
        lambda rows: rows[0][0] or UNKNOWN,
    )


def cancel_key(queue: str, key: str, reason: str | None) -> Call[str]:
    return Call(
        "SELECT state FROM pgqueue.cancel_key(queue => %s::pg_catalog.text, key => %s::pg_catalog.text,"
        " reason => %s::pg_catalog.text)",
        (queue, arguments.text(key, "a key"), error_text(reason)),
        lambda rows: rows[0][0] or UNKNOWN,
    )


def cancel_many(ids: Sequence[int], reason: str | None) -> Call[dict[int, str]]:
    arguments.elements("tasks", len(ids))
    return Call(
        "SELECT id, state FROM pgqueue.cancel_many(ids => %s::bigint[], reason => %s::pg_catalog.text)",
        (list(ids), error_text(reason)),
        lambda rows: {id: state or UNKNOWN for id, state in rows},
    )


def cancelled_takes(takes: Sequence[tuple[int, int]]) -> Call[dict[int, str | None]]:
    """Of these takes, those whose tasks were cancelled: the reason by the task's id."""
    return Call(
        "SELECT id, reason FROM pgqueue.cancelled_takes(ids => %s::bigint[], tokens => %s::bigint[])",
        ([id for id, _ in takes], [token for _, token in takes]),
        lambda rows: dict(rows),
    )
