"""Calls of 2_base/wake.sql, and the channel on which it notifies."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .call import Call, Rows, nothing

_CHANNEL = re.compile("pgqueue:(-?[0-9]{1,10})")


def arm(queue_ids: Sequence[int]) -> Call[dict[int, bool]]:
    return Call("SELECT queue_id, drained FROM pgqueue.arm(queue_ids => %s::int[])", (list(queue_ids),), _drained)


def arm_again(queue_ids: Sequence[int]) -> Call[dict[int, bool]]:
    return Call("SELECT queue_id, drained FROM pgqueue.arm_again(queue_ids => %s::int[])", (list(queue_ids),), _drained)


def disarm(queue_ids: Sequence[int]) -> Call[None]:
    return Call("SELECT pgqueue.disarm(queue_ids => %s::int[])", (list(queue_ids),), nothing)


def channel(queue_id: int) -> str:
    """The channel on which pgqueue._signal notifies."""
    return f"pgqueue:{queue_id}"


def queue_of(channel: str) -> int | None:
    """The queue id of such a channel, None for any other channel. A negated id: puts that wait for room."""
    found = _CHANNEL.fullmatch(channel)
    return int(found[1]) if found else None


def _drained(rows: Rows) -> dict[int, bool]:
    return dict(rows)
