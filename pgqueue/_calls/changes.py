"""Calls of 6_families/changes.sql, and identify. All run on the listener's connection."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, cast, get_args
from uuid import UUID

from .._values.record import Record
from .call import Call, call, nothing, scalar

Op = Literal["put", "take", "release", "bury", "kick", "touch", "delay", "ttr", "ttl", "maxlen", "delete"]

#: `verb seconds id,id,...`: numbers that a datetime and a bigint can hold.
_PAYLOAD = re.compile(
    rf"({'|'.join(get_args(Op))}) ([0-9]{{1,11}}(?:\.[0-9]{{1,9}})?) ([0-9]{{1,19}}(?:,[0-9]{{1,19}})*)"
)


@dataclass(frozen=True, slots=True)
class Change(Record):
    """A change of a task, as the callback of Queue.on_task_change() gets it.

    Attributes:
        task_id: the task's id. The task may have changed again since then, or be gone.
        queue: the name of its queue.
        op: put, take, release, bury, kick or touch; delete, also by an ack; delay (its delay is over and it is ready),
            ttr (its time to run is over and it is ready) or ttl (its time to live is over and it ends).
        at: the time of the change, by the server's clock. The callback runs after the change's transaction committed.
    """

    task_id: int
    queue: str
    op: Op
    at: datetime


def observe(queue_id: int) -> Call[str | None]:
    """Register this session for the queue's changes. Returns the channel, None if the queue is gone."""
    return call("observe", None, scalar, queue_id=queue_id)


def unobserve(queue_id: int) -> Call[None]:
    return call("unobserve", None, nothing, queue_id=queue_id)


def identify(identity: UUID | None) -> Call[str]:
    return call("identify", None, lambda rows: str(rows[0][0]), identity=identity)


def changes(queue: str, payload: str) -> list[Change]:
    """The changes of a notification's payload; none if pgqueue did not write it."""
    if not (parts := _PAYLOAD.fullmatch(payload)):
        return []
    op, seconds, ids = parts.groups()
    at = datetime.fromtimestamp(float(seconds), UTC)
    return [Change(int(id), queue, cast(Op, op), at) for id in ids.split(",")]
