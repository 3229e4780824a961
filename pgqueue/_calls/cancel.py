"""Calls of 5_verbs/settle/cancel.sql."""

from __future__ import annotations

from collections.abc import Sequence

from .._values import arguments
from .call import Call, Rows, call, error_text

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
    return call("cancel", "state", _state, id=id, reason=error_text(reason))


def cancel_key(queue: str, key: str, reason: str | None) -> Call[str]:
    known = arguments.text(key, "a key")
    return call("cancel_key", "state", _state, queue=queue, key=known, reason=error_text(reason))


def cancel_many(ids: Sequence[int], reason: str | None) -> Call[dict[int, str]]:
    arguments.elements("tasks", len(ids))
    return call(
        "cancel_many",
        "id, state",
        lambda rows: {id: state or UNKNOWN for id, state in rows},
        ids=list(ids),
        reason=error_text(reason),
    )


def cancelled_takes(takes: Sequence[tuple[int, int]]) -> Call[dict[int, str | None]]:
    """Of these takes, those whose tasks were cancelled: the reason by the task's id."""
    ids, tokens = [id for id, _ in takes], [token for _, token in takes]
    return call("cancelled_takes", "id, reason", lambda rows: dict(rows), ids=ids, tokens=tokens)


def _state(rows: Rows) -> str:
    return rows[0][0] or UNKNOWN
