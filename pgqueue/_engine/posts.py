"""The payloads that were posted to named channels, from their arrival at the listener to their delivery, in order.

They are not delivered as they arrive: a large payload has to be fetched, and another call may be under way. While a
payload cannot be fetched, those behind it wait, since they must not overtake it, for as long as the server keeps it.

Any role that may connect to the database can forge the mark of a stored payload (channels.sql). Each mark costs one
read, and one without a stored payload is a gap, as if the listener had read it too late. Two limits keep a flood of
them, or of anything else, from the rest of the listener's work, and from the memory of the process: a turn of the
thread delivers for at most TURN seconds, and at most ROOM characters of payloads wait. Further payloads are dropped,
and leave a gap in their place.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial

from .._calls import channels
from .retries import Conn, Retry, do
from .switchboard import OVERFLOW, TOO_LATE, Gap, Switchboard

KEPT = 60.0  # seconds for which the server keeps a large payload at least; sql/6_families/channels.sql
TURN = 0.05  # seconds for one turn of deliveries
ROOM = 16_000_000  # characters of payloads that wait, each counted with EACH more
EACH = 200


class Posts:
    """The payloads that arrived and were not delivered yet. For the listener's thread."""

    def __init__(self, switchboard: Switchboard, label: str) -> None:
        self._switchboard = switchboard
        self._arrived: deque[tuple[str, str | Gap]] = deque()
        self._room = ROOM
        self._cut: set[str] = set()  # channels whose last entry is a gap, since there was no room
        self._retry = Retry(f"the delivery of a large payload to {label}")
        self._fetched: str | None = None

    def __len__(self) -> int:
        return len(self._arrived)

    @property
    def at(self) -> float:
        """The monotonic time of the next attempt."""
        return self._retry.at if self._arrived else float("inf")

    def add(self, channel: str, payload: str) -> None:
        if self._room > 0:
            self._cut.discard(channel)
            self._room -= len(payload) + EACH
            self._arrived.append((channel, payload))
        elif channel not in self._cut:
            self._cut.add(channel)
            self._arrived.append((channel, OVERFLOW))

    def deliver(self, conn: Conn) -> None:
        """Deliver in order, up to a payload that cannot be fetched now. Raises if the connection is lost."""
        end = time.monotonic() + TURN
        while self._arrived:
            channel, heard = self._arrived[0]
            if isinstance(heard, str):
                found = self._whole(conn, channel, heard)
                if found is None:
                    return
                self._room += len(heard) + EACH
                heard = found
            self._arrived.popleft()
            self._switchboard.deliver(channel, heard)
            if time.monotonic() > end:
                return

    def clear(self) -> None:
        self._arrived.clear()
        self._cut.clear()
        self._room = ROOM

    def _whole(self, conn: Conn, channel: str, payload: str) -> str | Gap | None:
        """The payload, fetched if it is a stored one; a gap if that is gone; None if it cannot be fetched now."""
        id = channels.stored(channel, payload)
        if id is None:
            return payload
        if not self._retry.attempt(conn, partial(self._fetch, conn, id)):
            if self._retry.failing_for() < KEPT:
                return None
            return TOO_LATE
        return TOO_LATE if self._fetched is None else self._fetched

    def _fetch(self, conn: Conn, id: int) -> None:
        self._fetched = do(conn, channels.fetch(id))
