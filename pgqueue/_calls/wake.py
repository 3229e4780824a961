"""Calls of 2_base/wake.sql and turns.sql, and the channels on which these notify."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .call import Call, Rows, call, nothing, query, written

COME = "come"  # the payload on a queue's channel that asks a process which hears every put to enter the line

_CHANNEL = re.compile("pgqueue:(-?[0-9]{1,10})")
_CALLED = re.compile("([0-9]{1,10}) [0-9.]{1,20}")


@dataclass(frozen=True, slots=True)
class Armed:
    """Queues that are armed: which of them are drained, and of which this connection hears every put."""

    drained: dict[int, bool]
    hearing: list[int]


@dataclass(frozen=True, slots=True)
class Entry:
    """The arguments of a process that enters the line of a queue.

    `waited`: seconds since its first taker began to wait; `since`: its last place, as the server gave it; `hears`: this
    connection hears every put.
    """

    queue_id: int
    waited: float
    since: float | None
    hears: bool


@dataclass(frozen=True, slots=True)
class Entered:
    """The answer: the place in line, or that there is no need of one."""

    since: float | None
    hears: bool


def arm(queue_ids: Sequence[int]) -> Call[Armed]:
    def read(rows: Rows) -> Armed:
        return Armed({id: drained for id, drained, _ in rows}, [id for id, _, hears in rows if hears])

    return call("arm", "queue_id, drained, hears", read, queue_ids=list(queue_ids), in_turn=True)


def arm_again(queue_ids: Sequence[int]) -> Call[dict[int, bool]]:
    return call("arm_again", "queue_id, drained", lambda rows: dict(rows), queue_ids=list(queue_ids), in_turn=True)


def disarm(queue_ids: Sequence[int], in_line: Sequence[int], places: Mapping[int, float]) -> Call[None]:
    """Disarm queues. `in_line`: those of them of which this connection does not hear every put; `places`: to leave."""
    if not places:
        return call("disarm", None, nothing, queue_ids=list(queue_ids), in_line=list(in_line))
    return query(
        f"SELECT {written('disarm', 'queue_ids', 'in_line')}, {written('leave_line', 'queue_ids', 'places')}",
        (list(queue_ids), list(in_line), list(places), list(places.values())),
        nothing,
    )


def enter_line(entries: Sequence[Entry]) -> Call[dict[int, Entered]]:
    """Enter the line of queues, or see that a place is still there. A queue without an answer is to be tried again."""

    def read(rows: Rows) -> dict[int, Entered]:
        return {id: Entered(since, hears) for id, since, hears in rows}

    return call(
        "enter_line",
        "queue_id, since, hears",
        read,
        queue_ids=[entry.queue_id for entry in entries],
        waited=[entry.waited for entry in entries],
        places=[entry.since for entry in entries],
        hearing=[entry.queue_id for entry in entries if entry.hears],
    )


def stop_hearing(queue_ids: Sequence[int]) -> Call[None]:
    return call("stop_hearing", None, nothing, queue_ids=list(queue_ids))


def pass_on(queue_ids: Sequence[int]) -> Call[None]:
    return call("pass_on", None, nothing, queue_ids=list(queue_ids))


def channel(queue_id: int) -> str:
    """The channel on which pgqueue._signal notifies every process."""
    return f"pgqueue:{queue_id}"


def queue_of(channel: str) -> int | None:
    """The queue id of such a channel, None for any other channel. A negated id: puts that wait for room."""
    found = _CHANNEL.fullmatch(channel)
    return int(found[1]) if found else None


def call_channel(session: int) -> str:
    """The channel on which pgqueue._call notifies one process."""
    return f"pgqueue:call:{session}"


def called_for(payload: str) -> int | None:
    """The queue id of a call, None for another channel."""
    found = _CALLED.fullmatch(payload)
    return int(found[1]) if found else None
