"""Calls of 4_families/channels.sql: wait and post."""

from __future__ import annotations

from .._values import arguments
from .call import Call, Rows, nothing

MARK = "\x01pgqueue:"  # before the id of a payload that is too large for NOTIFY; as in sql/4_families/channels.sql


LARGEST = 7999  # bytes that NOTIFY carries


def post(channel: str, payload: str) -> Call[None]:
    """Post. A payload that pgqueue.post would not change goes to pg_notify at once, which saves a tenth of the time."""
    values = (arguments.channel_name(channel), arguments.payload(payload))
    if len(payload.encode()) <= LARGEST and not payload.startswith(MARK):
        return Call("SELECT pg_catalog.pg_notify(%s::text, %s::text)", values, nothing)
    return Call("SELECT pgqueue.post(channel => %s::text, payload => %s::text)", values, nothing)


def stored(payload: str) -> int | None:
    """The id of the stored payload that this one stands for, or None if it is the payload itself."""
    id = payload.removeprefix(MARK)
    return int(id) if id != payload and id.isdecimal() else None


def fetch(id: int) -> Call[str | None]:
    def read(rows: Rows) -> str | None:
        found: str | None = rows[0][0]
        return found

    return Call("SELECT pgqueue.stored_payload(id => %s::int8)", (id,), read)
